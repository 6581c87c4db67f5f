// Who looks: signing in, what one may do, and signing out.

import { signedIn, signIn } from '../api.js'
import { hearAgain } from '../hear.js'
import { html } from '../html.js'
import { lookNow } from '../look.js'
import { askWho, useMe } from '../me.js'
import { Field } from '../parts/small.js'
import { Text } from '../text.js'
import { say, time } from '../words.js'

function use (token) {
  signIn(token)
  hearAgain()
  askWho()
  lookNow()
}

/** Asks for a token, and says whether there was none or a wrong one. */
export function SignIn ({ problem }) {
  const submit = (event) => {
    event.preventDefault()
    use(event.target.elements.bearer.value.trim())
  }
  return html`<form id="sign-in" class="card" onSubmit=${submit}>
    <h2>${say('signIn')}</h2>
    <p role="alert" class=${problem === 'wrongToken' ? 'bad' : ''}>${say(problem)}</p>
    <${Field} label=${say('accessToken')}><input id="bearer" name="bearer" type="password" autocomplete="off" spellcheck=${false} /><//>
    <p class="fine">${say('tokenKept')}</p>
    <div class="buttons">${signedIn() && html`<button type="button" onClick=${() => use('')}>${say('signOut')}</button>`}<button class="main">${say('enter')}</button></div>
  </form>`
}

export function Me () {
  const { client, told } = useMe()
  return html`<section class="view">
    <div class="head"><h1 tabindex="-1">${say('me')}</h1></div>
    ${!client && html`<p class="note">${say(told === 'missing' ? 'missing' : told === '' ? 'loading' : told === 'unknown' ? 'noAnswer' : told)}</p>`}
    ${client && html`<div class="card">
      <p class="sum">${client.client ? html`${say('signedInAs')} <${Text} of=${client.client} class="who" />` : say('by_open')}${client.client && html` <span class="dim">${say(`by_${client.by}`)}</span>`}</p>
      ${(client.rights ?? []).length > 0 && html`<table class="plain"><thead><tr><th scope="col">${say('namesWith')}</th><th scope="col">${say('right_view')}</th><th scope="col">${say('right_lock')}</th><th scope="col">${say('right_evict')}</th></tr></thead>
        <tbody>${client.rights.map((rule) => html`<tr key=${rule.prefix}><td>${rule.prefix ? html`<${Text} of=${`${rule.prefix}…`} />` : say('allNames')}</td>
          ${['view', 'lock', 'evict'].map((right) => html`<td>${rule.rights.includes(right) ? html`<b class="good">✓ <span class="hidden">${say('yes')}</span></b>` : html`<span class="dim">– <span class="hidden">${say('no')}</span></span>`}</td>`)}</tr>`)}</tbody></table>`}
      <dl class="facts">${[['version', client.version], ['store', client.engine], ['instance', client.instance], ['uptime', client.uptime_ms && time(client.uptime_ms)]].map(([what, value]) => value && html`<div><dt>${say(what)}</dt><dd><${Text} of=${value} /></dd></div>`)}</dl>
    </div>`}
    ${signedIn() && html`<div class="buttons"><button type="button" id="sign-out" onClick=${() => use('')}>${say('signOut')}</button></div>`}
  </section>`
}
