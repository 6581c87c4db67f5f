// Uses every name of the package, for tsc.
import {
  Busy, Client, Lease, LeaseholdError, Lost, Refused, Released, TooHeavy, Unauthorized, Unknown,
  type AcquireOptions, type ClientOptions, type Details, type Features, type Holder, type Lock, type Mode, type Waiter
} from 'leasehold'

const options: ClientOptions = { token: 'secret', timeout: 1 }
const client = new Client('http://localhost', options)
const mode: Mode = 'shared'
const details: Details = { host: 'a', user: 'b', pid: 1, program: 'c', link: 'https://d.example', labels: { e: 'f' }, text: 'ci' }
const how: AcquireOptions = {
  details,
  yields: true,
  onWanted: (wanted) => { console.log(wanted.name) }, ttl: 30, wait: 5, mode, limit: 2, weight: 2, note: 'ci', atLeast: 1.5, signal: AbortSignal.timeout(1000) }

export async function use (): Promise<string> {
  const lease: Lease = await client.acquire('a', how)
  const seconds: number = await lease.extend() + await lease.extend(60) + lease.left
  const signal: AbortSignal = lease.signal
  const wanted: AbortSignal = lease.wanted
  lease.check()
  await lease.release()
  await using disposed = await client.acquire('a')
  const token: bigint = await client.withLease('a', (held) => held.token)
  const text: string = await client.withLease('a', { wait: 0 }, async (held) => held.name + held.owner)
  const { locks, next }: { locks: Lock[], next: string } = await client.page({ prefix: 'a', after: '', limit: 10 })
  for await (const lock of client.locks('a')) locks.push(lock)
  const { holders, waiters, used }: { holders: Holder[], waiters: Waiter[], used?: number } = await client.show('a')
  for (const holder of holders) await client.evict('a', holder.handle, holder.note)
  const features: Features = await client.features()
  return [seconds, signal.aborted, wanted.aborted, token, text, next, waiters[0]?.here, holders[0]?.unrenewed_ms, disposed.left, used, features.fair].join()
}

export function errors (err: unknown): string {
  if (err instanceof Busy) return err.holder?.handle ?? err.code
  if (err instanceof TooHeavy || err instanceof Unauthorized || err instanceof Refused) return `${err.status} ${err.code}`
  if (err instanceof Lost || err instanceof Released || err instanceof Unknown) return err.message
  return err instanceof LeaseholdError ? err.name : 'another'
}

// @ts-expect-error: a lease comes from a client
export const made = new Lease()
// @ts-expect-error: the token cannot be changed
export const change = (lease: Lease): void => { lease.token = 1n }
