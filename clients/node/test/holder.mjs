// Holds NAME at URL for TTL seconds: holder.mjs URL NAME TTL. It prints a line of JSON when it holds, with the token, and at
// the end, with the name of the error and the last time, by the kernel's monotonic clock, at which lease.check() said that it held.
import { Client } from 'leasehold'

const [url, name, ttl] = process.argv.slice(2)
const say = (what) => console.log(JSON.stringify(what, (_, v) => typeof v === 'bigint' ? `${v}` : v))
let believed = 0n
try {
  await new Client(url).withLease(name, { ttl: Number(ttl) }, async (lease) => {
    say({ token: lease.token })
    for (;;) {
      const before = process.hrtime.bigint()
      lease.check()
      believed = before
      await new Promise((resolve) => setTimeout(resolve, 1))
    }
  })
} catch (err) {
  say({ ended: err.name, believed })
}
