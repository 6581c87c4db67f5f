// Why the first in a queue waits, and what another limit would change. The rule is the stores' rule: claims
// are served in order, and shared ones hold together while their weights fit into the smallest limit.

import { number, say } from './words.js'

const weightOf = (one) => one.weight || 1
const smaller = (a, b) => a && b ? Math.min(a, b) : a || b
const isShared = (one) => one.mode === 'shared'

/** Returns the smallest limit that holders have set themselves; 0: none. Waiters' limits are unknown. */
export const ownLimitOf = (state) => state.holders.reduce((least, holder) => smaller(least, holder.limit ?? 0), 0)

/** Returns the limit that counts: the smallest of the holders' own and the operator's; 0: none. */
export const limitOf = (state) => smaller(ownLimitOf(state), state.limit ?? 0)

const usedOf = (state) => state.holders.filter(isShared).reduce((sum, holder) => sum + weightOf(holder), 0)
const fits = (waiter, used, limit) => isShared(waiter) && (!limit || used + weightOf(waiter) <= limit)

/** Returns a sentence, or "" if the holders explain enough. */
export function whyWaits (state) {
  const [first, ...others] = state.waiters
  if (!first || state.holders.length === 0) return ''
  if (!state.holders.every(isShared)) return isShared(first) ? say('whyHeldAlone') : ''
  if (!isShared(first)) return say('whyWantsAlone')
  const used = usedOf(state)
  const own = ownLimitOf(state)
  const limit = limitOf(state)
  if (fits(first, used, limit)) return say('whyNone')
  const parts = [say('whyLimit', number(used), number(limit), weightOf(first) > 1 && number(weightOf(first)))]
  if (limit === state.limit) parts.push(say('whyOperator', own > limit && number(own)))
  if (others.some((other) => fits(other, used, limit))) parts.push(say('whyOrder'))
  return parts.join(say('gapOfSentences'))
}

/** Returns sentences about the effect of a limit that an operator would set. */
export function effectOf (state, limit) {
  const own = ownLimitOf(state)
  const counts = smaller(limit, own)
  const effects = [limit === counts && limit ? say('effectCounts', number(limit)) : own ? say('effectOwn', number(own)) : say('effectNone')]
  const used = usedOf(state)
  if (!state.holders.every(isShared)) effects.push(say('effectExclusive'))
  else {
    if (counts && used > counts) effects.push(say('effectOver', number(used)))
    let sum = used
    let admitted = 0
    for (const waiter of state.waiters) {
      if (!fits(waiter, sum, counts)) break
      sum += weightOf(waiter)
      admitted++
    }
    if (state.waiters.length > 0) effects.push(admitted > 0 ? say('effectAdmits', number(admitted), number(state.waiters.length)) : say('effectNobody'))
  }
  const heavy = state.waiters.filter((waiter) => isShared(waiter) && counts && weightOf(waiter) > counts).length
  if (heavy > 0) effects.push(say('effectHeavy', number(heavy)))
  return effects
}
