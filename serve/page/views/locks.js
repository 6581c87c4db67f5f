// The table of locks.

import { reserve } from '../actions.js'
import { html, useMemo, useState } from '../html.js'
import { firstOf, modeOf } from '../lease.js'
import { askLocks, columns, isRefined, MOST, placeOf, refined, ROWS, SCAN, states } from '../list.js'
import { useLook } from '../look.js'
import { can, useMe } from '../me.js'
import { Empty, Field, Filter, Filters, LeaseBar, LockLink, Stale, State } from '../parts/small.js'
import { move, refine } from '../route.js'
import { seen, Text, Who } from '../text.js'
import { number, say, time } from '../words.js'

export function Locks ({ query }) {
  useMe()
  const prefix = query.prefix ?? ''
  const narrowed = isRefined(query)
  const [scan, setScan] = useState(SCAN)
  const [back, setBack] = useState([]) // cursors of the pages before this one
  const place = narrowed ? { prefix, after: '', count: scan } : { prefix, after: query.after ?? '', count: ROWS }
  const minds = ({ name }) => name === undefined || name.startsWith(prefix)
  const look = useLook((signal) => askLocks(place, signal), ['locks', place], { vital: true, minds })
  const known = look.data ? look : look.before ?? look
  const list = known.data
  // Sort with each answer, not with each tick: thousands of locks take a while.
  const all = useMemo(() => list ? refined(list.locks, query, known) : [], [list, known.lastRow > 1, JSON.stringify(query)])
  const page = Math.max(0, Math.min(query.p ?? 0, Math.ceil(all.length / ROWS) - 1)) // fewer may match by now
  const shown = narrowed ? all.slice(page * ROWS, (page + 1) * ROWS) : all
  const turn = {
    first: narrowed ? page === 0 : !query.after,
    last: narrowed ? (page + 1) * ROWS >= all.length : !list?.next,
    back: () => {
      if (narrowed) return move({ p: page > 1 ? page - 1 : '' })
      move({ after: back.at(-1) ?? '' })
      setBack(back.slice(0, -1))
    },
    on: () => {
      if (narrowed) return move({ p: page + 1 })
      setBack([...back, query.after ?? ''])
      move({ after: list.next })
    }
  }
  // The first look cannot know yet which leases are late.
  const told = look.fresh && look.data && (query.state !== 'late' || look.row > 1)
  return html`<section class="view">
    <div class="head"><h1 tabindex="-1">${say('locks')}</h1>
      ${can.reserve() && html`<button type="button" id="reserve" onClick=${() => reserve()}>${say('reserveName')}</button>`}</div>
    <${Filters} label=${say('filterAndSort')} count=${['prefix', 'state', 'host', 'label', 'sort'].filter((field) => query[field]).length}
      search=${html`<${Filter} id="q" label=${say('search')} value=${query.q ?? ''} />`}>
      <${Filter} id="prefix" label=${say('prefix')} value=${prefix} />
      <${Field} label=${say('state')}><select id="state" value=${query.state ?? ''} onChange=${(e) => refine({ state: e.target.value, after: '', p: '' })}>
        <option value="">${say('any')}</option>${states.map((word) => html`<option value=${word}>${say(`in_${word}`)}</option>`)}
      </select><//>
      <${Filter} id="host" label=${say('host')} value=${query.host ?? ''} />
      <${Filter} id="label" label=${say('label')} value=${query.label ?? ''} />
      ${(narrowed || prefix) && html`<button type="button" class="quiet" onClick=${() => refine({ q: '', prefix: '', state: '', host: '', label: '', sort: '', dir: '', after: '', p: '' })}>${say('clear')}</button>`}
    <//>
    <${Stale} look=${look} />
    ${list?.damaged && html`<p class="note warn">${say('damaged', seen(list.damaged))}</p>`}
    ${list && html`<div class=${known.fresh ? 'known' : 'known old'}>
      <${Table} rows=${shown} look=${known} query=${query} />
      ${told && shown.length === 0 && html`<${Empty}>${say(narrowed && list.locks.length > 0 ? 'noneMatches' : list.next || !turn.first ? 'noneHere' : 'none')}
        ${!narrowed && !prefix && !list.next && turn.first && html`<p>${say('firstLock')} <code>leasehold --store ${location.origin} run NAME -- COMMAND</code></p>`}<//>`}
      <div class="pages">
        <output id="count">${narrowed ? countOf(all.length, list, page) : pageOf(shown.length, list, query.after)}</output>
        ${narrowed && list.next && html`<span class="note" id="more">${say('scanned', number(list.locks.length))}
          ${scan < MOST && html`<button type="button" id="more-button" onClick=${() => setScan(scan + SCAN)}>${say('scanOn', number(SCAN))}</button>`}</span>`}
        <nav aria-label=${say('pages')}>
          <button type="button" id="back" disabled=${turn.first} onClick=${turn.back}>${say('pageBack')}</button>
          <button type="button" id="on" disabled=${turn.last} onClick=${turn.on}>${say('pageOn')}</button>
        </nav>
      </div>
    </div>`}
  </section>`
}

