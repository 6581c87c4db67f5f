// Package caslock makes an engine of any store with compare-and-swap on small values: object
// stores, key-value buckets, coordination objects. It serves exclusive, shared and limited
// leases, a fair queue, fences, notes, inspection and eviction. A Store has three methods; see
// docs/own-engine.md.
//
// # How it works
//
// Each resource has one record: its last fence and its claims in order. The record is the value
// of the resource's name. Each call of a claim reads it, changes it, and writes it if it is
// unchanged, or else starts over. Instead of reading, a call uses the last record that this
// process has seen: if that is out of date, the write is refused. A no (lost, busy) always
// follows a read.
//
// # Waiters
//
// Places in the queue are claims of the record, at most 64. Each process renews its places by
// one write each quarter of [Options.Place]. A waiter that finds all places taken asks again
// from time to time.
//
// In a store that is a [Queuer] each waiter's place is a value of its own. The numbers of the first
// writes of these values give their order. So only grants and releases write the record. Each process
// with waiters writes one heartbeat for all of them. It learns of places and heartbeats by one watch
// and keeps the queue in memory: a waiter asks the store only when it is first.
//
// A process counts another as dead when it has seen four of its own heartbeats since the other's
// last one. So no clock is shared, and time in which either is stopped does not count. Places of
// the dead are passed over and removed. A waiter that was passed over but continues queues
// again. A process removes its own places that have no waiter. A waiter may continue in another
// process, such as another instance of the service. That process takes the place over: it rewrites
// the value as its own, and keeps the number of the first write.
//
// If a process's watch does not hear for the length of Place, its waiters cannot ask. It then writes
// no heartbeats until the watch hears again.
//
// A place decides only the order; the record says who holds. The record also says whether there
// may be places, so that a newcomer checks for them before a grant only then. line.mark
// describes how this mark is cleared.
//
// Processes of older releases have their places in the record. They pass waiters whose places
// are values, which wait for them. Leases stay exclusive while both kinds run, and the order
// returns with the end of the last old process.
//
// # Recalls
//
// A holder may want to know that others wait ([driver.Request.Wanted]). Its process then keeps the
// watch on for as long as the lease lasts. Each new place, in the record or beside it, is reported
// at once. A watch that begins after the grant may have missed a place, so the record is then read
// once. Each renewal also notifies the holder, by the record that it writes. If the record says
// that there are places beside it, the process keeps the queue in memory, as one with waiters does,
// until a renewal has cleared the mark.
//
// Waiters that find all 64 places taken recall nobody, but those 64 do. In a store that is no
// Watcher, only grants and renewals notify holders.
//
// # Time
//
// No two processes share a clock, and none asks the store for its own. Each renewal raises the
// heartbeat of its claim. A claim is over when this process has seen the same heartbeat for the
// claim's TTL plus 1 % plus 2 ms. It measures this on its own monotonic clock, from the arrival
// of the first answer with that heartbeat. The holder wrote the heartbeat earlier, and its
// deadline counts from before it sent it. So the deadline has passed when anybody finds the
// claim over. Dropping a claim is a write, which is refused if the claim was renewed meanwhile.
// A heartbeat starts at a random number, so that two claims' heartbeats differ. It grows by random
// steps, so that heartbeats after a store went back differ from those before.
//
// So no wall clock matters, except for how long a lease is shown as held. This has a price. A
// process that has just started must watch a dead holder for a whole TTL, however long it has
// been dead. A process that asks only once, and ends, never learns of the death. If the store
// knows how long a value has been there, [Item.Age] avoids both.
//
// # Bounds
//
// A store limits the size of its values. A newcomer to a record with other claims leaves room
// for what these have to write. So the newcomer is refused, and not the renewal of a holder.
//
// # Uncertain writes
//
// A write without an answer may be served later, as long as the name has the version that the
// write expects. So the next call of its claim reads, and writes, unless the version that it reads
// is a later one by its number. Then the later of both writes is refused.
//
// Every record carries a number that no other has. So a store whose versions are hashes of the
// contents never has the same version twice. It also carries the numbers of the last writes
// before it. A caller that finds its own number among them knows that its write succeeded,
// although a client or a proxy that repeats requests got a refusal. A release that was refused,
// and finds neither its lease nor its number, is a loss if the record proves that nothing else
// came in between. Otherwise, as after a removal, its outcome is unknown.
//
// # Removal of records
//
// A record without claims stays: its fence must not be forgotten, and a late write to a removed
// name would bring an old one back. Only in a Counter is it removed, unless its fence was raised
// above the store's numbers: the number of the next grant is greater anyway. It also stays while a
// write without an answer may be served late. On Kubernetes, to remove what is not there writes
// nothing, so the late write would still be accepted.
package caslock
