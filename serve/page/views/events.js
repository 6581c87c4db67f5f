// Events as they happen, with what the service remembers from before.

import { ask } from '../api.js'
import { mark, since } from '../clock.js'
import { named, Sentence, When } from '../ends.js'
import { heard, useHeard } from '../hear.js'
import { html, useState } from '../html.js'
import { useLook } from '../look.js'
import { Empty, Field, Stale } from '../parts/small.js'
import { refine } from '../route.js'
import { who } from '../text.js'
import { ago, number, say } from '../words.js'

const KINDS = ['granted', 'released', 'expired', 'evicted', 'ended', 'waiting', 'left', 'reserved', 'reset']
const SHOWN = 200

/** The last events: the service's history, which tells most, or what was heard. */
function eventsOf (past) {
  if (past.problem === 'missing') return heard.events.map((event) => ({ ...event, seq: String(event.key), age: since(event.at) }))
  return named(past.data?.entries ?? []).map((entry) => ({ ...entry, age: entry.ago_ms + past.age }))
}

export function Events ({ query }) {
  useHeard()
  const [paused, setPaused] = useState(null) // what was shown then, and when
  const past = useLook((signal) => ask('history', { limit: SHOWN }, signal), ['history'], { vital: true })
  const now = eventsOf(past)
  const all = paused ? paused.events.map((event) => ({ ...event, age: event.age + since(paused.at) })) : now
  const last = paused?.events[0]?.seq
  const fresh = now.findIndex((event) => event.seq === last)
  const wanted = (query.q ?? '').toLowerCase()
  const shown = all.filter((event) => (!query.kind || event.kind === query.kind || event.kind === 'gap') &&
    (!wanted || [event.name, who(event), event.reason, event.by].some((text) => (text ?? '').toLowerCase().includes(wanted)))).slice(0, SHOWN)
  const live = heard.open && (past.fresh || past.problem === 'missing')
  return html`<section class="view">
    <div class="head"><h1 tabindex="-1">${say('events')}</h1>
      <span id="live" class=${live && !paused ? 'badge is-held' : 'badge is-unknown'}>${say(paused ? 'paused' : live ? 'hears' : 'deaf')}</span>
      <button type="button" id="pause" aria-pressed=${paused !== null} onClick=${() => setPaused(paused ? null : { events: now, at: mark() })}>${paused ? say('goOn', fresh < 0 ? `${now.length}+` : number(fresh)) : say('pause')}</button></div>
    <form class="tools" role="search" onSubmit=${(e) => e.preventDefault()}>
      <${Field} label=${say('search')}><input id="q" type="search" value=${query.q ?? ''} autocomplete="off" spellcheck=${false} onInput=${(e) => refine({ q: e.target.value })} /><//>
      <${Field} label=${say('kind')}><select id="kind" value=${query.kind ?? ''} onChange=${(e) => refine({ kind: e.target.value })}>
        <option value="">${say('any')}</option>${KINDS.map((word) => html`<option value=${word}>${say(`kind_${word}`)}</option>`)}</select><//>
    </form>
    ${heard.partial && html`<p class="note">${say('partial')}</p>`}
    ${past.problem !== 'missing' && html`<${Stale} look=${past} />`}
    <div class="card">
    ${shown.length === 0
      ? html`<${Empty}>${say('noEvents')}<//>`
      : html`<ol id="events" class="told">${shown.map((event) => html`<li key=${event.seq}><${When} time=${event.time} age=${event.age} /> <span class="said"><${Sentence} entry=${event} named=${event.name} /></span> <small class="dim">${ago(event.age)}</small></li>`)}</ol>`}
    </div>
  </section>`
}
