// Calls to the service that the console came from.

const KEY = 'bearer'
let bearer = sessionStorage.getItem(KEY) ?? ''

export const signedIn = () => bearer !== ''

/** Keeps a token for this tab, or none. */
export function signIn (token) {
  bearer = token
  if (token) sessionStorage.setItem(KEY, token)
  else sessionStorage.removeItem(KEY)
}

/** What a service said other than 200. */
export class Refusal extends Error {
  constructor (status, answer) {
    super(answer.error ?? `status ${status}`)
    this.status = status
    this.code = answer.code ?? ''
  }

  /** Why, as a word of the console. */
  get problem () {
    if (this.status === 401) return this.code === 'wrong_token' || signedIn() ? 'wrongToken' : 'signInNeeded'
    if (this.status === 403) return 'notAllowed'
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

/** Asks: query has the fields, of which empty ones are left out. */
export async function ask (call, query, signal) {
  const fields = Object.entries(query).filter(([, value]) => value !== '' && value !== undefined)
  return answer(await send(`v1/${call}?${new URLSearchParams(fields)}`, { signal }))
}

/** Does something. Without an answer it may have been done: the error is no Refusal then. */
export async function act (call, body, within = 30_000) {
  const headers = { 'Content-Type': 'application/json' }
  return answer(await send(`v1/${call}`, { method: 'POST', headers, body: JSON.stringify(body), signal: AbortSignal.timeout(within) }))
}

/** The stream of events, as a body to read. */
export async function listen (signal) {
  const response = await send('v1/events', { headers: { Accept: 'text/event-stream' }, signal })
  if (!response.ok) throw new Refusal(response.status, {})
  return response.body
}
