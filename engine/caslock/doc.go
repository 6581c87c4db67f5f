// Package caslock makes an engine of any store that can replace a small value only if it is
// unchanged: object stores, key-value buckets, coordination objects. It serves exclusive,
// shared and limited leases, a fair queue, fences, notes, inspection and eviction. A Store is
// three calls; see docs/own-engine.md.
//
// # How it works
//
// All that is known of a resource, its last fence and its claims in order, is one record, and
// the record is the value of the resource's name. Each call of a claim reads it, changes it,
// and writes it if it is still the same, else it begins again. The last record that this
// process has seen stands in for the read: when it is out of date, the write is refused. A no
// (lost, busy) is always read.
//
// # Who waits
//
// Places in the queue are claims of the record, at most 64. Each process keeps its own by one write each quarter of
// [Options.Place], and whoever finds all of them taken asks again from time to time.
//
// In a store that is a [Queuer] each waiter has a place in a value of its own, so that the record is written by a turn
// alone, and its order is the number of that value. Each process that has waiters writes one beat for all of them, and
// each hears places and beats by one watch, and has the queue in memory: a waiter asks the store only when it is first.
// A process is dead to another that has heard four beats of its own since the last one of that process. So no clock is
// shared, and time in which either stands still does not count. Places of the dead are passed and removed; who was
// passed and goes on queues anew. What nobody waits for its own process removes.
//
// A place decides the order and nothing else: what is held, the record says. The record also says whether there may be
// places, so that whoever comes looks before a grant only then. line.mark has how that is cleared.
//
// Processes of releases before there were such values have their places in the record. They pass
// waiters that have values, which wait for them. Leases stay exclusive while both kinds run, and
// the order returns with the end of the last old process.
//
// # Time
//
// No two processes share a clock, and none asks the store for its own. Each renewal raises the
// beat of its claim. A claim is over when this process has seen the same beat for the claim's
// TTL and a hundredth and 2 ms more, on its own monotonic clock, from when the first answer
// arrived that showed it. The beat that its holder wrote is older than that, and the holder's
// deadline counts from before it was sent: it has ended when anybody finds so. Whoever drops a
// claim does so by a write, which is refused if the claim was renewed meanwhile. A beat begins
// anywhere, so that those of two claims are never the same, and grows by any step, so that those
// after a store went back are not those before it.
//
// So nobody's wall clock matters, but for how long a lease is shown as held. The price: who
// has just come watches a holder that died for a whole TTL, however long that has been dead,
// and a process that asks only once, and ends, never learns that it is. Where a store knows
// for how long a value has been there, [Item.Age] spares them that.
//
// # What is bounded
//
// A store bounds its values. Whoever comes to a record that others are in leaves room for what they
// have to write, so that he is refused, and not the renewal of who holds.
//
// # What is uncertain
//
// A write that has no answer may be served later, as long as the name has the version that it
// was for. So the next call of its claim reads, and if the version is still that one, it
// writes: then the late one is refused, whichever of both it is. A record carries a number
// that no other has, so that a store whose versions are hashes of the contents never has the same
// twice; and the numbers of the last writes before it. Whoever finds his own among them knows that he has
// written, although a client or a proxy that repeats requests was told no. A release that was refused, and
// finds neither its lease nor its number, is a loss if the record tells that nothing else came
// in between, and else its outcome is unknown: so it is after a removal.
//
// # What is removed
//
// A record without claims stays: its fence must not be forgotten, and a write that comes late
// to a name which has nothing would bring an old one back. Only in a Counter it is removed,
// unless its fence was raised above the store's numbers: the next grant has a number above it
// all the same.
package caslock
