// One lock: its current state in words, its timeline, its holders and queue, and its history.

import { evict, isOwn, mayEvict, mayLimit, mayRemove, mayReserve, release, remove, reserve, reset, setLimit } from '../actions.js'
import { ask } from '../api.js'
import { mark, since } from '../clock.js'
import { inOrder, named, Sentence, When } from '../ends.js'
import { html } from '../html.js'
import { heard, useHeard } from '../hear.js'
import { firstOf, leaseOf, longestWait, modeOf, stateOf, watch } from '../lease.js'
import { useLook } from '../look.js'
import { can, may, useMe } from '../me.js'
import { Copy, Empty, LeaseBar, Stale, State } from '../parts/small.js'
import { Timeline } from '../parts/timeline.js'
import { link, linkToList, refine } from '../route.js'
import { isLink, seen, Text, Who, who } from '../text.js'
import { ago, clock, number, say, time } from '../words.js'
import { ownLimitOf, whyWaits } from '../why.js'
import { Done } from './locks.js'

const MINUTE = 60_000
const RANGES = { '5m': 5 * MINUTE, '15m': 15 * MINUTE, '1h': 60 * MINUTE, '6h': 360 * MINUTE, '24h': 1440 * MINUTE }
const ENTRIES = 500
const SHOWN = 100

async function askLock (name, signal) {
  const began = mark()
  const state = await ask('lock', { name }, signal)
  watch([state], began)
  return state
}

export function Lock ({ name, query }) {
  useMe()
  const asked = RANGES[query.range] ? query.range : '1h'
  const minds = (event) => event.name === undefined || event.name === name
  const look = useLook((signal) => askLock(name, signal), ['lock', name], { vital: true, minds })
  const past = useLook((signal) => ask('history', { name, limit: ENTRIES, since_ms: RANGES[asked] }, signal), ['history', name, asked], { minds })
  const state = look.data
  useHeard()
  const all = pastOf(name, past)
  // If little is known yet, the range is short.
  const range = query.range ? asked : ['5m', '15m'].find((word) => all.begins <= RANGES[word]) ?? asked
  return html`<section class="view lock">
    <nav class="crumbs" aria-label=${say('crumbs')}><a href=${linkToList()}>${say('locks')}</a> <span aria-hidden="true">/</span> <span class="dim">${say('lock')}</span></nav>
    <div class="head"><h1 tabindex="-1" id="lock-name"><${Text} of=${name} /> <${Copy} text=${name} what=${say('name')} /></h1>
      <span id="lock-state">${state && !state.damaged ? html`<${State} state=${state} look=${look} />` : html`<span class="badge is-unknown">${say('is_unknown')}</span>`}</span>
      <span class="acts">${mayReserve(name) && html`<button type="button" id="reserve" onClick=${() => reserve(name, state, look)}>${say('reserve')}</button>`}
      ${state && !state.damaged && mayLimit(name) && html`<button type="button" id="limit" onClick=${() => setLimit(state, look)}>${say('limitSet')}</button>`}</span>
    </div>
    <${Stale} look=${look} />
    ${state?.damaged && html`<p class="note warn">${say('damaged', seen(state.damaged))}</p>`}
    ${state && !state.damaged && html`<div class=${look.fresh ? 'known' : 'known old'}>
      ${look.fresh && html`<p class="sum"><${Summary} state=${state} look=${look} /></p>`}
      <${Holders} state=${state} look=${look} />
    </div>`}
    ${(all.known || look.fresh) && html`<${Times} name=${name} past=${past} all=${all} range=${range} look=${look} />`}
    ${state && !state.damaged && html`<div class=${look.fresh ? 'known' : 'known old'}><${Queue} state=${state} look=${look} /></div>`}
    ${all.known && html`<${History} name=${name} past=${past} all=${all} />`}
  </section>`
}

