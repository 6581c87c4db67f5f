/// <reference lib="esnext.disposable" />

// Times are in seconds. In answers of the server they are in milliseconds, and fields that are 0, empty or false are
// left out.

export type Mode = 'exclusive' | 'shared'

/** Who holds or waits, and what for. They are for people: nothing verifies them. */
export interface Details {
  host?: string
  user?: string
  pid?: number
  program?: string
  /** RFC 3339. */
  started?: string
  /** A URL of http or https, without a password. */
  link?: string
  /** Anything else. */
  labels?: Record<string, string>
  /** Beside details, the note is the same text. */
  text?: string
  /** Such as 'keeps', of a holder that keeps the lock between uses. */
  kind?: string
  /** Of a candidate for leadership. */
  preference?: number
}

/** Someone who holds a lock. */
export interface Holder {
  /** The beginning of the owner. */
  owner: string
  /** Tells owners apart; Client.evict takes it. */
  handle: string
  mode: Mode
  limit?: number
  /** Of a shared holder, if above 1. */
  weight?: number
  token: string
  held_ms?: number
  left_ms?: number
  ttl_ms?: number
  renewed_ms?: number
  /** For how long the server has seen no renewal, where the store does not tell renewed_ms. */
  unrenewed_ms?: number
  note?: string
  details?: Details
}

/** Someone who waits for a lock. */
export interface Waiter {
  owner: string
  handle: string
  mode: Mode
  weight?: number
  waited_ms?: number
  /** Whether it waits at the server that answers. */
  here?: boolean
  note?: string
  details?: Details
}

/** What is known of a lock. Waiters are in order. */
export interface Lock {
  name: string
  token: string
  holders: Holder[]
  waiters: Waiter[]
  damaged?: string
  /** That an operator has set. */
  limit?: number
  /** The weights of all shared holders. */
  used?: number
}

/** What the server's store promises. */
export interface Features {
  fencing?: boolean
  shared?: boolean
  fair?: boolean
  wakes?: boolean
  resumes?: boolean
  min_ttl_ms?: number
  step_ms?: number
  session_ttl_ms?: number
  inspects?: boolean
  evicts?: boolean
  lingers?: boolean
  notes?: boolean
  raises_fences?: boolean
  lifts_fences?: boolean
  bars_late_calls?: boolean
  tells?: boolean
  recalls?: boolean
  keeps?: boolean
  wanted_once?: boolean
  weights?: boolean
  limits?: boolean
  max_wait_ms?: number
}

export interface ClientOptions {
  /** A bearer token, for a server that asks for one. */
  token?: string
  /** How long a call may take, beside the time it waits for other holders: 5. */
  timeout?: number
}

export interface AcquireOptions {
  /** How long the lease lasts without a renewal: 30. */
  ttl?: number
  /** How long to wait for other holders: Infinity, as long as it takes, if it is left out; 0 tries once. */
  wait?: number
  mode?: Mode
  /** The weights of all holders of a shared lock are at most this together; 0: no limit. */
  limit?: number
  /** How much of the limit a shared lease takes: 1. More needs a store with weights, see features. */
  weight?: number
  /** Tells people who holds the lock, and what for: the host, the program and its process id. */
  note?: string
  /** The same in fields. What they leave out is filled with the host, user, program and process id. */
  details?: Details
  /** Keeps the name taken for so long, even if the lease is released earlier. */
  atLeast?: number
  /** Ends the wait, and not the lease. The place in the queue is given up. */
  signal?: AbortSignal
  /**
   * Aborts Lease.wanted once others wait for the lock, so that a long job can release it at its next safe point. It
   * needs a store with tells, see features: else the call is Refused.
   */
  yields?: boolean
  /** Called once when others wait. It implies yields. */
  onWanted?: (lease: Lease) => void
}

/** A client of the server at url. */
export class Client {
  constructor (url: string, options?: ClientOptions)

