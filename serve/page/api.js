// Calls to the service that the console came from.

const KEY = 'bearer'
let bearer = sessionStorage.getItem(KEY) ?? ''

export const signedIn = () => bearer !== ''

/** Keeps a token for this tab; "" removes it. */
export function signIn (token) {
  bearer = token
  if (token) sessionStorage.setItem(KEY, token)
  else sessionStorage.removeItem(KEY)
}

/** An answer of the service with a status other than 200. */
export class Refusal extends Error {
  constructor (status, answer) {
    super(answer.error ?? `status ${status}`)
    this.status = status
    this.code = answer.code ?? ''
    this.holder = answer.holder // who is in the way, if that may be known
  }

  /** The reason, as a word of the console. */
  get problem () {
    if (this.status === 401) return this.code === 'wrong_token' || signedIn() ? 'wrongToken' : 'signInNeeded'
    if (this.status === 403) return 'notAllowed'
    if (this.status === 429) return 'limited'
    return this.status === 404 || this.status === 501 ? 'missing' : 'unknown'
  }
}

function send (path, options) {
  const headers = { Accept: 'application/json', ...options.headers }
  if (bearer) headers.Authorization = `Bearer ${bearer}`
  return fetch(path, { ...options, headers, cache: 'no-store', redirect: 'error' })
}

async function answer (response) {
  if (response.ok) return response.json()
  throw new Refusal(response.status, await response.json().catch(() => ({})))
}

/** Makes a call that reads. Empty fields of query are omitted. */
export async function ask (call, query, signal) {
  const fields = Object.entries(query).filter(([, value]) => value !== '' && value !== undefined)
  return answer(await send(`v1/${call}?${new URLSearchParams(fields)}`, { signal }))
}

/** Makes a call that changes something. If there was no answer, it may have been done: the error is then no Refusal. */
export async function act (call, body, within = 30_000) {
  const headers = { 'Content-Type': 'application/json' }
  return answer(await send(`v1/${call}`, { method: 'POST', headers, body: JSON.stringify(body), signal: AbortSignal.timeout(within) }))
}

/** Returns the stream of events, as a body to read. */
export async function listen (signal) {
  const response = await send('v1/events', { headers: { Accept: 'text/event-stream' }, signal })
  if (!response.ok) throw new Refusal(response.status, {})
  return response.body
}