function countOf (count, list, page) {
  const from = page * ROWS
  return count <= ROWS && !list.next
    ? say('count', number(count), number(list.locks.length))
    : say('countPage', number(Math.min(from + 1, count)), number(Math.min(from + ROWS, count)), number(count), number(list.locks.length), Boolean(list.next))
}

const pageOf = (count, list, after) => !after && !list.next ? say('countAll', number(count)) : say(list.next ? 'countOfMore' : 'countLast', number(count))

const numbers = new Set(['held', 'waiting'])

function Table ({ rows, look, query }) {
  const sort = query.sort ?? 'name'
  const down = query.dir === 'desc'
  const by = (name) => refine({ sort: name === 'name' ? '' : name, dir: sort === name && !down ? 'desc' : sort === name ? '' : name === 'waiting' || name === 'held' ? 'desc' : '', p: '', after: '' })
  return html`<table class="locks" role="table">
    <caption class="hidden">${say('locks')}</caption>
    <thead role="rowgroup"><tr role="row">${Object.keys(columns).map((name) => html`
      <th role="columnheader" scope="col" class=${`c-${name} ${numbers.has(name) ? 'n' : ''}`} aria-sort=${sort === name ? down ? 'descending' : 'ascending' : 'none'}>
        <button type="button" onClick=${() => by(name)}>${say(`col_${name}`)}<span aria-hidden="true">${sort === name ? down ? ' ↓' : ' ↑' : ''}</span></button></th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map((state) => html`<${Row} key=${state.name} state=${state} look=${look} query=${query} />`)}</tbody>
  </table>`
}

function Row ({ state, look, query }) {
  const holder = firstOf(state)
  const others = state.holders.length - 1
  const waits = state.waiters.length
  const place = placeOf(state, query)
  return html`<tr class="row" role="row">
    <td role="cell" class="c-name"><${LockLink} name=${state.name} /></td>
    <td role="cell" class="c-state"><${State} state=${state} look=${look} /></td>
    <td role="cell" class="c-holder">${holder && (holder.owner ? html`<${Who} of=${holder} />` : html`<${Done} holder=${holder} />`)}${others > 0 && html` <small class="dim">+${others}</small>`}${place >= 0 && html`<small class="found">${say('inQueue', html`<${Who} of=${state.waiters[place]} />`, number(place + 1))}</small>`}</td>
    <td role="cell" class="c-host">${holder?.details?.host && html`<${Text} of=${holder.details.host} />`}</td>
    <td role="cell" class="c-held n">${holder?.owner && holder.held_ms ? time(holder.held_ms) : ''}</td>
    <td role="cell" class="c-lease">${holder && html`<${LeaseBar} name=${state.name} holder=${holder} look=${look} />`}</td>
    <td role="cell" class="c-waiting n">${waits > 0 && html`<b>${number(waits)}</b><span class="unit"> ${say('waitingUnit')}</span>`}</td>
    <td role="cell" class=${holder?.mode === 'shared' ? 'c-mode' : 'c-mode plain-mode'}>${modeOf(state, true)}</td>
  </tr>`
}

/** A hold without an owner: a job that is done, with its exit code. */
export function Done ({ holder }) {
  const exit = holder.details?.labels?.exit
  return html`${exit !== undefined && html`<span class=${exit === '0' ? 'exit good' : 'exit bad'}>${say('exit', seen(exit))}</span> `}<${Who} of=${holder} />`
}
