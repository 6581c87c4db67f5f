// Tests of the client against the real command, on a store that several processes share:
//
//   LEASEHOLD_COMMAND=leasehold LEASEHOLD_STORE=redis://127.0.0.1/0 node --test

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createHash, randomUUID } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import net from 'node:net'
import os from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, beforeEach, test } from 'node:test'
import { inspect } from 'node:util'
import { fileURLToPath } from 'node:url'
import { Busy, Client, Lost, Refused, Released, TooHeavy, Unauthorized, Unknown } from 'leasehold'

const LONG = 20 // seconds; what is waited for comes long before, even on a busy machine
const started = []
let server, client, name

async function serve (listen = '127.0.0.1:0', options = [], store = process.env.LEASEHOLD_STORE) {
  const process_ = spawn(process.env.LEASEHOLD_COMMAND, ['--store', store, 'serve', '--listen', listen, ...options],
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

const DROP = Symbol('drop')
const HANG = Symbol('hang')
const READ_ONLY = Symbol('read-only')
const SHORT = Symbol('short')
const STOPPING = { status: 409, outcome: 'busy', code: 'draining' }
const TOO_MANY = { status: 429, outcome: 'refused', code: 'limit' }

// front stands before an instance. In its place it answers what says has for a path; of DROP, the instance serves the call, and
// its answer is lost, once; of READ_ONLY, it serves the call, and the answer is that of a store that has become read-only, once;
// of SHORT, it serves the call, and grants 5 s by its answer; of HANG, nothing is answered; of an object, that is the answer. Answers of the instance come late by so many seconds.
async function front (target, late = 0) {
  const says = {}
  const dropped = []
  const calls = []
  const hung = []
  const stands = createServer(async (request, response) => {
    const path = request.url.split('?')[0]
    const said = says[path]
    if (said === HANG) return hung.push(path)
    if (typeof said === 'string') return response.end(said)
    let body = ''
    for await (const part of request) body += part
    calls.push(JSON.parse(body || '{}'))
    if (typeof said === 'object') {
      response.statusCode = said.status
      return response.end(JSON.stringify(said))
    }
    const answer = await fetch(target + request.url, { method: request.method, headers: { 'Content-Type': 'application/json' }, body: body || undefined })
    const text = await answer.text()
    await new Promise((resolve) => setTimeout(resolve, late * 1000))
    if (said === DROP) {
      delete says[path]
      dropped.push([path, answer.status])
      return request.socket.destroy()
    }
    if (said === READ_ONLY) {
      delete says[path]
      response.statusCode = 503
      return response.end('{"outcome": "refused", "code": "read_only", "error": "the store is read-only"}')
    }
    response.statusCode = answer.status
    response.end(said === SHORT ? JSON.stringify({ ...JSON.parse(text), ttl_ms: 5000 }) : text)
  })
  await new Promise((resolve) => stands.listen(0, '127.0.0.1', resolve))
  started.push({ kill: () => { stands.closeAllConnections(); stands.close() } })
  return { says, dropped, calls, hung, url: `http://127.0.0.1:${stands.address().port}` }
}

// silent is the url of what takes connections, and never answers.
async function silent () {
  const sockets = new Set()
  const listens = net.createServer((socket) => sockets.add(socket))
  await new Promise((resolve) => listens.listen(0, '127.0.0.1', resolve))
  started.push({ kill: () => { listens.close(); for (const socket of sockets) socket.destroy() } })
  return `http://127.0.0.1:${listens.address().port}`
}

// telling is the url of an instance whose store notifies holders that others wait.
async function telling () {
  const { recalls } = await client.features()
  return recalls ? server.url : (await serve('127.0.0.1:0', [], 'memory:')).url
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
  assert.throws(() => first.check(), Released)
  const second = await client.acquire(name, { wait: 0 })
  assert.ok(second.token > first.token)
  await second.release()
  assert.deepEqual(await all(client.locks(name)), [])
})

test('a refusal tells who holds', async () => {
  await client.withLease(name, () => assert.rejects(client.acquire(name, { wait: 0 }), (err) => {
    assert.ok(err.holder.note.includes(`[${process.pid}]`))
    return err instanceof Busy && err.message.includes(err.holder.note)
  }))
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

test('weights count up to the limit', async () => {
  const shared = { mode: 'shared', limit: 5, wait: 0 }
  const heavy = await client.acquire(name, { ...shared, weight: 3 })
  await assert.rejects(client.acquire(name, { ...shared, weight: 3 }), Busy)
  const other = await client.acquire(name, { ...shared, weight: 2 })
  const lock = await client.show(name)
  assert.equal(lock.used, 5)
  assert.deepEqual(lock.holders.map(({ weight }) => weight), [3, 2])
  await heavy.release()
  await other.release()
})

test('a claim may be too heavy for its own limit or the operator\'s', async () => {
  const limit = async (limit) => {
    const answer = await fetch(`${server.url}/v1/limit`,
      { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ name, limit }) })
    assert.equal(answer.status, 200)
  }
  await assert.rejects(client.acquire(name, { mode: 'shared', limit: 2, weight: 3 }),
    (err) => err instanceof TooHeavy && err instanceof Refused && err.code === 'too_heavy')
  await assert.rejects(client.acquire(name, { mode: 'shared', weight: 0.5 }), TypeError)
  const lease = await client.acquire(name, { mode: 'shared', limit: 5, weight: 3 })
  const refused = assert.rejects(client.acquire(name, { mode: 'shared', limit: 5, weight: 3, wait: LONG }), TooHeavy)
  await until(async () => (await client.show(name)).waiters.length === 1)
  await limit(2) // the waiter is too heavy for it, although it queued before
  await refused
  await until(async () => (await client.show(name)).waiters.length === 0)
  await limit(0)
  await lease.release()
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
  const lease = await client.acquire(name, { ttl: 4 })
  const held = async () => (await client.show(name)).holders[0].held_ms
  await until(async () => await held() > 8000) // two TTLs
  lease.check()
  await assert.rejects(client.acquire(name, { wait: 0 }), Busy)
  await lease.release()
})

test('a holder hears that others wait', async () => {
  const client = new Client(await telling())
  const calls = []
  const lease = await client.acquire(name, { ttl: 10 * LONG, onWanted: (wanted) => calls.push(wanted) })
  await assert.rejects(client.acquire(name, { wait: 0 }), Busy)
  await lease.extend()
  assert.ok(!lease.wanted.aborted) // by one that passed by
  const waiter = client.acquire(name, { wait: LONG })
  await until(() => calls.length > 0)
  assert.ok(lease.wanted.aborted)
  await lease.extend()
  await lease.release()
  const second = await waiter
  assert.ok(second.token > lease.token)
  assert.ok(!second.wanted.aborted)
  await second.release()
  assert.deepEqual(calls, [lease])
})

test('who does not ask is not told', async () => {
  const url = await telling()
  const between = await front(url)
  const lease = await new Client(between.url).acquire(name, { ttl: LONG })
  const waiter = new Client(url).acquire(name, { wait: LONG })
  await until(async () => (await new Client(url).show(name)).waiters.length > 0)
  await lease.extend()
  assert.ok(!lease.wanted.aborted)
  assert.ok(between.calls.every((call) => call.name === name && !('wanted' in call))) // a stream has no body
  await lease.release()
  await (await waiter).release()
})

test('a notice that is lost comes with a renewal', async () => {
  const url = await telling()
  for (const says of [HANG, 'event: open\ndata: {}\n\n']) { // a proxy that keeps the stream back, and one that cuts it
    const between = await front(url)
    between.says['/v1/events'] = says
    const lease = await new Client(between.url).acquire(name, { ttl: 6, yields: true })
    const waiter = new Client(url).acquire(name, { wait: LONG })
    await until(() => lease.wanted.aborted)
    await lease.release()
    await (await waiter).release()
    assert.ok(between.calls.filter((call) => call.ttl_ms).every((call) => call.wanted)) // renewals too
  }
})

test('one that others wait for is told with its grant', async () => {
  const client = new Client(await telling())
  const first = await client.acquire(name, { ttl: LONG })
  const second = client.acquire(name, { wait: LONG, yields: true })
  await until(async () => (await client.show(name)).waiters.length === 1)
  const third = client.acquire(name, { wait: LONG })
  await until(async () => (await client.show(name)).waiters.length === 2)
  await first.release()
  const lease = await second
  await until(() => lease.wanted.aborted)
  await lease.release()
  await (await third).release()
})

test('details say who holds', async () => {
  const said = { host: 'web-7', link: 'https://ci.example/7', labels: { team: 'payments' }, text: 'nightly' }
  const holder = async (options) => client.withLease(name, options, async () => (await client.show(name)).holders[0])
  const { note, details } = await holder({ details: said })
  assert.equal(note, 'nightly')
  assert.deepEqual({ ...details, ...said }, details)
  assert.equal(details.pid, process.pid)
  assert.equal((await holder({ note: 'a note' })).details.host, os.hostname())
  assert.equal((await holder({ note: 'n'.repeat(4000) })).note.length, 4000)
  await assert.rejects(client.acquire(name, { note: 'one', details: { text: 'another' } }), TypeError)
  await assert.rejects(client.acquire(name, { details: { link: 'javascript:alert(1)' } }), Refused)
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
  const lease = await new Client(hung.url).acquire(name, { ttl: 3 })
  let ended = false
  lease.signal.addEventListener('abort', () => { ended = true })
  const other = client.withLease(name, { wait: LONG }, () => {
    assert.equal(lease.left, 0) // by the clock: a busy process may run its timers late
    assert.throws(() => lease.check(), Lost)
  })
  await until(async () => (await client.show(name)).waiters.length > 0)
  hung.stop()
  await until(() => ended)
  await other
  await assert.rejects(lease.release(), Lost)
})

test('a passed deadline tells why', async () => {
  const before = await front(server.url)
  const lease = await new Client(before.url).acquire(name, { ttl: 3 })
  before.says['/v1/renew'] = '{"error": "it rests"}'
  await until(() => lease.signal.aborted)
  await assert.rejects(lease.release(), (err) => err instanceof Lost && err.code === 'deadline' && err.cause instanceof Unknown &&
    err.message === `the deadline passed without a renewal: ${err.cause.message}`)
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
  await until(async () => (await client.show(name)).holders[0].held_ms > 7000) // above its TTL
  lease.check()
  await lease.release()
  const next = await waiter
  assert.ok(next.token > lease.token)
  await next.release()
})

test('a waiter of a short TTL survives its server', { skip: noSleep }, async () => {
  const killed = createServer((request) => {
    sleep(5) // it waited for so long
    killed.removeAllListeners('request')
    killed.on('request', (request, response) => response.end(JSON.stringify({ error: 'it starts' })))
    request.socket.destroy()
  })
  await new Promise((resolve) => killed.listen(0, '127.0.0.1', resolve))
  started.push({ kill: () => killed.close() })
  const waits = new Client(`http://127.0.0.1:${killed.address().port}`).acquire(name, { ttl: 4 })
  await assert.rejects(waits, (err) => err instanceof Unknown && err.message === 'an answer to another call') // it tried again
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

test('a lease counts from before the call', async () => {
  const slow = new Client((await front(server.url, 1)).url, { timeout: LONG })
  const lease = await slow.acquire(name, { ttl: LONG })
  assert.ok(lease.left < LONG - 1)
  assert.ok(await lease.extend() < LONG - 1)
  await assert.rejects(slow.acquire(name + '/short', { ttl: 0.5 }), Lost) // it was over when the answer came
  await lease.release()
})

test('extend renews at once and for longer', async () => {
  const lease = await client.acquire(name, { ttl: LONG })
  const { left } = lease
  assert.ok(await lease.extend() > left - 1)
  assert.ok(await lease.extend(10 * LONG) > 8 * LONG)
  assert.ok((await client.show(name)).holders[0].left_ms > 8000 * LONG)
  assert.ok(await lease.extend(1) > 8 * LONG) // never shorter
  assert.ok((await client.show(name)).holders[0].left_ms > 8000 * LONG)
  await Promise.all(Array.from({ length: 20 }, () => lease.extend())) // one that is overtaken would lose it
  lease.check()
  await assert.rejects(lease.extend(-1), TypeError)
  await lease.release()
  await assert.rejects(lease.extend(), Released)
})

test('a renewal that hangs ends by the timeout, and leaves time for another', { skip: noSleep }, async () => {
  const { says, hung, url } = await front(server.url)
  const lease = await new Client(url, { timeout: 1 }).acquire(name, { ttl: 10 * LONG })
  says['/v1/renew'] = HANG
  sleep(5 * LONG) // a renewal is due, and may take a third of the TTL
  await until(() => hung.length > 0)
  const late = AbortSignal.timeout(LONG * 1000)
  await assert.rejects(lease.extend(), Unknown)
  assert.ok(!late.aborted)
  await lease.release()
  const short = await new Client(url, { timeout: LONG }).acquire(name, { ttl: 6 })
  await assert.rejects(short.extend(), Unknown)
  short.check()
  await short.release()
})

test('extend tells a loss and no answer, and counts on no more than a late call leaves', async () => {
  const { says, url } = await front(server.url)
  const lease = await new Client(url, { timeout: 2 }).acquire(name, { ttl: LONG })
  says['/v1/renew'] = HANG
  await assert.rejects(lease.extend(), Unknown)
  delete says['/v1/renew']
  assert.ok(await lease.extend(10 * LONG) <= LONG)
  await client.evict(name, (await client.show(name)).holders[0].handle, 'maintenance')
  await assert.rejects(lease.extend(), (err) => err instanceof Lost && err.code === 'evicted' && /maintenance/.test(err.message))
  assert.ok(lease.signal.aborted)
})

test('the owner releases from elsewhere', async () => {
  const lease = await client.acquire(name)
  const answer = await fetch(`${server.url}/v1/release`, {
    method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ name, owner: lease.owner })
  })
  assert.equal((await answer.json()).outcome, 'done')
  await client.withLease(name, { wait: 0 }, () => {})
  await assert.rejects(lease.extend(), Lost)
})

test('a shorter grant is renewed in time, for the whole TTL', async () => {
  const { says, calls, url } = await front(server.url)
  says['/v1/acquire'] = SHORT
  await new Client(url).withLease(name, { ttl: LONG }, async (lease) => {
    assert.ok(lease.left <= 5)
    await until(() => lease.left > 5)
  })
  assert.deepEqual(calls.map((call) => call.ttl_ms), [LONG * 1000, LONG * 1000, undefined])
})

test('lost answers cost nothing', async () => {
  const { says, dropped, calls, url } = await front(server.url)
  says['/v1/acquire'] = DROP
  const lease = await new Client(url).acquire(name, { ttl: 6, wait: LONG })
  assert.equal((await client.show(name)).holders[0].token, `${lease.token}`)
  says['/v1/renew'] = DROP
  await until(async () => (await client.show(name)).holders[0].held_ms > 4000)
  lease.check()
  says['/v1/release'] = DROP
  await lease.release().catch((err) => { // where the store does not tell a repetition from a loss
    assert.ok(err instanceof Unknown && /released or lost/.test(err.message))
  })
  assert.deepEqual(dropped, [['/v1/acquire', 200], ['/v1/renew', 200], ['/v1/release', 200]])
  assert.deepEqual(calls.map((c) => c.call), calls.map((_, i) => i + 1))
  assert.ok(calls.every((c) => c.answered === undefined)) // the server learns that the first acquire may still come
  await new Client(url).withLease(name, { wait: 0 }, (lease) => lease.extend())
  assert.deepEqual(calls.slice(-3).map((c) => c.answered), [undefined, 1, 2])
  await client.withLease(name, { wait: 0 }, () => {})
})

test('a waiter pauses at an instance that stops', async () => {
  const { says, calls, url } = await front(server.url)
  says['/v1/acquire'] = STOPPING
  const began = performance.now()
  setTimeout(() => delete says['/v1/acquire'], 1000)
  await new Client(url).withLease(name, { ttl: 10 * LONG, wait: LONG }, () => {
    assert.ok(calls.length <= (performance.now() - began) / 200 + 2, `${calls.length} calls`) // a pause is 200 ms
  })
})

test('a store that is read-only or full for a while costs no wait and no release', async () => {
  for (const code of ['read_only', 'full']) {
    const { says, calls, url } = await front(server.url)
    const refused = { status: 503, outcome: 'refused', code }
    says['/v1/acquire'] = refused
    const waits = new Client(url).acquire(name, { ttl: LONG, wait: LONG })
    await Promise.race([waits, until(() => calls.length > 1)])
    delete says['/v1/acquire']
    const lease = await waits
    says['/v1/release'] = refused
    const releases = () => calls.filter((call) => !call.ttl_ms).length
    const released = lease.release()
    await Promise.race([released, until(() => releases() > 1)])
    delete says['/v1/release']
    await released
    await client.withLease(name, { wait: 0 }, () => {})
  }
})

test('a waiter that calls too often keeps its place', async () => {
  const { says, calls, url } = await front(server.url)
  says['/v1/acquire'] = TOO_MANY
  await assert.rejects(new Client(url).acquire(name, { wait: LONG }), (err) => err instanceof Refused && err.status === 429)
  says['/v1/acquire'] = STOPPING
  const acquires = () => calls.filter((call) => call.ttl_ms).length
  const waits = new Client(url).acquire(name, { wait: LONG })
  await until(() => acquires() > 1)
  says['/v1/acquire'] = TOO_MANY
  await Promise.race([waits, until(() => acquires() > 3)])
  delete says['/v1/acquire']
  await (await waits).release()
})

test('a waiter whose first call had no answer keeps its place though it calls too often', async () => {
  const { says, dropped, calls, url } = await front(server.url)
  says['/v1/acquire'] = DROP
  const waits = new Client(url).acquire(name, { ttl: 10 * LONG, wait: LONG })
  await Promise.race([waits, until(() => dropped.length > 0)])
  says['/v1/acquire'] = TOO_MANY
  await Promise.race([waits, until(() => calls.length > 2)])
  delete says['/v1/acquire']
  await (await waits).release()
})

test('a waiter that may not wait keeps its place by a call that does not', async () => {
  const { says, calls, url } = await front(server.url)
  const lease = await client.acquire(name, { ttl: 10 * LONG })
  says['/v1/acquire'] = STOPPING
  const waits = new Client(url).acquire(name, { wait: LONG })
  await until(() => calls.length > 0)
  says['/v1/acquire'] = TOO_MANY
  const before = calls.length
  await Promise.race([waits, until(() => calls.length > before)])
  delete says['/v1/acquire']
  await until(async () => (await client.show(name)).waiters.length > 0)
  await until(() => calls.length > before + 1 && calls.at(-1).wait_ms)
  assert.deepEqual(calls.slice(before, before + 2).map((call) => [call.wait_ms > 0, call.queue]), [[true, true], [false, true]])
  await lease.release()
  await (await waits).release()
})

test('a pause after too many calls ends with the wait', async (t) => {
  const pauses = []
  const { setTimeout } = globalThis
  t.mock.method(globalThis, 'setTimeout', (work, ms, ...args) => {
    if (/leasehold\.mjs/.test(new Error().stack)) pauses.push(ms)
    return setTimeout(work, ms, ...args)
  })
  const { says, calls, url } = await front(server.url)
  says['/v1/acquire'] = STOPPING
  const waits = assert.rejects(new Client(url).acquire(name, { wait: 0.9 }))
  await until(() => calls.length > 0)
  says['/v1/acquire'] = TOO_MANY
  await waits
  assert.ok(pauses.length > 0)
  assert.deepEqual(pauses.filter((ms) => ms > 900 && ms < 4000), []) // what is longer is the timeout of a call
})

test('a grant without an answer is given back', async () => {
  const { says, url } = await front(server.url)
  says['/v1/acquire'] = DROP
  const options = { ttl: 10 * LONG, wait: 0, atLeast: 10 * LONG }
  await assert.rejects(new Client(url).acquire(name, { ...options, signal: AbortSignal.timeout(LONG * 1000) }), Unknown)
  await client.withLease(name, { ...options, wait: LONG }, () => {})
  await assert.rejects(client.acquire(name, { wait: 0 }), Busy)
})

test('a grant before the store was read-only is given back', async () => {
  const { says, url } = await front(server.url)
  says['/v1/acquire'] = READ_ONLY
  await assert.rejects(new Client(url).acquire(name, { ttl: 10 * LONG, wait: 0 }), (err) => err instanceof Refused && err.code === 'read_only')
  await client.withLease(name, { wait: LONG }, () => {})
})

test('a server that never answers is an unknown outcome, and can be given up', async () => {
  const url = await silent()
  const hasty = new Client(url, { timeout: 0.5 })
  for (const call of [() => hasty.acquire(name, { wait: 0 }), () => hasty.acquire(name, { wait: 1 }), () => hasty.show(name)]) {
    await assert.rejects(call, Unknown)
  }
  const ends = new AbortController()
  const waits = new Client(url).acquire(name, { signal: ends.signal })
  ends.abort(new Error('not any more'))
  await assert.rejects(waits, /not any more/)
})

test('a call that can be given up ends by its timeout, whatever garbage is collected', async () => {
  const waits = `import net from 'node:net'
import { Client } from ${JSON.stringify(import.meta.resolve('leasehold'))}
for (const said of ['', 'HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\n{']) {
  const server = net.createServer((socket) => socket.write(said)).listen(0, '127.0.0.1', async () => {
    const ends = new AbortController()
    const client = new Client('http://127.0.0.1:' + server.address().port, { timeout: 1 })
    const error = await client.acquire('x', { ttl: 1, wait: 0, signal: ends.signal }).catch((err) => err)
    console.log(error.constructor.name)
    ends.abort()
    server.unref()
  })
}
setInterval(gc, 100).unref()`
  const node = spawn(process.execPath, ['--expose-gc', '--always-turbofan', '--input-type=module', '-e', waits], { stdio: ['ignore', 'pipe', 'inherit'] })
  started.push({ kill: () => node.kill('SIGKILL') })
  const lines = createInterface({ input: node.stdout })[Symbol.asyncIterator]()
  const late = setTimeout(() => node.kill('SIGKILL'), 10 * LONG * 1000) // it compiles all that it runs
  assert.deepEqual([(await lines.next()).value, (await lines.next()).value], ['Unknown', 'Unknown'])
  clearTimeout(late)
})

test('a wait ends whatever the reason of its signal is', async () => {
  for (const options of ['', ', wait: 0']) {
    const waits = `import { Busy, Client } from ${JSON.stringify(import.meta.resolve('leasehold'))}
const ends = new AbortController()
new Client(${JSON.stringify(await silent())}).acquire('x', { signal: ends.signal${options} }).catch((err) => console.log(err.message))
ends.abort(new Busy('of another lock'))
setTimeout(() => console.log('the event loop turns'), 0)`
    const node = spawn(process.execPath, ['--input-type=module', '-e', waits], { stdio: ['ignore', 'pipe', 'inherit'] })
    started.push({ kill: () => node.kill('SIGKILL') })
    const lines = createInterface({ input: node.stdout })[Symbol.asyncIterator]()
    const late = setTimeout(() => node.kill('SIGKILL'), LONG * 1000)
    assert.deepEqual([(await lines.next()).value, (await lines.next()).value], ['of another lock', 'the event loop turns'])
    clearTimeout(late)
  }
})

test('an acquire that is given up has no answer, whatever the reason', async () => {
  for (const reason of [new Error('not any more'), new Lost('another lease'), new Busy('another lock')]) {
    for (const wait of [0, LONG]) {
      const { says, calls, hung, url } = await front(server.url)
      Object.assign(says, { '/v1/acquire': HANG, '/v1/release': { status: 200, outcome: 'done' } })
      const ends = new AbortController()
      const waits = new Client(url).acquire(name, { wait, signal: ends.signal })
      await until(() => hung.length > 0)
      ends.abort(reason)
      await assert.rejects(waits, reason)
      await until(() => calls.length > 0)
      assert.deepEqual([calls[0].call, calls[0].answered], [2, undefined])
    }
  }
})

test('a wrong token is unauthorized', async () => {
  const folder = await mkdtemp(join(os.tmpdir(), 'leasehold-'))
  started.push({ kill: () => rm(folder, { recursive: true }) })
  const access = join(folder, 'access.json')
  const tokens = [createHash('sha256').update('secret').digest('hex')]
  await writeFile(access, JSON.stringify({ clients: [{ name: 'ci', tokens, rules: [{ prefix: '', rights: ['view', 'lock'] }] }] }))
  const { url } = await serve(undefined, ['--access', access])
  for (const [token, code] of [[undefined, 'unauthenticated'], ['wrong', 'wrong_token']]) {
    await assert.rejects(new Client(url, { token }).acquire(name), (err) => err instanceof Unauthorized && err.status === 401 && err.code === code)
  }
  const known = new Client(url, { token: 'secret' })
  await known.withLease(name, async () => {
    const { holders: [holder] } = await known.show(name)
    await assert.rejects(known.evict(name, holder.handle, 'no'), (err) => err instanceof Unauthorized && err.status === 403 && err.code === 'denied')
  })
})

test('a token of a file has a line end, and shows in no error', async () => {
  const heads = []
  const stands = createServer((request, response) => {
    heads.push(request.headers.authorization)
    response.end('{}')
  })
  await new Promise((resolve) => stands.listen(0, '127.0.0.1', resolve))
  started.push({ kill: () => { stands.closeAllConnections(); stands.close() } })
  const url = `http://127.0.0.1:${stands.address().port}`
  for (const token of [' secret\r\n', 'secret\n']) await new Client(url, { token }).features()
  assert.deepEqual(heads, ['Bearer secret', 'Bearer secret'])
  for (const token of ['secret\r\nX: y', 'secret\0', 'secret\u20ac', 's\u00e9cret']) {
    assert.throws(() => new Client(url, { token }), (err) => err instanceof TypeError && !/s.cret/.test(inspect(err)))
  }
  for (const wrong of ['https://:secret@localhost:74000', 'https://:secret@localhost', 'secret']) {
    assert.throws(() => new Client(wrong), (err) => err instanceof TypeError && !/secret/.test(inspect(err)))
  }
})

// held does with a process that holds name at url until it says so. A TTL that a busy machine lets pass before is doubled: then
// act returns false, or the process tells of its end in place of a token.
async function held (url, options, act) {
  for (let ttl = 2; ; ttl *= 2) {
    const args = [fileURLToPath(new URL('holder.mjs', import.meta.url)), url, name, String(ttl), ...options]
    const program = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
    started.push({ kill: () => program.kill('SIGKILL') })
    const lines = createInterface({ input: program.stdout })[Symbol.asyncIterator]()
    const next = async () => JSON.parse((await lines.next()).value)
    const { token, ended } = await next()
    if (token && await act({ program, next, token: BigInt(token), wait: LONG + ttl }) !== false) return
    assert.ok(ttl < LONG, `the process loses a lease of ${ttl} s: ${ended}`)
  }
}

test('a wanted holder that is killed', async () => {
  const url = await telling()
  const client = new Client(url)
  await held(url, ['yields'], async ({ program, next, token, wait }) => {
    const waiter = client.acquire(name, { wait })
    const { wanted } = await next()
    program.kill('SIGKILL')
    const lease = await waiter
    await lease.release()
    if (!wanted) return false
    assert.ok(lease.token > token)
  })
})

test('a stopped process does not believe that it holds', async () => {
  await held(server.url, [], async ({ program, next, token, wait }) => {
    program.kill('SIGSTOP')
    await client.withLease(name, { wait }, async (lease) => {
      const granted = process.hrtime.bigint()
      assert.ok(lease.token > token)
      program.kill('SIGCONT')
      const { ended, believed } = await next()
      assert.equal(ended, 'Lost')
      assert.ok(BigInt(believed) < granted)
    })
  })
})
