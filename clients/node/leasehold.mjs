// Distributed locks: the client of `leasehold serve`, for Node 20.3 and newer, without dependencies.
//
//   import { Client } from 'leasehold'
//
//   const client = new Client('http://127.0.0.1:7400')
//   await client.withLease('nightly-report', { ttl: 30, wait: 60 }, async (lease) => {
//     await writeReport({ token: lease.token, signal: lease.signal })
//   })
//
// leasehold.d.mts describes the names and their behaviour.

import { createHash, randomBytes } from 'node:crypto'
import os from 'node:os'
import { basename } from 'node:path'

// What is kept back of each TTL, because clocks run at different rates: a hundredth and 2 ms.
const DRIFT = 0.01
const DRIFT_LEAST = 2

// The longest wait of one call, and the pause after a call that had no answer, in
// milliseconds: a place in the queue is kept for two seconds. Calls above the server's limits pause for longer.
const LONGEST_WAIT = 10_000
const PAUSE = 200
const LIMITED = 1000

// The stream of events says something every 5 s: after so long without a word it is given up, and asked for again after a
// pause of at most so long, in milliseconds.
const SILENT = 15_000
const LONGEST_PAUSE = 5000

// The longest note and details that are filled up with those of this process, in bytes. Stores keep 4096.
const LONGEST_FILLED = 3000

// No timer of Node lasts longer, in milliseconds.
const LONGEST_TIMER = 2 ** 31 - 1

// Methods of Client that are for the classes of this file.
const call = Symbol('call')
const timeoutOf = Symbol('timeout')
const events = Symbol('events')

// The longest wait until the clock is looked at again: timers stand still while the machine sleeps.
const LOOK_EVERY = 1000

export class LeaseholdError extends Error {
  constructor (message, options) {
    super(message, options)
    this.name = this.constructor.name
    this.code = ''
  }
}

export class Busy extends LeaseholdError {}
export class Lost extends LeaseholdError {}
export class Released extends LeaseholdError {}
export class Unknown extends LeaseholdError {}
export class Refused extends LeaseholdError {}
export class TooHeavy extends Refused {}
export class Unauthorized extends Refused {}

/**
 * The clock of leases, in milliseconds. On Linux, performance.now() stands still while the machine sleeps, and
 * os.uptime() goes on, by hundredths of a second: what it is ahead by beyond that was slept.
 */
function now () {
  const sum = asleep()
  if (sum > slept + UPTIME_STEPS) slept = sum
  return performance.now() + slept - awake
}

const UPTIME_STEPS = 20

function asleep () {
  if (process.platform !== 'linux') return 0
  for (;;) {
    const before = performance.now()
    const sum = os.uptime() * 1000 - before
    if (performance.now() - before < UPTIME_STEPS / 4) return sum // else this process did not run in between
  }
}

const awake = asleep() // what it had slept, and been up, before this process
let slept = awake

const milliseconds = (seconds) => Math.floor(seconds * 1000)

function sleep (ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const stop = () => { clearTimeout(timer); reject(signal.reason) }
    const timer = setTimeout(() => { signal?.removeEventListener('abort', stop); resolve() }, ms)
    signal?.addEventListener('abort', stop, { once: true })
  })
}

export class Client {
  #base
  #token
  #timeout

