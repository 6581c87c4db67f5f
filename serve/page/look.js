// Looks: repeated calls to the service, and the age of their last answers. An answer was true at some
// time after its call was sent, so its age counts from the sending.

import { mark, since, tick } from './clock.js'
import { useEffect, useRef } from './html.js'
import { askWho, me } from './me.js'

// The time between looks, in milliseconds. It is longer if answers take long, but always short enough
// that a timely answer is not stale before the next one.
const PAUSE = 2000
const LONGEST = 3000
const SOON = 300
const SHARE = 3

/** Above this age, data is stale and nothing is claimed: two of the longest pauses. */
export const STALE = 2 * LONGEST

// How long an answer may take.
const WITHIN = 10_000

export class Look {
  #ask
  #timer
  #due = Infinity
  #abort = null // of the look in progress
  #began = null
  #stopped = false

  data = null
  at = null // when the call for the data was sent
  row = 0 // how many looks in a row were answered in time
  lastRow = 0 // its value when the data arrived
  problem = 'connecting' // a word, or '' while all is well
  error = ''

  constructor (ask) { this.#ask = ask }

  // Options: told returns how old the data was when the service sent it; limit returns the age up to which it is fresh.
  told = () => 0
  limit = () => STALE

  get age () { return this.at ? since(this.at) + this.told(this.data) : Infinity }

  get fresh () { return this.problem === '' && this.age < this.limit(this.data) }

  start () {
    all.add(this)
    this.now()
  }

  stop () {
    all.delete(this)
    this.#stopped = true
    clearTimeout(this.#timer)
    this.#abort?.abort()
  }

  /** Looks at once. A call from before a pause of this machine is abandoned. */
  now () {
    if (this.#abort && since(this.#began) < LONGEST) return
    this.#abort?.abort()
    this.#look()
  }

  /** Looks soon, because something has changed. */
  soon () {
    if (this.#abort) this.again = true
    else if (this.#due > performance.now() + this.#pause(SOON)) this.#in(this.#pause(SOON))
  }

  // Calls with slow answers are made less often.
  #pause = (least) => Math.min(Math.max(least, SHARE * (this.took ?? 0)), LONGEST)

  #in (ms) {
    clearTimeout(this.#timer)
    this.#due = performance.now() + ms
    this.#timer = setTimeout(() => this.now(), ms)
  }

  async #look () {
    clearTimeout(this.#timer)
    const abort = new AbortController()
    const timeout = setTimeout(() => abort.abort(), WITHIN)
    const before = this.at
    const began = mark()
    this.#abort = abort
    this.#began = began
    this.again = false
    let answer
    try {
      answer = { data: await this.#ask(abort.signal, this.data) }
    } catch (error) {
      answer = { problem: error.problem ?? 'unknown', error: error.message }
    }
    clearTimeout(timeout)
    if (this.#abort !== abort || this.#stopped) return // there is a newer one
    this.#abort = null
    this.took = since(began)
    if (answer.data !== undefined) {
      const gap = before ? since(before) - this.took : Infinity
      this.row = gap < STALE && this.took < LONGEST ? this.row + 1 : 1
      Object.assign(this, { data: answer.data, at: began, lastRow: this.row, problem: '', error: '' })
      heardFrom = began
    } else {
      Object.assign(this, answer, { row: 0 })
      if (isRefused(answer.problem) && !isRefused(me.told)) askWho() // a known token has become unknown
    }
    const late = this.took > LONGEST && !this.problem // it is half stale by now
    this.#in(late ? SOON : this.#pause(this.again ? SOON : PAUSE))
    tick()
  }
}

const isRefused = (word) => word === 'signInNeeded' || word === 'wrongToken'

const all = new Set()
let heardFrom = null

/** Reports whether the service has answered any call recently. */
export const answers = () => heardFrom !== null && since(heardFrom) < STALE

/** Returns the active looks. The console is as fresh as they are. */
export const looks = () => [...all]

/** Makes all looks look at once. */
export const lookNow = () => { for (const look of all) look.now() }

for (const woken of ['visibilitychange', 'resume']) document.addEventListener(woken, () => { if (!document.hidden) lookNow() })
for (const woken of ['pageshow', 'online']) window.addEventListener(woken, lookNow)

/**
 * Looks while a component is shown, and again when `depends` changes. Until the first answer arrives,
 * `before` is the previous look.
 */
export function useLook (ask, depends, options = {}) {
  const kept = useRef({ key: null, look: null })
  const key = JSON.stringify(depends)
  if (kept.current.key !== key) {
    const last = kept.current.look
    const look = Object.assign(new Look(ask), { before: last?.data ? last : last?.before ?? null }, options)
    if (last) last.before = null
    kept.current = { key, look }
  }
  const { look } = kept.current
  useEffect(() => {
    look.start()
    return () => look.stop()
  }, [look])
  return look
}
