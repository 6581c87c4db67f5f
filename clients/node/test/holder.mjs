// Holds NAME at URL for TTL seconds: holder.mjs URL NAME TTL [yields]. It prints a line of JSON when it holds, with the
// token; of yields, when others wait; and at the end, with the name of the error and the last time, by the kernel's monotonic clock, at which lease.check() said that it held.
import { Client } from 'leasehold'

const [url, name, ttl, yields] = process.argv.slice(2)
const say = (what) => console.log(JSON.stringify(what, (_, v) => typeof v === 'bigint' ? `${v}` : v))
let believed = 0n
try {
  const onWanted = yields && (() => say({ wanted: true }))
  await new Client(url).withLease(name, { ttl: Number(ttl), onWanted: onWanted || undefined }, async (lease) => {
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
