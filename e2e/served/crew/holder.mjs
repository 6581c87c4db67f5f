// Takes the lease NAME at URL again and again, until its standard input ends, and prints a line of JSON
// for each time that it believed to hold it: from and until, by the kernel's monotonic clock in nanoseconds.
// It holds for 20 ms, and for as long as the file LONGER is there.
import { existsSync } from 'node:fs'

const { Busy, Client, LeaseholdError } = await import(process.env.CLIENT)
const [url, name, ttl, longer] = process.argv.slice(2)
const client = new Client(url)
const clock = () => process.hrtime.bigint()
const say = (what) => process.stdout.write(JSON.stringify(what, (_, v) => typeof v === 'bigint' ? `${v}` : v) + '\n')

let stopping = false
process.stdin.on('end', () => { stopping = true }).resume()
while (!stopping) {
  try {
    await client.withLease(name, { ttl: Number(ttl), wait: 10, note: 'node' }, async (lease) => {
      const from = clock()
      let until = from
      for (let now = from; lease.left > 0; now = clock()) {
        until = now // it was held still
        if (until > from + 20_000_000n && !existsSync(longer)) break
        await new Promise((resolve) => setTimeout(resolve, 10))
      }
      say({ token: lease.token, from: Number(from), until: Number(until) })
    })
  } catch (err) {
    if (err instanceof Busy && !stopping) say({ busy: true })
    else if (!(err instanceof LeaseholdError)) throw err // else unknown or lost: the next call tells
  }
}
process.exit(0) // not before calls that are under way for nobody
