// What is known about a lease's time. The console does not count on from an answer: the last answer stands
// until the next one. A lease is called late only if the look before was answered in time too: the first look
// after a silence may come before the renewals that the silence held up.

import { STALE } from './look.js'
import { limitOf } from './why.js'
import { clockIn, say, time } from './words.js'

// The time between a grant and its first renewal is longer than this.
const FIRST = 500
// If a lease was renewed, its deadline has moved by at least this, however long the two answers took.
const MOVED = 300
const REMEMBERED = 20_000

const watched = new Map() // lease → its last deadline

/** Records the deadlines in an answer to a call that was sent at `began`. */
export function watch (states, began) {
  for (const state of states) {
    for (const holder of state.holders) {
      if (!holder.left_ms || holder.ttl_ms) continue
      const key = keyOf(state.name, holder)
      const ends = began.running + holder.left_ms
      const before = watched.get(key)
      const gap = before ? Math.max(began.running - before.at.running, began.wall - before.at.wall) : Infinity
      const silent = gap < STALE && ends < before.ends + MOVED ? before.silent + gap : 0
      watched.delete(key) // so that it becomes the last in the map
      watched.set(key, { at: began, ends, silent })
    }
  }
  for (const key of watched.keys()) {
    if (watched.size <= REMEMBERED) break
    watched.delete(key)
  }
}

const keyOf = (name, holder) => JSON.stringify([name, holder.handle ?? '', holder.token])

/** Reports whether a program renews leases of that kind. */
export const renews = (kind) => !kind || kind === 'keeps'

/** Reports whether somebody means to renew a lease: by its kind if it has details, otherwise if it was renewed before. */
export const isRenewed = (holder) => holder.details ? renews(holder.details.kind) : holder.held_ms > 0 && holder.held_ms - holder.renewed_ms >= FIRST

/**
 * Describes a lease's time: its tone (good, late, calm or unknown), the share of its TTL that is left,
 * or null, and a sentence.
 */
export function leaseOf (name, holder, look) {
  const left = holder.left_ms
  const kind = holder.details?.kind
  const share = holder.ttl_ms && left ? Math.min(left / holder.ttl_ms, 1) : null
  const until = () => clockIn(left - look.age)
  if (!look.fresh) return { tone: 'unknown', share: null, text: say('unknownState') }
  if (!holder.owner) return { tone: 'calm', share: null, text: left ? say('keptUntil', until()) : say('kept') }
  if (!left) return { tone: 'calm', share: null, text: say('noDeadline') }
  if (kind === 'reserved') return { tone: 'calm', share, text: say('until', until()) }
  if (kind === 'manual' || kind === 'once') return { tone: 'calm', share, text: say('leftUnrenewed', time(left)) }
  if (holder.ttl_ms && holder.renewed_ms !== undefined) {
    if (holder.renewed_ms <= holder.ttl_ms / 2) return { tone: 'good', share, text: say('left', time(left)) }
    if (!isRenewed(holder)) return { tone: 'calm', share, text: say('neverRenewed', time(left)) }
    return { tone: look.row > 1 ? 'late' : 'calm', share, text: say('notRenewed', time(holder.renewed_ms), time(left)) }
  }
  const silent = Math.max(watched.get(keyOf(name, holder))?.silent ?? 0, holder.unrenewed_ms ?? 0)
  return { tone: 'calm', share: null, text: silent > STALE ? say('noneSeen', time(silent), time(left)) : say('left', time(left)) }
}

/** Returns the state of a lock from its holders, as a word for filters and badges. */
export function stateOf (state, look) {
  if (!look.fresh) return 'unknown'
  const holders = state.holders.filter((holder) => holder.owner)
  if (holders.length === 0) return state.holders.length > 0 ? 'done' : 'free'
  if (holders.some((holder) => leaseOf(state.name, holder, look).tone === 'late')) return 'late'
  if (holders.some((holder) => holder.details?.kind === 'reserved')) return 'reserved'
  return holders.every((holder) => holder.details?.kind === 'keeps') ? 'keeps' : 'held'
}

/** Returns the state of a lock as of the look's answer, however old that is. */
export const lastStateOf = (state, look) => stateOf(state, { fresh: true, age: look.age, row: look.lastRow })

/** Returns the first who holds, or else the first hold that is kept for nobody. */
export const firstOf = (state) => state.holders.find((holder) => holder.owner) ?? state.holders[0]

/** Returns "exclusive", or how much of a shared lock is used. brief is for narrow places. */
export function modeOf (state, brief) {
  const count = state.holders.length // with what is kept, which uses the limit too
  if (firstOf(state)?.mode !== 'shared') return say('exclusive')
  const limit = limitOf(state)
  if (state.used > count) return limit ? say(brief ? 'shares' : 'weighs', state.used, limit) : say('weighsOpen', state.used)
  return limit ? say('shares', count, limit) : say('sharesOpen', count)
}

/** Returns how long the first in the queue has waited, in milliseconds; 0: unknown. */
export const longestWait = (state) => Math.max(0, ...state.waiters.map((waiter) => waiter.waited_ms ?? 0))