  /**
   * Takes the lock. The lease is renewed until it is released.
   *
   * Rejects with Busy if the wait was not long enough, with TooHeavy if weight exceeds limit, or the limit
   * that an operator has set, with Unknown if no server answers within ttl, or within wait if that is
   * shorter, and with the signal's reason. Nothing stays taken then.
   */
  acquire (name: string, options?: AcquireOptions): Promise<Lease>

  /**
   * Takes the lock, runs work, and releases the lock. Rejects as work does, or else with Lost if the lease
   * was lost meanwhile. work itself is not ended by a loss: pass lease.signal on, and call lease.check.
   */
  withLease<T> (name: string, work: (lease: Lease) => T | Promise<T>): Promise<T>
  withLease<T> (name: string, options: AcquireOptions, work: (lease: Lease) => T | Promise<T>): Promise<T>

  /** What is known of the lock: token, holders and waiters. */
  show (name: string): Promise<Lock>

  /**
   * A page of the locks that someone holds or waits for, with names that begin with prefix. next is what
   * after is for the next page, or '' after the last one. A page may have fewer than limit locks
   * although more follow. Locks of a page are sorted by name; where the store cannot sort, a lock may
   * be on several pages.
   */
  page (query?: { prefix?: string, after?: string, limit?: number }): Promise<{ locks: Lock[], next: string }>

  /** The locks of all pages. */
  locks (prefix?: string): AsyncGenerator<Lock, void, undefined>

  /** What the server's store promises. */
  features (): Promise<Features>

  /** Ends the lease of the holder with that handle, which show has. */
  evict (name: string, handle: string, reason?: string): Promise<void>
}

/** A lock that is held until it is released, or lost. `await using` releases it, where the runtime has that. */
export class Lease {
  private constructor ()

  /** The lock. */
  readonly name: string
  /** The fencing token: greater than that of every earlier lease of the lock. */
  readonly token: bigint
  /** The secret that renews and releases the lease. Keep it out of logs. */
  readonly owner: string
  /** Aborted when the lease is lost, with a Lost as its reason. */
  readonly signal: AbortSignal
  /** With yields: aborted when others wait for the lock. They may be gone by then. */
  readonly wanted: AbortSignal
  /** How many seconds the lease lasts at least, without another renewal; 0 when it is over. */
  readonly left: number

  /** Throws Lost or Released if the lease is over. Call it before each step that only the holder may do. */
  check (): void

  /**
   * Renews now, for ttl seconds if that is longer than before, which later renewals keep. Returns left,
   * which is less than ttl if an earlier call had no answer: the server may still serve it. Rejects with
   * Lost or Released if the lease is over, and with Unknown if there was no answer: the earlier deadline
   * stands then.
   */
  extend (ttl?: number): Promise<number>

  /**
   * Gives the lock up. To release a lease again does nothing. Rejects with Lost if the lease had ended
   * before, and with Unknown if no server answered until its deadline.
   */
  release (): Promise<void>

  [Symbol.asyncDispose] (): Promise<void>
}

/** The base of all errors of this package. */
export class LeaseholdError extends Error {
  /** The server's word for it, or ''. */
  code: string
}

/** Someone else holds the lock, or is ahead in the queue. Nothing was granted. */
export class Busy extends LeaseholdError {
  /** One of those who hold it, as far as the server tells. */
  holder?: Holder
}

/** The lease ended before it was released. code is 'evicted' where someone ended it by force. */
export class Lost extends LeaseholdError {}

/** This program has released the lease. */
export class Released extends LeaseholdError {}

/** No answer: the call may have been served, or not. */
export class Unknown extends LeaseholdError {}

/**
 * The server refused the call, which changed nothing. If code is "read_only" or "full", the call may have been
 * applied. acquire then releases what may have been granted.
 */
export class Refused extends LeaseholdError {
  /** HTTP's. */
  status: number
}

/** The weight exceeds the limit of the call, or the operator's. No release makes room for it. */
export class TooHeavy extends Refused {}

/** The server does not know the token, or the client may not do this. */
export class Unauthorized extends Refused {}
