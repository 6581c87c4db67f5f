// Events as they happen, and the service's history, up to any time.

import { ask } from '../api.js'
import { mark, since } from '../clock.js'
import { inOrder, named, Sentence, When } from '../ends.js'
import { heard, useHeard } from '../hear.js'
import { html, useState } from '../html.js'
import { useLook } from '../look.js'
import { Empty, Field, Filter, Filters, Stale } from '../parts/small.js'
import { move, refine } from '../route.js'
import { seen, who } from '../text.js'
import { ago, clock, number, say } from '../words.js'

const TROUBLE = 'expired,evicted'
const KINDS = ['granted', 'released', 'expired', 'evicted', 'ended', 'waiting', 'left', 'reserved', 'reset']
const SHOWN = 200
// The service does not search texts, so more is read, to search here.
const SEARCHED = 1000

let ahead = null // by how much the service's clock is ahead of this machine's, in milliseconds

/**
 * Reads events up to an instant of the service's clock, or the last ones. `after` is the cursor of a page; an
 * instance that does not know it reads up to `at` instead.
 */
async function askEvents ({ until, after, at, ...query }, signal) {
  const asked = async (fields) => {
    const answer = await ask('history', fields, signal)
    const now = Date.parse(answer.begins) + answer.begins_ms
    ahead = Number.isNaN(now) ? 0 : now - Date.now()
    return answer
  }
  const upTo = async (instant, fields) => {
    if (instant === null) return asked(fields)
    if (ahead === null) await asked({ limit: 1 })
    return asked({ ...fields, until_ms: Math.max(Math.floor(Date.now() + ahead - instant), 0) })
  }
  try {
    return await upTo(until, { ...query, after })
  } catch (error) {
    if (!after || error.status !== 400) throw error
    return upTo(at ?? until, query)
  }
}

/** Returns the last events: the service's history, which has most, or the events received. */
function eventsOf (past) {
  if (past.problem === 'missing') return heard.events.map((event) => ({ ...event, seq: String(event.key), age: since(event.at) }))
  return named(past.data?.entries ?? []).map((entry) => ({ ...entry, age: entry.ago_ms + past.age }))
}

/** Returns the instant that a text tells, or null. */
const instantOf = (text) => Number.isNaN(Date.parse(text)) ? null : Date.parse(text)

const pad = (n) => String(n).padStart(2, '0')

