// Package leasehold gives out distributed locks: many processes want the same thing, and
// exactly one may have it.
//
// A Locker works on any engine that package driver describes. Acquire waits for its turn
// and returns a Lease; a lease is renewed until it is released, and it ends by itself
// when it cannot be.
//
// # What a lease guarantees
//
// The holder learns first: the context of a lease ends no later than its deadline,
// whatever the network does. The deadline is the instant before the granting or renewing
// call was sent, plus the TTL, less a drift for clocks that run at different rates, on
// this process's monotonic clock. The engine counts the TTL from later, so a successor is
// granted only after the context has ended. A machine that sleeps is the one exception: see Clocks.
//
// Every grant has a fencing token greater than every earlier one of its resource, where
// the engine's Features say Fencing.
//
// Release tells the truth: released, lost before ([ErrLost]), or unknown (any other error). Within
// [Options.HandOver] of a grant it may hand the lease to a waiter of the process, and then says
// released by what the engine last said.
//
// A call that fails leaves neither a lock nor a place in a queue, and a call whose answer
// got lost never makes its caller wait for itself.
//
// # What no lock can guarantee
//
// A process can be paused, by its garbage collector, its hypervisor or SIGSTOP, between
// its check of the lease and its write. When it goes on, another may hold the lease, and
// the write still happens. Only the thing that is written to can refuse it: give it the
// token with each write and let it refuse smaller ones. Package fence does that.
//
// A lock does not make anything happen exactly once: a holder may die half-way, and the
// next one cannot know how far it came. fence.Once notes it in the transaction of the effect.
//
// # Clocks
//
// Instants never leave a process; durations do. The engine's clock decides when a lease
// expires, and it must not jump: an engine whose wall clock is set forward ends leases
// early, and their holders learn it at their next renewal. This process's clock may show
// any time, but it must not run slower than the engine's by more than [Options.Drift].
//
// A machine that sleeps stops its monotonic clock, but not the engine's: a successor may be
// granted meanwhile. On Linux, deadlines count the sleep (CLOCK_BOOTTIME). A lease that ended
// in it ends just after the machine wakes up, with a cause that says how long the machine slept.
// The context's Err and Release know at once, but for a moment others see both holders. On
// other systems, such as macOS and Windows, nothing tells of the sleep. A lease there may look live
// for as long as the machine slept, until the next renewal or the deadline ends it.
package leasehold
