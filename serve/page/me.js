// The client's identity and rights, and the service's abilities.

import { ask, Refusal } from './api.js'
import { redraws } from './html.js'

const AGAIN = 3000
const EVERY = 60_000
const WITHIN = 10_000

/**
 * client is null until the service has identified the client. `told` is 'missing' if the service has no
 * such call. While the service does not answer, its last answer stands.
 */
export const me = { client: null, told: '', features: {} }

const [redraw, useAnswers] = redraws()

export function useMe () {
  useAnswers()
  return me
}

let timer
let asked = 0

/** Forgets who looks: somebody else does. */
export const forgetWho = () => { me.client = null }

export async function askWho () {
  clearTimeout(timer)
  const turn = ++asked
  const now = { client: null, told: '' }
  let again = EVERY
  try {
    now.client = await ask('me', {}, AbortSignal.timeout(WITHIN))
  } catch (error) {
    now.told = error instanceof Refusal ? error.problem : 'unknown'
    if (now.told === 'unknown' || now.told === 'limited') {
      again = AGAIN
      now.client = me.client
    }
  }
  if (turn !== asked) return // somebody else may look by now
  Object.assign(me, now)
  try {
    if (me.told === '' || me.told === 'missing') now.features = await ask('features', {}, AbortSignal.timeout(WITHIN))
  } catch {
    again = AGAIN
  }
  if (turn !== asked) return
  Object.assign(me, now)
  redraw()
  timer = setTimeout(askWho, again)
}

/** Reports whether the client may do something with a name. If the service does not say, its answer to the attempt will. */
export const may = (right, name) => me.client === null ? me.told === 'missing'
  : (me.client.rights ?? []).some((rule) => name.startsWith(rule.prefix) && rule.rights.includes(right))

/** Whether the service supports an action. */
export const can = {
  evict: () => me.features.evicts === true,
  reset: () => me.features.evicts === true,
  limit: () => me.features.limits === true,
  reserve: () => me.client?.reserves === true,
  remove: () => me.client?.removes === true
}