/** Formats an instant for a field of local time, to the minute. */
function minuteOf (instant) {
  const at = new Date(instant)
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}`
}

/** Returns the end of the chosen minute, for the address. */
const endOf = (minute) => minute && new Date(Date.parse(minute) + 59_999).toISOString()

export function Events ({ query }) {
  useHeard()
  const [paused, setPaused] = useState(null) // what was shown when it was paused, of which look, and when that was
  const { prefix = '', kind = '' } = query
  const [until, at] = [instantOf(query.until), instantOf(query.at)]
  const back = until !== null || Boolean(query.older) // these are not the last events
  const asks = { until, after: query.older, at, prefix, kind: kind && `${kind},gap`, limit: query.q ? SEARCHED : SHOWN }
  const past = useLook((signal) => askEvents(asks, signal), ['history', asks], { vital: true })
  const known = past.data || past.problem === 'missing' ? past : past.before ?? past
  const now = eventsOf(known)
  const held = paused?.look === past ? paused : null // with another filter, it goes on
  const all = held ? held.events.map((event) => ({ ...event, age: event.age + since(held.at) })) : now
  const fresh = held?.events.length === 0 ? now.length : now.findIndex((event) => event.seq === held?.events[0].seq)
  const wanted = (query.q ?? '').toLowerCase()
  const shown = inOrder(all.filter((event) =>
    (!kind || kind.split(',').includes(event.kind) || event.kind === 'gap') && (!event.name || event.name.startsWith(prefix)) &&
    (until === null || !(Date.parse(event.time) > until)) && // answers take time
    (!wanted || [event.name, who(event), event.details?.host, event.reason, event.by].some((text) => (text ?? '').toLowerCase().includes(wanted))))).slice(0, wanted ? SEARCHED : SHOWN)
  const live = past.problem === 'missing' ? heard.open : past.fresh
  const sorted = inOrder(now)
  const upTo = query.older ? instantOf(sorted[0]?.time) ?? at : until
  // Entries are in the order in which they were seen. Their times are not, so a time is no place to go on from.
  const older = () => move({ older: known.data.next, at: now.at(-1)?.time ?? query.at })
  return html`<section class="view">
    <div class="head"><h1 tabindex="-1">${say('events')}</h1>
      ${!back
        ? html`<span id="live" class=${live && !held ? 'badge is-held' : 'badge is-unknown'}>${say(held ? 'paused' : live ? 'hears' : 'deaf')}</span>
          <button type="button" id="pause" aria-pressed=${held !== null} disabled=${known !== past} onClick=${() => setPaused(held ? null : { events: now, look: past, at: mark() })}>${held ? say('goOn', fresh < 0 ? `${now.length}+` : number(fresh)) : say('pause')}</button>`
        : upTo !== null && html`<span id="live" class="badge is-unknown">${say('upTo', clock(new Date(upTo)))}</span>`}</div>
    <${Filters} label=${say('filter')} count=${['prefix', 'kind', 'until'].filter((field) => query[field]).length}
      search=${html`<${Filter} id="q" label=${say('search')} value=${query.q ?? ''} />`}>
      <${Filter} id="prefix" label=${say('prefix')} value=${prefix} />
      <${Field} label=${say('kind')}><select id="kind" value=${kind} onChange=${(e) => refine({ kind: e.target.value })}>
        <option value="">${say('any')}</option><option value=${TROUBLE}>${say('kind_trouble')}</option>${KINDS.map((word) => html`<option value=${word}>${say(`kind_${word}`)}</option>`)}</select><//>
      ${past.problem !== 'missing' && html`<${Field} label=${say('until_')}><input id="until" type="datetime-local" value=${until === null ? '' : minuteOf(until)} onChange=${(e) => move({ until: endOf(e.target.value), older: '', at: '' })} /><//>`}
      ${['q', 'prefix', 'kind', 'until'].some((field) => query[field]) && html`<button type="button" class="quiet" onClick=${() => move({ q: '', prefix: '', kind: '', until: '', older: '', at: '' })}>${say('clear')}</button>`}
    <//>
    ${heard.partial && html`<p class="note">${say('partial')}</p>`}
    ${past.problem !== 'missing' && html`<${Stale} look=${past} />`}
    ${(known.data || past.problem === 'missing') && html`<div class=${known.fresh || past.problem === 'missing' ? 'card known' : 'card known old'}>
    ${shown.length === 0
      ? html`<${Empty}>${say(known.data?.next ? 'notSearched' : wanted || kind || prefix || back ? 'noneMatch' : 'noEvents')}<//>`
      : html`<ol id="events" class="told">${shown.map((event) => html`<li key=${event.seq}><${When} time=${event.time} age=${event.age} /> <span class="said"><${Sentence} entry=${event} named=${event.name} /></span> <small class="dim">${ago(event.age)}</small></li>`)}</ol>`}
    ${known.data?.warning && html`<p class="note warn">${say('historyWarns', seen(known.data.warning))}</p>`}
    </div>`}
    <div class="pages"><output id="reach" class="dim">${known.data && (now.length > 0 || !known.data.next) && `${known.data.next ? say('reachesTo', number(now.length), clock(new Date(sorted.at(-1).time))) : say('asSeenSince', clock(new Date(known.data.begins)), seen(known.data.instance ?? ''))}${known.data.complete === false ? ` ${say('incomplete')}` : ''}`}</output>
      <nav aria-label=${say('pages')}>
        <button type="button" id="newest" disabled=${!back} onClick=${() => move({ until: '', older: '', at: '' })}>${say('newest')}</button>
        <button type="button" id="older" disabled=${!known.data?.next} onClick=${older}>${say('older')}</button>
      </nav></div>
  </section>`
}