/** Answers an operator's first questions, in a sentence or two. */
function Summary ({ state, look }) {
  const holder = firstOf(state)
  const waits = state.waiters.length
  const gap = say('gapOfSentences')
  const queue = waits > 0 ? html`${gap}${say('sumWaits', number(waits), longestWait(state) && time(longestWait(state)))}${gap}${whyWaits(state)}` : html`${gap}${say('sumNobody')}`
  const { text } = holder ? leaseOf(state.name, holder, look) : {}
  if (!holder) return html`${say('sumFree')}${queue}`
  if (!holder.owner) return html`${say('sumDone', text)}${queue}`
  if (holder.mode === 'shared') return html`${say('sumShared', modeOf(state))}${queue}`
  const held = holder.held_ms && time(holder.held_ms)
  const { host, user, text: reason } = holder.details ?? {}
  const is = stateOf(state, look)
  if (is === 'reserved' && user) return html`${say('sumReservedBy', html`<${Text} of=${user} class="who" />`, reason && html`<${Text} of=${reason} />`, held, text)}${queue}`
  const word = { reserved: 'sumReserved', keeps: 'sumKeeps' }[is] ?? 'sumHeld'
  return html`${say(word, html`<${Who} of=${holder} />`, host && html`<${Text} of=${host} class="who" />`, held, text)}${queue}`
}

