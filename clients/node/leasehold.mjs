// Leases of `leasehold serve`, for Node 20 and newer, with nothing but its standard library.
//
//   import { Client } from './leasehold.mjs'
//
//   const client = new Client('http://127.0.0.1:7400')
//   await client.withLease('nightly-report', { ttl: 30, wait: 60 }, async (lease) => {
//     await writeReport({ token: lease.token, signal: lease.signal })
//   })
//
// or, where the runtime has it, `await using lease = await client.acquire('nightly-report')`.
//
// A lease renews itself every third of its TTL. It is lost at its deadline by this machine's
// clock, whatever the server says or does not say: then lease.signal is aborted. A timer
// cannot run while the process is busy, so lease.check() before each step that only the holder
// may do looks at the clock itself. On Linux the time that the machine sleeps counts. After it
// wakes up, lease.check() and lease.left are right at once, and within a second the lease is
// renewed, or lease.signal aborted.

import { randomBytes } from 'node:crypto'
import os from 'node:os'

// What is kept back of each TTL, because clocks run at different rates: a hundredth and 2 ms.
const DRIFT = 0.01
const DRIFT_LEAST = 2

// The longest wait of one call, and the pause after a call that had no answer, in
// milliseconds: a place in the queue is kept for two seconds.
const LONGEST_WAIT = 10_000
const PAUSE = 200

// No timer of Node lasts longer, in milliseconds.
const LONGEST_TIMER = 2 ** 31 - 1

// The longest wait until the clock is looked at again: timers stand still while the machine sleeps.
const LOOK_EVERY = 1000

export class LeaseholdError extends Error {
  constructor (message, options) {
    super(message, options)
    this.name = this.constructor.name
  }
}

/** No: somebody else holds it, or is ahead. holder is one who does, as far as it is known. */
export class Busy extends LeaseholdError {}

/** The lease ended before it was released, or there is none. */
export class Lost extends LeaseholdError {}

/** No answer: the call may have been served, or not. */
export class Unknown extends LeaseholdError {}

/** It cannot be served so, and has changed nothing. code is the server's word for it. */
export class Refused extends LeaseholdError {}

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

/** Client speaks to the instances at url. Times are in seconds. */
export class Client {
  #base
  #token
  #timeout

  /**
   * @param {string} url http://host:port or https://host:port
   * @param {{token?: string, timeout?: number}} [options] a bearer token, for a server that asks for
   *   one; how long a call may take beside what it waits for other holders (5)
   */
  constructor (url, { token, timeout = 5 } = {}) {
    const parsed = new URL(url)
    if (!/^https?:$/.test(parsed.protocol) || parsed.search || parsed.hash) throw new TypeError('the url is http://host:port or https://host:port')
    if (parsed.username || parsed.password) throw new TypeError('the url has no user and password: give token')
    this.#base = parsed.href.replace(/\/$/, '')
    this.#token = token
    this.#timeout = milliseconds(timeout)
  }

  /**
   * Takes name for ttl seconds, renewed until it is released.
   *
   * wait is how long to wait for other holders: without it for ever, 0 is one attempt; then it
   * throws Busy. It throws Unknown if no instance answers within ttl, or wait if that is shorter.
   * signal ends the wait, not the lease. mode is 'exclusive' or 'shared', with at most limit holders. atLeast
   * keeps the name taken for so long after the grant, also when it is released earlier.
   * @returns {Promise<Lease>}
   */
  async acquire (name, { ttl = 30, wait = Infinity, mode, limit, note, atLeast = 0, signal } = {}) {
    if (!(ttl > 0 && ttl < Infinity) || !(wait >= 0)) throw new TypeError('ttl is above 0, wait at least 0 seconds')
    if (!(atLeast >= 0 && atLeast < Infinity)) throw new TypeError('atLeast is at least 0 seconds')
    const claim = new Claim(this, { name, mode, limit, note, atLeast })
    try {
      return new Lease(claim, await claim.acquire(milliseconds(ttl), wait * 1000, signal))
    } catch (err) {
      const left = wait === 0 && (err instanceof Busy || err instanceof Refused) // nothing
      if (!left) claim.giveUp()
      throw err
    }
  }

