// Package leasehold provides distributed locks: among many processes that want the same
// resource, one at a time holds it.
//
// A [Locker] works on any engine that implements package driver. [Locker.Acquire] waits for its
// turn and returns a [Lease]. The lease is renewed until it is released. If it cannot be
// renewed, it expires.
//
// # What a lease guarantees
//
// The holder learns of a loss before anyone else is granted the resource. The context of a lease
// ends no later than its deadline, whatever the network does. The deadline is the instant before
// the granting or renewing call was sent, plus the TTL, less an allowance for clock drift. It is
// measured on this process's monotonic clock. The engine starts to count the TTL later, so it
// grants a successor only after the context has ended. A machine that sleeps is the one
// exception: see Clocks.
//
// On engines whose Features include Fencing, each grant has a fencing token that is greater than
// all earlier ones of its resource.
//
// Release reports what is known: released, lost before ([ErrLost]), or unknown (any other
// error). Within [Options.HandOver] of a grant it may hand the lease to a waiter in the same
// process. It then reports released, by the engine's last answer.
//
// A call that fails leaves neither a lock nor a place in a queue. If the answer to a call is
// lost, its caller never ends up waiting for itself.
//
// # What no lock can guarantee
//
// A process can be paused between its check of the lease and its write: by its garbage
// collector, its hypervisor or SIGSTOP. When it continues, another may hold the lease, and the
// write still happens. Only the resource that is written to can refuse it. Send the token with
// each write, and let the resource refuse smaller ones. Package fence does that.
//
// A lock does not make anything happen exactly once. A holder may die halfway, and the next one
// cannot know how much was done. To know, record the effect in its own transaction: see
// fence.Once.
//
// # Clocks
//
// Durations are sent between processes, instants never are. The engine's clock decides when a
// lease expires, and it must not jump. If an engine's wall clock is set forward, leases end
// early, and their holders learn of it at their next renewal. This process's clock may show any
// time, but must not run slower than the engine's by more than [Options.Drift].
//
// When a machine sleeps, its monotonic clock stops but the engine's does not, so a successor may
// be granted meanwhile. On Linux, deadlines count the sleep (CLOCK_BOOTTIME). A lease that ended
// during the sleep ends just after the machine wakes up, with a cause that says how long the
// machine slept. The context's Err and Release report it at once, but for a moment others see
// both holders. Other systems, such as macOS and Windows, do not report the sleep. There a lease
// may look live for as long as the machine slept, until the next renewal or the deadline ends
// it.
package leasehold