function Holders ({ state, look }) {
  const kept = state.holders.length > 0 && state.holders.every((holder) => !holder.owner)
  return html`<section class="card" aria-labelledby="holders-title">
    <h2 id="holders-title">${kept ? say('doneTitle') : say('holders')} ${state.holders.length > 0 && !kept && html`<small class="dim">${modeOf(state)}</small>`}</h2>
    ${state.limit > 0 && html`<p class="fine" id="operators-limit">${say('limitIs', number(state.limit), ownLimitOf(state) && number(ownLimitOf(state)))}</p>`}
    ${state.holders.length === 0
      ? html`<${Empty}>${say(look.fresh ? 'nobodyHolds' : 'unknownState')}<//>`
      : html`<ul id="holders" class="people">${state.holders.map((holder) => html`<${Holder} key=${holder.handle + holder.token} state=${state} holder=${holder} look=${look} />`)}</ul>`}
    ${kept && can.reset() && (may('evict', state.name)
      ? html`<div class="buttons"><button type="button" id="reset" onClick=${() => reset(state, look)}>${say('reset')}</button></div>`
      : html`<p class="fine">${say('mayNotReset')}</p>`)}
    ${!kept && state.holders.length > 0 && can.evict() && !may('evict', state.name) && html`<p class="fine" id="may-not">${say('mayNotEvict')}</p>`}
  </section>`
}

function Holder ({ state, holder, look }) {
  return html`<li class="person">
    <div class="main">
      <p class="one">${holder.owner ? html`<${Who} of=${holder} />` : html`<${Done} holder=${holder} />`}
        ${holder.details?.kind === 'reserved' && html`<span class="badge is-reserved">${say('is_reserved')}</span>`}
        ${holder.details?.kind === 'keeps' && html`<span class="badge is-keeps">${say('in_keeps')}</span>`}
        ${holder.owner && look.fresh && state.waiters.length > 0 && html`<span class="badge is-wanted">${say('othersWait')}</span>`}
        ${holder.owner && holder.held_ms > 0 && html`<span class="dim">${say('since', clock(new Date(Date.now() - holder.held_ms - look.age)), time(holder.held_ms))}</span>`}</p>
      <${Details} of=${holder} name=${state.name} />
      ${holder.details?.kind === 'keeps' && html`<p class="fine">${say(state.waiters.length > 0 ? 'keepsWanted' : 'keepsWhat')}</p>`}
    </div>
    <${LeaseBar} name=${state.name} holder=${holder} look=${look} />
    ${holder.owner && holder.handle && html`<div class="buttons">
      ${isOwn(state.name, holder) && html`<button type="button" class="release" onClick=${() => release(state, holder, look)}>${say('release')}…</button>`}
      ${mayEvict(state.name) && html`<button type="button" class="evict" onClick=${() => evict(state, holder, look)}>${say('evict')}…</button>`}</div>`}
  </li>`
}

/** The details that a holder or waiter has given. */
function Details ({ of, name }) {
  const { host, user, program, pid, started, link: href, preference, labels = {} } = of.details ?? {}
  const facts = [
    host && [say('host'), html`<a href=${link('locks', { host })}><${Text} of=${host} /></a>`],
    user && [say('user'), html`<${Text} of=${user} />`],
    (program || pid) && [say('program'), html`<${Text} of=${`${program ?? ''}${pid ? `[${pid}]` : ''}`} />`],
    started && !Number.isNaN(Date.parse(started)) && [say('started'), html`<time datetime=${started}>${clock(new Date(started))}</time>`],
    href && [say('link'), isLink(href) ? html`<a href=${href} rel="noreferrer noopener" target="_blank"><${Text} of=${href} /></a>` : html`<${Text} of=${href} />`],
    preference && [say('preference'), number(preference)],
    of.weight > 1 && [say('weight'), number(of.weight)],
    of.note && !of.details && of.note !== who(of) && [say('note'), html`<${Text} of=${of.note} />`],
    of.token && of.token !== '0' && [say('token'), html`<span class="token">${of.token}</span> <${Copy} text=${of.token} what=${say('token')} />`],
    of.handle && [say('owner'), html`<${Text} of=${of.owner} class="token" /> <${Copy} text=${of.handle} what=${say('owner')} />`]
  ].filter(Boolean)
  const shown = Object.entries(labels).filter(([key]) => of.owner || key !== 'exit') // a done job's exit stands beside its name
  return html`<dl class="facts">${facts.map(([what, value]) => html`<div key=${what}><dt>${what}</dt><dd>${value}</dd></div>`)}</dl>
    ${shown.length > 0 && html`<p class="labels">${shown.map(([key, value]) => html`<a key=${key} class="label" href=${link('locks', { label: `${key}=${value}` })}><${Text} of=${`${key}=${value}`} /></a>`)}</p>`}`
}

function Queue ({ state, look }) {
  const removes = mayRemove(state.name) && state.waiters.some((waiter) => waiter.here)
  const weighs = state.waiters.some((waiter) => waiter.weight > 1)
  const ranked = state.waiters.some((waiter) => waiter.details?.preference)
  return html`<section class="card" aria-labelledby="queue-title">
    <h2 id="queue-title">${say('queue')} ${state.waiters.length > 0 && html`<small class="dim">${number(state.waiters.length)}</small>`}</h2>
    ${state.waiters.length === 0
      ? html`<${Empty}>${say(look.fresh ? 'nobodyWaits' : 'unknownState')}<//>`
      : html`<table class="plain" id="waiters"><thead><tr><th scope="col" class="n wide">#</th><th scope="col">${say('waiter')}</th><th scope="col" class="wide">${say('host')}</th><th scope="col" class="wide">${say('mode')}</th>${weighs && html`<th scope="col" class="n">${say('weight')}</th>`}${ranked && html`<th scope="col" class="n">${say('preference')}</th>`}<th scope="col" class="n">${say('waitsFor')}</th>${removes && html`<td></td>`}</tr></thead>
        <tbody>${state.waiters.slice(0, SHOWN).map((waiter, i) => html`<tr key=${waiter.handle}><td class="n dim wide">${i + 1}</td><td>${isLink(waiter.details?.link) ? html`<a href=${waiter.details.link} rel="noreferrer noopener" target="_blank"><${Who} of=${waiter} /></a>` : html`<${Who} of=${waiter} />`}</td><td class="wide"><${Text} of=${waiter.details?.host ?? ''} /></td><td class="wide">${say(waiter.mode ?? 'exclusive')}</td>${weighs && html`<td class="n">${number(waiter.weight ?? 1)}</td>`}${ranked && html`<td class="n">${number(waiter.details?.preference ?? 0)}</td>`}<td class="n">${time(waiter.waited_ms)}</td>
          ${removes && html`<td class="n">${waiter.here && html`<button type="button" class="small remove" onClick=${() => remove(state, waiter)}>${say('remove')}…</button>`}</td>`}</tr>`)}</tbody></table>
        ${state.waiters.length > SHOWN && html`<p class="fine">${say('andMore', number(state.waiters.length - SHOWN))}</p>`}
        ${mayRemove(state.name) && state.waiters.some((waiter) => !waiter.here) && html`<p class="fine" id="elsewhere">${say('waitElsewhere')}</p>`}`}
  </section>`
}

// gapsOf returns the times that the service did not see, as ages, because its clock may differ from this machine's.
function gapsOf ({ data, age }) {
  const now = Date.parse(data?.begins) + data?.begins_ms + age
  return (data?.gaps ?? []).map((gap) => ({ from: now - Date.parse(gap.from), to: gap.to ? now - Date.parse(gap.to) : 0 }))
}

/** Returns what happened: the service's history, or the events received since the console was opened. */
function pastOf (name, past) {
  const own = past.problem === 'missing'
  const entries = own
    ? heard.events.filter((event) => event.name === name || event.kind === 'gap').map((event) => ({ ...event, seq: event.key, ago_ms: since(event.at) }))
    : named(past.data?.entries ?? []).map((entry) => ({ ...entry, ago_ms: entry.ago_ms + past.age }))
  return {
    own,
    entries,
    // If the search was cut short before it found anything: where it goes on.
    unsearched: entries.length === 0 ? past.data?.next : undefined,
    known: own || past.data !== null,
    fresh: own || past.fresh,
    begins: own ? heard.from ? since(heard.from) : 0 : past.data ? (past.data.begins_ms ?? 0) + past.age : 0,
    gaps: own ? entries.filter((entry) => entry.kind === 'gap').map(({ from, to }) => ({ from: since(from), to: to ? since(to) : 0 })) : gapsOf(past),
    // If older entries are left out: the age of the oldest one that is there.
    cut: !own && past.data?.next && entries.length > 0 ? entries.at(-1).ago_ms : undefined,
    warning: own ? '' : past.data?.warning ?? ''
  }
}

function Times ({ name, past, all, range, look }) {
  // If the lock itself is stale, the page has said so above.
  return html`<section class="card" aria-labelledby="timeline-title">
    <div class="head"><h2 id="timeline-title">${say('timeline')}</h2>
      <div class="ranges" role="group" aria-label=${say('range')}>${Object.keys(RANGES).map((word) => html`<button type="button" aria-pressed=${word === range} onClick=${() => refine({ range: word })}>${say(`range_${word}`)}</button>`)}</div></div>
    ${!all.own && look.fresh && html`<${Stale} look=${past} />`}
    ${all.known && html`<div class=${all.fresh ? 'known' : 'known old'}><${Timeline} entries=${all.entries} state=${look.fresh ? look.data : null} range=${RANGES[range]} begins=${all.unsearched ? 0 : all.begins} gaps=${all.gaps} cut=${all.cut} />
      <${Missing} name=${name} all=${all} /></div>`}
  </section>`
}

/** Says what the timeline and the history leave out. */
function Missing ({ name, all }) {
  return html`${all.cut !== undefined && html`<p class="fine cut">${say('cutOff', number(all.entries.length), clock(new Date(Date.now() - all.cut)))} <a href=${link('events', { prefix: name })}>${say('olderEvents')}</a></p>`}
    ${all.warning && html`<p class="note warn">${say('historyWarns', seen(all.warning))}</p>`}`
}

function History ({ name, past, all }) {
  const more = all.entries.length - SHOWN
  return html`<section class="card" aria-labelledby="history-title">
    <h2 id="history-title">${say('history')}</h2>
    <div class=${all.fresh ? 'known' : 'known old'}>
      ${all.entries.length === 0
        ? html`<${Empty}>${all.unsearched ? html`${say('notSearched')} <a href=${link('events', { prefix: name, older: all.unsearched })}>${say('olderEvents')}</a>` : say('noHistory')}<//>`
        : html`<ol id="history" class="told">${inOrder(all.entries).slice(0, SHOWN).map((entry) => html`<li key=${entry.seq}><${When} time=${entry.time} age=${entry.ago_ms} /> <span class="said"><${Sentence} entry=${entry} /></span> <small class="dim">${ago(entry.ago_ms)}</small></li>`)}</ol>`}
      ${more > 0 && html`<p class="fine">${say(all.cut === undefined ? 'andMore' : 'andMoreAtLeast', number(more))}</p>`}
      <p class="fine">${all.own ? say('sinceHeard', clock(new Date(Date.now() - all.begins))) : say('asSeenSince', clock(new Date(Date.now() - all.begins)), seen(past.data.instance ?? ''))}${past.data?.complete === false ? ` ${say('incomplete')}` : ''}</p></div>
  </section>`
}
