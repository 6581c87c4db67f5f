// Lists of locks. Sorted by name, they are pages of the service. Otherwise the console reads as many locks as
// it is asked to, because the service neither filters nor sorts by holders.

import { ask } from './api.js'
import { mark, since } from './clock.js'
import { firstOf, lastStateOf, modeOf, watch } from './lease.js'
import { who } from './text.js'

export const ROWS = 50
const PAGE = 1000

/** How many locks are read at first, and at most. Each request for more adds SCAN. Each look reads all of them. */
export const SCAN = 5000
export const MOST = 20_000

const WITHIN = 5000

/** Reads `count` locks from a position on: {locks, next, damaged}. A page may be empty although more follow. */
export async function askLocks ({ prefix, after, count }, signal) {
  const list = { locks: new Map(), damaged: [], next: after }
  const began = mark()
  do {
    const page = await ask('locks', { prefix, limit: Math.min(count - list.locks.size, PAGE), after: list.next }, signal)
    watch(page.locks, began)
    for (const state of page.locks) list.locks.set(state.name, state)
    if (page.damaged) list.damaged.push(page.damaged)
    list.next = page.next ?? ''
  } while (list.next && list.locks.size < count && since(began) < WITHIN)
  return { locks: [...list.locks.values()], damaged: list.damaged.join('; '), next: list.next }
}

const first = (state) => firstOf(state) ?? {}
const left = (state) => Math.min(Infinity, ...state.holders.map((holder) => holder.left_ms ?? Infinity))
const text = (value) => value ?? ''

/** The values by which the columns sort. */
export const columns = {
  name: (state) => state.name,
  state: (state, look) => lastStateOf(state, look),
  holder: (state) => text(who(first(state))),
  host: (state) => text(first(state).details?.host),
  held: (state) => first(state).held_ms ?? -1,
  lease: left,
  waiting: (state) => state.waiters.length,
  mode: (state) => modeOf(state)
}

/** The states that the select offers. The service does not filter by them. */
export const states = ['held', 'keeps', 'late', 'waited', 'reserved', 'shared', 'done']

const inState = (state, wanted, look) => wanted === 'waited' ? state.waiters.length > 0
  : wanted === 'shared' ? first(state).mode === 'shared'
  : wanted === 'held' ? ['held', 'keeps', 'late', 'reserved'].includes(lastStateOf(state, look))
  : lastStateOf(state, look) === wanted

const includes = (parts, wanted) => parts.some((part) => text(part).toLowerCase().includes(wanted.toLowerCase()))

const textsOf = (one) => [who(one), one.note, one.details?.host, one.details?.user]

const says = (lock, q) => includes([lock.name, ...lock.holders.flatMap(textsOf)], q)

/** Returns the position in the queue, from 0, of the waiter that filters match; -1: they match the lock or a holder, or nobody. */
export function placeOf (lock, { q, host, label }) {
  const filters = [
    q && !says(lock, q) && ((one) => includes(textsOf(one), q)),
    host && isAbout(host), label && ((one) => labelled(one.details, label))
  ].filter((fits) => fits && !lock.holders.some(fits))
  return filters.length === 0 ? -1 : lock.waiters.findIndex((waiter) => filters.some((fits) => fits(waiter)))
}

const isAbout = (host) => (one) => one.details?.host === host

function labelled (details, wanted) {
  const [key, ...value] = wanted.split('=')
  const labels = details?.labels ?? {}
  return Object.hasOwn(labels, key) && (value.length === 0 || labels[key] === value.join('='))
}

/** Reports whether the list needs all locks, and not one page of the service. */
export const isRefined = ({ q, state, host, label, sort, dir }) => Boolean(q || state || host || label || (sort && sort !== 'name') || dir === 'desc')

export function refined (locks, { prefix = '', q, state, host, label, sort = 'name', dir }, look) {
  const all = (lock) => [...lock.holders, ...lock.waiters]
  const kept = locks.filter((lock) => lock.name.startsWith(prefix) &&
    (!q || says(lock, q) || placeOf(lock, { q }) >= 0) &&
    (!state || inState(lock, state, look)) &&
    (!host || all(lock).some(isAbout(host))) &&
    (!label || all(lock).some((one) => labelled(one.details, label))))
  const by = columns[sort] ?? columns.name
  const keyed = kept.map((lock) => [by(lock, look), lock])
  const sign = dir === 'desc' ? -1 : 1
  const compare = (a, b) => a < b ? -1 : a > b ? 1 : 0
  return keyed.sort(([a, l], [b, m]) => sign * compare(a, b) || compare(l.name, m.name)).map(([, lock]) => lock)
}
