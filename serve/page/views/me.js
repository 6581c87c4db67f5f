// The client's own page: signing in, its rights, and signing out.

import { forget } from '../actions.js'
import { ask, signedIn, signIn } from '../api.js'
import { hearAgain } from '../hear.js'
import { html, useState } from '../html.js'
import { lookNow, useLook } from '../look.js'
import { askWho, forgetWho } from '../me.js'
import { Field, Stale } from '../parts/small.js'
import { Text } from '../text.js'
import { say, time } from '../words.js'

function use (token) {
  if (!token) forget()
  signIn(token)
  forgetWho()
  hearAgain()
  askWho()
  lookNow()
}

/** Asks for a token, and says whether it was missing or wrong. */
export function SignIn ({ problem }) {
  const [odd, setOdd] = useState(false) // no request can carry such a token
  const submit = (event) => {
    event.preventDefault()
    const token = event.target.elements.bearer.value.trim()
    const sent = /^[ -~]*$/.test(token)
    setOdd(!sent)
    if (sent) use(token)
  }
  const word = odd ? 'wrongToken' : problem
  return html`<form id="sign-in" class="card" onSubmit=${submit}>
    <h2>${say('signIn')}</h2>
    <p role="alert" class=${word === 'wrongToken' ? 'bad' : ''}>${say(word)}</p>
    <${Field} label=${say('accessToken')}><input id="bearer" name="bearer" type="password" autocomplete="off" spellcheck=${false} /><//>
    <p class="fine">${say('tokenKept')}</p>
    <div class="buttons">${signedIn() && html`<button type="button" onClick=${() => use('')}>${say('withoutToken')}</button>`}<button class="main">${say('enter')}</button></div>
  </form>`
}

export function Me () {
  const look = useLook((signal) => ask('me', {}, signal), ['me'], { vital: true })
  const client = look.data
  return html`<section class="view">
    <div class="head"><h1 tabindex="-1">${say('me')}</h1></div>
    <${Stale} look=${look} />
    ${client && html`<div class=${look.fresh ? 'card known' : 'card known old'}>
      <p class="sum">${client.client ? html`${say('signedInAs')} <${Text} of=${client.client} class="who" />` : say('by_open')}${client.client && html` <span class="dim">${say(`by_${client.by}`)}</span>`}</p>
      ${(client.rights ?? []).length > 0 && html`<table class="plain"><thead><tr><th scope="col">${say('namesWith')}</th><th scope="col">${say('right_view')}</th><th scope="col">${say('right_lock')}</th><th scope="col">${say('right_evict')}</th></tr></thead>
        <tbody>${client.rights.map((rule) => html`<tr key=${rule.prefix}><td>${rule.prefix ? html`<${Text} of=${`${rule.prefix}…`} />` : say('allNames')}</td>
          ${['view', 'lock', 'evict'].map((right) => html`<td>${rule.rights.includes(right) ? html`<b class="good">✓ <span class="hidden">${say('yes')}</span></b>` : html`<span class="dim">– <span class="hidden">${say('no')}</span></span>`}</td>`)}</tr>`)}</tbody></table>`}
      <dl class="facts">${[['version', client.version], ['store', client.engine], ['instance', client.instance], ['uptime', client.uptime_ms && time(client.uptime_ms)]].map(([what, value]) => value && html`<div><dt>${say(what)}</dt><dd><${Text} of=${value} /></dd></div>`)}</dl>
    </div>`}
    ${signedIn() && html`<div class="buttons"><button type="button" id="sign-out" onClick=${() => use('')}>${say('signOut')}</button></div>`}
  </section>`
}
