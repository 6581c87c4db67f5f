// Tests of the client against the real command, on a store that several processes share:
//
//   LEASEHOLD_COMMAND=leasehold LEASEHOLD_STORE=redis://127.0.0.1/0 node --test leasehold.test.mjs

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import os from 'node:os'
import { createInterface } from 'node:readline'
import { after, before, beforeEach, test } from 'node:test'
import { inspect } from 'node:util'
import { Busy, Client, Lost, Refused, Unknown } from './leasehold.mjs'

const LONG = 20 // seconds; what is waited for comes long before, even on a busy machine
const started = []
let server, client, name

async function serve (listen = '127.0.0.1:0') {
  const process_ = spawn(process.env.LEASEHOLD_COMMAND, ['--store', process.env.LEASEHOLD_STORE, 'serve', '--listen', listen],
    { stdio: ['ignore', 'ignore', 'pipe'] })
  const gone = new Promise((resolve) => process_.once('exit', resolve))
  const instance = {
    stop: () => process_.kill('SIGSTOP'),
    kill: () => { process_.kill('SIGKILL'); return gone }
  }
  started.push(instance)
  let said = ''
  for await (const line of createInterface({ input: process_.stderr })) {
    said += line + '\n'
    instance.url = line.match(/http:\/\/[^\s"]+/)?.[0]
    if (instance.url) {
      instance.address = new URL(instance.url).host
      process_.stderr.resume()
      return instance
    }
  }
  throw new Error(`the server does not start: ${said}`)
}

// front stands before an instance, and answers in its place what says has for a path.
async function front (target) {
  const says = {}
  const stands = createServer(async (request, response) => {
    const said = says[request.url.split('?')[0]]
    if (said !== undefined) return response.end(said)
    let body = ''
    for await (const part of request) body += part
    const answer = await fetch(target + request.url, { method: request.method, headers: { 'Content-Type': 'application/json' }, body: body || undefined })
    response.statusCode = answer.status
    response.end(await answer.text())
  })
  await new Promise((resolve) => stands.listen(0, '127.0.0.1', resolve))
  started.push({ kill: () => { stands.closeAllConnections(); stands.close() } })
  return { says, url: `http://127.0.0.1:${stands.address().port}` }
}

async function until (condition) {
  for (const end = performance.now() + LONG * 1000; !await condition();) {
    if (performance.now() > end) throw new Error('it never comes')
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

before(async () => { server = await serve() })
after(() => Promise.all(started.map((instance) => instance.kill())))
beforeEach(() => {
  name = `node/${randomUUID()}`
  client = new Client(server.url)
})

test('only one holds, and tokens grow', async () => {
  const first = await client.acquire(name, { note: 'first' })
  await assert.rejects(client.acquire(name, { wait: 0 }), (err) => err instanceof Busy && err.holder.note === 'first')
  const { holders: [holder] } = await client.show(name)
  assert.equal(BigInt(holder.token), first.token)
  assert.ok(first.token > BigInt(Number.MAX_SAFE_INTEGER))
  assert.doesNotMatch(inspect(first) + inspect(holder), /[0-9a-f]{40}/) // its owner
  await first.release()
  assert.throws(() => first.check(), Lost)
  const second = await client.acquire(name, { wait: 0 })
  assert.ok(second.token > first.token)
  await second.release()
  assert.deepEqual(await all(client.locks(name)), [])
})

async function all (list) {
  const items = []
  for await (const item of list) items.push(item)
  return items
}

test('a list has pages', async () => {
  const names = [0, 1, 2, 3, 4].map((i) => `${name}/${i}`)
  const leases = []
  for (const one of names) leases.push(await client.acquire(one))
  assert.deepEqual([...new Set((await all(client.locks(name))).map((l) => l.name))].sort(), names)
  const seen = new Set()
  for (let after = '', more = true; more; more = after !== '') {
    const { locks, next } = await client.page({ prefix: name, after, limit: 2 })
    assert.ok(locks.length <= 2)
    for (const l of locks) seen.add(l.name)
    after = next
  }
  assert.deepEqual([...seen].sort(), names)
  for (const lease of leases) await lease.release()
})

test('shared leases have a limit', async () => {
  const shared = { mode: 'shared', limit: 2, wait: 0 }
  const leases = [await client.acquire(name, shared), await client.acquire(name, shared)]
  await assert.rejects(client.acquire(name, shared), Busy)
  for (const lease of leases) await lease.release()
})

test('waiters are served in order', async () => {
  const lease = await client.acquire(name)
  const served = []
  const waiters = []
  for (let i = 0; i < 3; i++) {
    waiters.push(client.withLease(name, { wait: LONG }, async () => { served.push(i) }))
    await until(async () => (await client.show(name)).waiters.length === i + 1)
  }
  await lease.release()
  await Promise.all(waiters)
  assert.deepEqual(served, [0, 1, 2])
})

test('a wait is bounded, can be ended, and leaves no place', async () => {
  const lease = await client.acquire(name)
  await assert.rejects(client.acquire(name, { wait: 0.5 }), Busy)
  const ends = new AbortController()
  const waits = client.acquire(name, { signal: ends.signal })
  await until(async () => (await client.show(name)).waiters.length > 0)
  ends.abort(new Error('not any more'))
  await assert.rejects(waits, /not any more/)
  await until(async () => (await client.show(name)).waiters.length === 0)
  await lease.release()
})

test('a lease is renewed', async () => {
  const lease = await client.acquire(name, { ttl: 2 })
  await new Promise((resolve) => setTimeout(resolve, 4000)) // two TTLs
  lease.check()
  await assert.rejects(client.acquire(name, { wait: 0 }), Busy)
  await lease.release()
})

test('a section that throws releases', async () => {
  await assert.rejects(client.withLease(name, {}, async () => { throw new Error('of the section') }), /of the section/)
  await client.withLease(name, { wait: 0 }, async () => {})
})

test('await using releases', { skip: !Symbol.asyncDispose }, async () => {
  const lease = await client.acquire(name)
  await lease[Symbol.asyncDispose]()
  await client.withLease(name, { wait: 0 }, async () => {})
})

test('an eviction ends the section', async () => {
  await assert.rejects(client.withLease(name, { ttl: 3 }, async (lease) => {
    const { holders: [holder] } = await client.show(name)
    await client.evict(name, holder.handle, 'maintenance')
    await until(() => lease.signal.aborted)
    assert.ok(lease.signal.reason instanceof Lost)
  }), Lost)
})

test('a hung server ends the section before another holds', async () => {
  const hung = await serve()
  let granted
  const lease = await new Client(hung.url).acquire(name, { ttl: 3 })
  let ended
  lease.signal.addEventListener('abort', () => { ended = performance.now() })
  const other = client.withLease(name, { wait: LONG }, async () => { granted = performance.now() })
  await until(async () => (await client.show(name)).waiters.length > 0)
  hung.stop()
  await other
  assert.ok(ended < granted)
  assert.throws(() => lease.check(), Lost)
  await assert.rejects(lease.release(), Lost)
})

// sleep is what leases see when the machine sleeps: time goes on without performance.now().
function sleep (seconds) {
  const uptime = os.uptime
  os.uptime = () => uptime() + seconds
}

const noSleep = process.platform !== 'linux' && 'this system does not tell of sleep'

test('a lease ends in a sleep', { skip: noSleep }, async () => {
  const lease = await client.acquire(name, { ttl: 10 * LONG })
  sleep(10 * LONG)
  assert.equal(lease.left, 0)
  assert.throws(() => lease.check(), Lost)
  const other = await client.acquire(`${name}/other`, { ttl: 10 * LONG })
  sleep(10 * LONG)
  await until(() => other.signal.aborted) // nobody looks
})

test('a lease is renewed after a sleep', { skip: noSleep }, async () => {
  await client.withLease(name, { ttl: 10 * LONG }, async (lease) => {
    sleep(5 * LONG)
    const left = lease.left
    assert.ok(left < 5 * LONG)
    await until(() => lease.left > left)
  })
})

test('a busy process that missed its timer can ask', async () => {
  const hung = await serve()
  const lease = await new Client(hung.url).acquire(name, { ttl: 1 })
  hung.stop()
  for (const end = performance.now() + 1000; performance.now() < end;);
  assert.throws(() => lease.check(), Lost)
  assert.equal(lease.left, 0)
})

test('a killed server that comes back costs no lease and no wait', async () => {
  const first = await serve()
  const away = new Client(first.url)
  const lease = await away.acquire(name, { ttl: 6 })
  const waiter = away.acquire(name, { wait: LONG })
  await until(async () => (await client.show(name)).waiters.length > 0)
  await first.kill()
  await serve(first.address)
  await new Promise((resolve) => setTimeout(resolve, 7000)) // above its TTL
  lease.check()
  await lease.release()
  const next = await waiter
  assert.ok(next.token > lease.token)
  await next.release()
})

test('no server is an unknown outcome', async () => {
  const gone = await serve()
  await gone.kill()
  await assert.rejects(new Client(gone.url).acquire(name, { wait: 0 }), Unknown)
  await assert.rejects(new Client(gone.url, { timeout: 0.5 }).acquire(name, { wait: 1 }), Unknown)
})

test('a yes of something else is unknown', async () => {
  const { says, url } = await front(server.url)
  const client = new Client(url, { timeout: 0.5 })
  const lease = await client.acquire(name, { ttl: 3 })
  const alien = JSON.stringify({ outcome: 'granted', name, owner: 'another', token: '1', ttl_ms: 1e9, waited_ms: 0 })
  Object.assign(says, { '/v1/release': '{}', '/v1/renew': '{}', '/v1/acquire': alien, '/v1/lock': '{}', '/v1/locks': '{}' })
  for (const call of [() => client.show(name), () => client.page(), () => all(client.locks()), () => client.acquire(name + 'x', { wait: 0 })]) {
    await assert.rejects(call, Unknown)
  }
  await until(() => lease.signal.aborted) // no renewal came through
  for (const path in says) delete says[path]
  const second = await client.acquire(name, { ttl: 3, wait: LONG })
  says['/v1/release'] = '{}'
  await assert.rejects(second.release(), Unknown)
})

test('what cannot be served is refused', async () => {
  await assert.rejects(client.acquire('', { wait: 0 }), (err) => err instanceof Refused && err.code === 'invalid_name')
  await assert.rejects(client.acquire(name, { ttl: 0 }), TypeError)
  await assert.rejects(client.acquire(name, { atLeast: NaN }), TypeError)
  for (const url of ['ftp://127.0.0.1', 'nonsense', 'http://u:p@127.0.0.1', 'http://127.0.0.1?x=1']) assert.throws(() => new Client(url), TypeError)
})