  constructor (url, { token, timeout = 5 } = {}) {
    const parsed = URL.canParse(url) ? new URL(url) : {} // the error of URL would show a token in it
    if (!/^https?:$/.test(parsed.protocol) || parsed.search || parsed.hash) {
      throw new TypeError('the url must be http://host:port or https://host:port')
    }
    if (parsed.username || parsed.password) throw new TypeError('the url must not contain a password: pass token')
    if (!(timeout > 0 && timeout < Infinity)) throw new TypeError('timeout must be above 0 seconds')
    this.#base = parsed.href.replace(/\/$/, '')
    this.#token = `${token ?? ''}`.trim() // a file ends with a newline
    if (/[^ -~]/.test(this.#token)) throw new TypeError('the token must be printable ASCII') // else an error of fetch would show it
    this.#timeout = milliseconds(timeout)
  }

  async acquire (name, { ttl = 30, wait = Infinity, mode, limit, weight = 1, note, details, atLeast = 0, signal, yields = false, onWanted } = {}) {
    if (!(ttl > 0 && ttl < Infinity) || typeof wait !== 'number' || !(wait >= 0)) {
      throw new TypeError('ttl must be above 0 seconds, and wait not below 0')
    }
    if (!(atLeast >= 0 && atLeast < Infinity)) throw new TypeError('atLeast must not be below 0 seconds')
    if (!Number.isInteger(weight) || weight < 1) throw new TypeError('weight must be a whole number above 0')
    const claim = new Claim(this, { name, mode, limit, weight, note, details, atLeast, yields: yields || onWanted !== undefined })
    try {
      const lease = new Lease(claim, await claim.acquire(milliseconds(ttl), wait * 1000, signal), onWanted)
      lease.check() // the process may have stood still
      claim.unused = false
      return lease
    } catch (err) {
      const left = wait === 0 && !signal?.aborted && (err instanceof Busy || err instanceof Refused) && !maybeApplied(err) // nothing
      if (!left) claim.giveUp()
      throw err
    }
  }

  async withLease (name, options, work) {
    if (typeof options === 'function') [options, work] = [{}, options]
    const lease = await this.acquire(name, options)
    let result
    try {
      result = await work(lease)
    } catch (err) {
      await lease.release().catch(() => {}) // what the section says counts
      throw err
    }
    await lease.release()
    return result
  }

  show (name) { return this[call]('GET', `/v1/lock?${new URLSearchParams({ name })}`, undefined, { yes: { name } }) }

  async page ({ prefix = '', after = '', limit = 100 } = {}) {
    const query = new URLSearchParams({ prefix, limit })
    if (after) query.set('after', after)
    const { locks, next = '' } = await this[call]('GET', `/v1/locks?${query}`)
    if (!Array.isArray(locks) || typeof next !== 'string') throw new Unknown('an answer that is not a list of locks')
    return { locks, next }
  }

  async * locks (prefix = '') {
    for (let after = '', more = true; more; more = after !== '') {
      const { locks, next } = await this.page({ prefix, after, limit: 500 })
      yield * locks
      after = next
    }
  }

  features () { return this[call]('GET', '/v1/features') }

  async evict (name, handle, reason = '') {
    await this[call]('POST', '/v1/evict', { name, owner: handle, reason }, { yes: { outcome: 'done' } })
  }

  /** How long a call may take, in milliseconds. For the classes of this file. */
  get [timeoutOf] () { return this.#timeout }

  #headers () {
    const headers = { Accept: 'application/json' }
    if (this.#token) headers.Authorization = `Bearer ${this.#token}`
    return headers
  }

  /** The lines of a stream of events, until it ends; the status, if it does not begin. For the classes of this file. */
  async * [events] (query, signal) {
    const ends = new AbortController()
    const stop = AbortSignal.any([ends.signal, signal])
    let silence = setTimeout(() => ends.abort(), this.#timeout)
    try {
      const response = await fetch(`${this.#base}/v1/events?${query}`, { headers: this.#headers(), redirect: 'error', signal: stop })
      if (response.status !== 200) {
        yield response.status
        return
      }
      let rest = ''
      for await (const text of response.body.pipeThrough(new TextDecoderStream(), { signal: stop })) {
        clearTimeout(silence)
        silence = setTimeout(() => ends.abort(), SILENT)
        const lines = (rest + text).split('\n')
        rest = lines.pop()
        yield * lines
      }
    } finally {
      clearTimeout(silence)
      ends.abort()
    }
  }

  /** One call: the answer of a yes, which has all that is in yes, or it throws. For the classes of this file. */
  async [call] (method, path, body, { timeout = this.#timeout, signal, yes = {} } = {}) {
    const headers = this.#headers()
    if (body) headers['Content-Type'] = 'application/json'
    signal?.throwIfAborted()
    const ends = new AbortController() // AbortSignal.any and AbortSignal.timeout may be collected as garbage
    const stop = () => ends.abort(signal.reason)
    signal?.addEventListener('abort', stop)
    const timer = setTimeout(() => ends.abort(new Error('timed out')), Math.min(Math.max(Math.ceil(timeout), 1), LONGEST_TIMER))
    let status, answer
    try {
      const response = await fetch(this.#base + path, {
        method,
        headers,
        redirect: 'error',
        body: body && JSON.stringify(body),
        signal: ends.signal
      })
      status = response.status
      answer = await new Promise((resolve, reject) => { // by now, fetch may have lost its signal as garbage
        ends.signal.addEventListener('abort', () => reject(ends.signal.reason))
        response.json().then(resolve, reject)
      })
    } catch (err) {
      if (signal?.aborted) throw signal.reason
      throw new Unknown(`no answer: ${err.cause?.message ?? err.message}`, { cause: err })
    } finally {
      clearTimeout(timer)
      signal?.removeEventListener('abort', stop)
    }
    return judge(status, answer, yes)
  }
}

function judge (status, answer, yes) {
  if (answer === null || typeof answer !== 'object') throw new Unknown(`HTTP ${status} without an answer of the service`)
  const text = answer.error ?? `HTTP ${status}`
  if (status === 200) {
    // of what stands between, or to another call
    if (Object.entries(yes).some(([k, v]) => answer[k] !== v)) throw new Unknown('an answer to another call')
    return answer
  }
  if (status === 409) {
    const { holder, code } = answer
    throw Object.assign(new Busy(holder?.note ? `${text}: ${holder.note}` : text), { holder, code })
  }
  if (status === 410) throw Object.assign(new Lost(text), { code: answer.code })
  if (answer.outcome === 'refused') {
    const Kind = status === 401 || status === 403 ? Unauthorized : answer.code === 'too_heavy' ? TooHeavy : Refused
    throw Object.assign(new Kind(text), { status, code: answer.code })
  }
  throw new Unknown(text) // of this service or of what stands before it
}

/** Whether a call, or an earlier attempt of it, may have been applied although it was refused. */
function maybeApplied (err) {
  return err instanceof Refused && (err.code === 'read_only' || err.code === 'full')
}

/** What people are told of this process. No name service is asked, which may hang. */
function mine () {
  const { USER, LOGNAME, USERNAME } = process.env
  const id = process.getuid?.()
  return {
    host: os.hostname(),
    user: USER || LOGNAME || USERNAME || (id === 0 ? 'root' : id?.toString()),
    pid: process.pid,
    program: basename(process.argv[1] ?? 'node'),
    started: new Date(performance.timeOrigin).toISOString().replace(/\.\d+Z$/, 'Z')
  }
}

/** The details that are sent, filled up with those of this process if there is room, and the note. */
function described (details = {}, note = '') {
  const text = details.text ?? ''
  if (note && text && note !== text) throw new TypeError('note and details.text must be the same')
  const room = Buffer.byteLength(JSON.stringify(details) + (note || text)) <= LONGEST_FILLED
  const filled = room ? { ...mine(), ...details } : details
  const { host = '', program = '', pid } = filled
  return { details: filled, note: note || text || `${host} ${program}${pid ? `[${pid}]` : ''}`.trim() }
}

/** One owner's calls for one name. They are numbered, so that one that comes late is refused. */
class Claim {
  #client
  #same
  #details
  #atLeast
  #count = 0
  #silent = 0 // the first acquire without an answer, which may be served late
  unused = true // until the caller has the lease
  #shortest = Infinity // the shortest TTL of a call without an answer: served late, it restarts the lease with it

  constructor (client, { name, mode, limit, weight, note, details, atLeast, yields }) {
    const said = described(details, note)
    this.#client = client
    this.#same = { name, owner: randomBytes(20).toString('hex'), mode, limit, weight: weight > 1 ? weight : 0, note: said.note }
    this.#details = said.details
    this.yields = yields
    this.#atLeast = milliseconds(atLeast)
  }

  get name () { return this.#same.name }
  get owner () { return this.#same.owner }
  get timeout () { return this.#client[timeoutOf] }

  async #call (what, fields, options) {
    const { name, owner } = this.#same
    const yes = what === 'release' ? { outcome: 'done' } : { outcome: 'granted', name, owner }
    const number = ++this.#count
    const answered = (this.#silent || number) - 1 // up to this number, no acquire is without an answer
    try {
      const body = Object.entries({ ...this.#same, ...fields, call: number, answered }).filter(([, value]) => value)
      return await this.#client[call]('POST', `/v1/${what}`, Object.fromEntries(body), { ...options, yes })
    } catch (err) {
      const isAnswer = err instanceof Busy || err instanceof Lost || err instanceof Refused
      if (!isAnswer || maybeApplied(err) || options.signal?.aborted) {
        if (what === 'acquire') this.#silent ||= number
        if (fields.ttl_ms) this.#shortest = Math.min(this.#shortest, fields.ttl_ms)
      }
      throw err
    }
  }

  /** The grant: its token, and its TTL, which counts from since, as far as it is sure. The store may grant less than asked. */
  #granted (sent, asked, answer) {
    const { ttl_ms: ttl, waited_ms: waited = 0, token, wanted } = answer
    if (!(ttl > 0) || !(waited >= 0) || !/^\d+$/.test(token)) throw new Unknown('an answer that is not a grant')
    return { since: sent + waited, ttl: Math.min(ttl, this.#shortest), asked, token: BigInt(token), wanted: wanted === true }
  }

  async acquire (ttl, wait, signal) {
    signal?.throwIfAborted()
    const end = now() + wait
    const patience = Math.min(ttl, Math.max(wait, this.timeout))
    let silent // since when no instance has said yes or no
    let placed = false // whether there may be a place in the queue
    let limited = false // whether too many calls wait: one that does not keeps the place
    for (;;) {
      const sent = now()
      const left = limited ? 0 : Math.min(Math.max(Math.floor(end - sent), 0), LONGEST_WAIT)
      limited = false
      try {
        return this.#granted(sent, ttl, await this.#call('acquire',
          { ttl_ms: ttl, wait_ms: left, queue: wait !== 0, at_least_ms: this.#atLeast, details: this.#details, wanted: this.yields },
          { timeout: this.timeout + left, signal }))
      } catch (err) {
        signal?.throwIfAborted() // its reason may look like an answer
        if (err instanceof Busy) {
          silent = undefined
          placed = true
          if (now() >= end) throw err
          if (['not_yet', 'draining'].includes(err.code) || left === 0) await sleep(PAUSE, signal)
        } else if (placed && err.status === 429 && now() < end) {
          silent = undefined
          limited = true
          await sleep(Math.min(LIMITED, end - now()), signal)
        } else if (err instanceof Unknown || maybeApplied(err)) {
          placed = true
          silent ??= now() < sent + left ? now() : sent // an instance that had the call wait was there until now
          if (now() - silent >= patience || now() >= end) throw err
          await sleep(PAUSE, signal)
        } else throw err
      }
    }
  }

  async renew (ttl, timeout) {
    const sent = now()
    return this.#granted(sent, ttl, await this.#call('renew', { ttl_ms: ttl, wanted: this.yields }, { timeout }))
  }

  /** Releases, asked again after no answer until that time. Lost is only thrown by the first answer. */
  async release (until) {
    for (let asked = false; ; asked = true) {
      try {
        const timeout = Math.min(this.timeout, Math.max(until - now(), PAUSE))
        return await this.#call('release', { at_least_ms: this.#atLeast, unused: this.unused && this.#atLeast > 0 }, { timeout })
      } catch (err) { // a loss after an unknown outcome: either call may have been the one that ended it
        if (err instanceof Lost && asked) throw new Unknown(`released or lost: ${err.message}`, { cause: err })
        if (!(err instanceof Unknown || maybeApplied(err)) || now() >= until) throw err
        await sleep(PAUSE)
      }
    }
  }

  /** Listens until others wait, or signal ends it: whether they do. What is not heard, a renewal tells. */
  async listen (signal) {
    const handle = createHash('sha256').update(`leasehold owner\n${this.owner}`).digest().subarray(0, 15).toString('base64url')
    for (let pause = PAUSE; !signal.aborted; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        const query = new URLSearchParams({ prefix: this.name, kind: 'wanted' })
        for await (const line of this.#client[events](query, signal)) {
          if (typeof line === 'number') { // a status
            if (line !== 429 && (line < 500 || line === 501)) return false // there will be no stream
          } else {
            pause = PAUSE
            if (line.startsWith('data:') && JSON.parse(line.slice(5)).handle?.endsWith(`~${handle}`)) return true
          }
        }
      } catch {} // it was cut, or is none
      await sleep(pause, signal).catch(() => {})
    }
    return false
  }

  /** Leaves the queue, or releases what may have been granted, without holding up the caller. */
  giveUp () {
    this.release(now() + this.timeout).catch(() => {}) // the place ends in seconds, the grant with its TTL
  }
}

export class Lease {
  #claim
  #ttl = 0 // of the next renewal
  #third // when it is due
  #deadline = 0
  #over = new AbortController()
  #wanted = new AbortController()
  #listening = new AbortController() // ends when nothing is to be heard any more
  #onWanted
  #released = false
  #timer
  #renewal
  #failure // of the latest renewal
  #calling = Promise.resolve() // the renewal under way: the server refuses one that another has overtaken

  /** For Client.acquire. */
  constructor (claim, grant, onWanted) {
    this.#claim = claim
    this.#onWanted = onWanted
    this.name = claim.name
    this.token = grant.token
    this.#prolong(grant)
    this.#renewIn(this.#third)
    if (grant.wanted) this.#want()
    else if (claim.yields) claim.listen(this.#listening.signal).then((wanted) => { if (wanted) this.#want() })
  }

  get owner () { return this.#claim.owner }
  get signal () { return this.#over.signal }
  get wanted () { return this.#wanted.signal }

  get left () { return this.#held() ? Math.max(this.#deadline - now(), 0) / 1000 : 0 }

  check () {
    if (this.#released) throw new Released('the lease was released')
    if (!this.#held()) throw this.signal.reason
  }

  async extend (ttl = 0) {
    if (!(ttl >= 0 && ttl < Infinity)) throw new TypeError('ttl must not be below 0 seconds')
    this.check()
    await this.#renewed(() => Math.max(milliseconds(ttl), this.#ttl))
    this.check()
    return this.left
  }

  async release () {
    if (this.#released) return
    const held = this.#held()
    this.#released = true
    this.#stop()
    if (!held) {
      this.#claim.giveUp() // the engine may keep it for longer than its holder may count on
      throw this.signal.reason
    }
    await this.#claim.release(this.#deadline)
  }

  #held () {
    if (!this.#released && now() >= this.#deadline) {
      const [why, options] = this.#failure ? [`: ${this.#failure.message}`, { cause: this.#failure }] : ['']
      this.#lose(Object.assign(new Lost(`the deadline passed without a renewal${why}`, options), { code: 'deadline' }))
    }
    return !this.#released && !this.signal.aborted
  }

  #lose (cause) {
    if (this.#released || this.signal.aborted) return
    this.#stop()
    this.#over.abort(cause)
  }

  #want () {
    if (this.#wanted.signal.aborted || !this.#held()) return
    this.#listening.abort()
    this.#wanted.abort(new Error('others wait for the lock'))
    if (this.#onWanted) queueMicrotask(() => this.#onWanted(this)) // so that what it throws is nobody else's
  }

  #stop () {
    clearTimeout(this.#timer)
    clearTimeout(this.#renewal)
    this.#listening.abort()
  }

  #prolong (grant) {
    this.#ttl = Math.max(this.#ttl, grant.asked, grant.ttl)
    this.#third = grant.ttl / 3
    this.#deadline = Math.max(this.#deadline, deadline(grant))
    this.#watch()
  }

  #watch () {
    clearTimeout(this.#timer)
    if (!this.#held()) return
    this.#timer = setTimeout(() => this.#watch(), Math.min(Math.max(this.#deadline - now(), 1), LOOK_EVERY))
  }

  #renewIn (pause) {
    const due = now() + pause
    const look = () => {
      const rest = due - now()
      if (rest <= 0) return this.#renew()
      this.#renewal = setTimeout(look, Math.min(rest, LOOK_EVERY))
    }
    look()
  }

  async #renew () {
    if (!this.#held()) return
    let pause = this.#third / 4 // after a failure: the earlier deadline stands
    try {
      await this.#renewed(() => this.#ttl)
      pause = this.#third
    } catch {} // Lost has been noticed
    if (this.#held()) this.#renewIn(pause)
  }

  /** One renewal, when the one before has ended. ask tells its TTL. It leaves time for another one. */
  #renewed (ask) {
    const renewal = this.#calling.then(async () => {
      this.check()
      try {
        const timeout = Math.min(this.#claim.timeout, this.#third, this.#deadline - now())
        const grant = await this.#claim.renew(ask(), timeout)
        this.#failure = undefined
        if (!this.#held()) return // an answer that comes late brings nothing back
        this.#prolong(grant)
        if (grant.wanted) this.#want()
      } catch (err) {
        this.#failure = err
        if (err instanceof Lost) this.#lose(err)
        throw err
      }
    })
    this.#calling = renewal.catch(() => {})
    return renewal
  }
}

function deadline ({ since, ttl }) { return since + ttl - ttl * DRIFT - DRIFT_LEAST }

if (Symbol.asyncDispose) {
  Lease.prototype[Symbol.asyncDispose] = function () { return this.release() }
}