  /** Runs work(lease) under a lease and releases it. Rejects with Lost when it was lost meanwhile. */
  async withLease (name, options, work) {
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

  /** What is known of name: token, holders and waiters. */
  show (name) { return this.call('GET', `/v1/lock?${new URLSearchParams({ name })}`, undefined, { yes: { name } }) }

  /**
   * A page of what is held or waited for, of the names that begin with prefix: { locks, next }. next is what
   * after is for the next page, and '' behind the last one. A page has at most limit locks, and may have fewer
   * although there are more. Locks of one page are by name; where the store cannot sort, one may come on several pages.
   */
  async page ({ prefix = '', after = '', limit = 100 } = {}) {
    const query = new URLSearchParams({ prefix, limit })
    if (after) query.set('after', after)
    const { locks, next = '' } = await this.call('GET', `/v1/locks?${query}`)
    if (!Array.isArray(locks) || typeof next !== 'string') throw new Unknown('a yes that does not say what is held')
    return { locks, next }
  }

  /** What is held or waited for, of the names that begin with prefix: page after page, as it is read. */
  async * locks (prefix = '') {
    for (let after = '', more = true; more; more = after !== '') {
      const { locks, next } = await this.page({ prefix, after, limit: 500 })
      yield * locks
      after = next
    }
  }

  /** What the store behind the server promises. */
  features () { return this.call('GET', '/v1/features') }

  /** Ends the lease of the holder with that handle, which show tells. */
  evict (name, handle, reason = '') { return this.call('POST', '/v1/evict', { name, owner: handle, reason }, { yes: { outcome: 'done' } }) }

  get timeout () { return this.#timeout }

  /** One call: the answer of a yes, which has all that is in yes, or it throws. For the classes of this file. */
  async call (method, path, body, { timeout = this.#timeout, signal, yes = {} } = {}) {
    const headers = { Accept: 'application/json' }
    if (body) headers['Content-Type'] = 'application/json'
    if (this.#token) headers.Authorization = `Bearer ${this.#token}`
    const ends = AbortSignal.timeout(Math.min(Math.max(Math.ceil(timeout), 1), LONGEST_TIMER))
    let status, answer
    try {
      const response = await fetch(this.#base + path, {
        method,
        headers,
        redirect: 'error',
        body: body && JSON.stringify(body, (_, value) => value || undefined),
        signal: signal ? AbortSignal.any([ends, signal]) : ends
      })
      status = response.status
      answer = await response.json()
    } catch (err) {
      if (signal?.aborted) throw signal.reason
      throw new Unknown(`no answer: ${err.cause?.message ?? err.message}`, { cause: err })
    }
    return judge(status, answer, yes)
  }
}

function judge (status, answer, yes) {
  if (answer === null || typeof answer !== 'object') throw new Unknown(`HTTP ${status} without an object`)
  const text = answer.error ?? `HTTP ${status}`
  if (status === 200) {
    // of what stands between, or to another call
    if (Object.entries(yes).some(([k, v]) => answer[k] !== v)) throw new Unknown('a yes to something else')
    return answer
  }
  if (status === 409) throw Object.assign(new Busy(text), { holder: answer.holder, code: answer.code })
  if (status === 410) throw new Lost(text)
  if (answer.outcome === 'refused') throw Object.assign(new Refused(text), { status, code: answer.code })
  throw new Unknown(text) // of this service or of what stands before it
}

/** One owner's calls for one name. They are numbered, so that one that comes late is refused. */
class Claim {
  #client
  #same
  #atLeast
  #count = 0
  #silent = 0 // the first acquire without an answer, which may be served late

  constructor (client, { name, mode, limit, note, atLeast }) {
    this.#client = client
    this.#same = { name, owner: randomBytes(20).toString('hex'), mode, limit, note }
    this.#atLeast = milliseconds(atLeast)
  }

  get name () { return this.#same.name }

  async call (what, fields, options) {
    const { name, owner } = this.#same
    const yes = what === 'release' ? { outcome: 'done' } : { outcome: 'granted', name, owner }
    const call = ++this.#count
    const answered = (this.#silent || call) - 1 // up to this number, no acquire is without an answer
    try {
      return await this.#client.call('POST', `/v1/${what}`, { ...this.#same, ...fields, call, answered }, { ...options, yes })
    } catch (err) {
      if (what === 'acquire' && !(err instanceof Busy || err instanceof Lost || err instanceof Refused)) this.#silent ||= call
      throw err
    }
  }

  /** The grant, with since: the time from which its TTL counts. */
  async acquire (ttl, wait, signal) {
    signal?.throwIfAborted()
    const end = now() + wait
    const patience = Math.min(ttl, Math.max(wait, this.#client.timeout))
    let silent = now() // since when no instance has answered
    for (;;) {
      const sent = now()
      const left = Math.min(Math.max(Math.floor(end - sent), 0), LONGEST_WAIT)
      try {
        const grant = await this.call('acquire',
          { ttl_ms: ttl, wait_ms: left, queue: wait !== 0, at_least_ms: this.#atLeast },
          { timeout: this.#client.timeout + left, signal })
        return { ...grant, since: sent + grant.waited_ms }
      } catch (err) {
        if (err instanceof Busy) {
          silent = now()
          if (silent >= end) throw err
          if (err.code === 'not_yet' || left === 0) await sleep(PAUSE, signal)
        } else if (err instanceof Unknown) {
          if (now() - silent >= patience || now() >= end) throw err
          await sleep(PAUSE, signal)
        } else throw err
      }
    }
  }

  renew (ttl, timeout) { return this.call('renew', { ttl_ms: ttl }, { timeout }) }

  /** Releases, asked again after no answer until that time. Lost is only thrown by the first answer. */
  async release (until) {
    for (let asked = false; ; asked = true) {
      try {
        const timeout = Math.min(this.#client.timeout, Math.max(until - now(), PAUSE))
        return await this.call('release', { at_least_ms: this.#atLeast }, { timeout })
      } catch (err) { // a loss after an unknown outcome: either call may have been the one that ended it
        if (err instanceof Lost && asked) throw new Unknown(`released or lost: ${err.message}`, { cause: err })
        if (!(err instanceof Unknown) || now() >= until) throw err
        await sleep(PAUSE)
      }
    }
  }

  /** Leaves the queue, or releases what may have been granted, without holding up the caller. */
  giveUp () {
    this.release(now() + this.#client.timeout).catch(() => {}) // the place ends in seconds, the grant with its TTL
  }
}

/** A Lease is held until it is released or lost. */
export class Lease {
  #claim
  #ttl
  #deadline
  #over = new AbortController()
  #released = false
  #timer
  #renewal

  /** For Client.acquire. */
  constructor (claim, grant) {
    this.#claim = claim
    this.#ttl = grant.ttl_ms
    /** What is held. */
    this.name = claim.name
    /** The fencing token: greater than that of every earlier lease of the name. @type {bigint} */
    this.token = BigInt(grant.token)
    this.#deadline = deadline(grant.since, grant.ttl_ms)
    this.#watch()
    this.#renewIn(this.#ttl / 3)
  }

  /** Aborted, with a Lost as its reason, when the lease is lost. */
  get signal () { return this.#over.signal }

  /** For how many seconds the lease lasts at least without another renewal; 0 when it is over. */
  get left () { return this.#held() ? Math.max(this.#deadline - now(), 0) / 1000 : 0 }

  /** Throws Lost when the lease is over. */
  check () {
    if (this.#released) throw new Lost('it was released')
    if (!this.#held()) throw this.signal.reason
  }

  /** Gives the lease up. Lost: it had ended before. Unknown: no instance answered until its deadline. */
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
    if (!this.#released && now() >= this.#deadline) this.#lose(new Lost('deadline passed without a renewal'))
    return !this.#released && !this.signal.aborted
  }

  #lose (cause) {
    if (this.#released || this.signal.aborted) return
    this.#stop()
    this.#over.abort(cause)
  }

  #stop () {
    clearTimeout(this.#timer)
    clearTimeout(this.#renewal)
  }

  #watch () {
    clearTimeout(this.#timer)
    if (this.#held()) this.#timer = setTimeout(() => this.#watch(), Math.min(Math.max(this.#deadline - now(), 1), LOOK_EVERY))
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
    const sent = now()
    let pause = this.#ttl / 12 // after a failure: the earlier deadline stands
    try {
      const grant = await this.#claim.renew(this.#ttl, Math.min(this.#ttl / 3, this.#deadline - sent))
      if (!this.#held()) return // an answer that comes late brings nothing back
      this.#deadline = Math.max(this.#deadline, deadline(sent, grant.ttl_ms))
      this.#watch()
      pause = this.#ttl / 3
    } catch (err) {
      if (err instanceof Lost) this.#lose(err)
    }
    if (this.#held()) this.#renewIn(pause)
  }
}

function deadline (since, ttl) { return since + ttl - ttl * DRIFT - DRIFT_LEAST }

if (Symbol.asyncDispose) {
  Lease.prototype[Symbol.asyncDispose] = function () { return this.release() }
}
