// Package leasehold provides distributed locks: among many processes that want the same
// resource, one at a time holds it, or a limited number share it.
//
// A [Locker] works on a driver, which connects it to an engine: the server, database or file that
// keeps the leases. Package memory has a driver for tests, the packages below engine have all
// others, and package stores opens those by URL.
//
// [Locker.Do] calls a function under a lock. [Locker.Acquire] waits for its turn and returns a
// [Lease], which is renewed until it is released, and ends by itself when it cannot be renewed.
//
// # What a lease guarantees
//
// The holder learns of a loss before anyone else is granted the resource: the context of a
// lease ends no later than its deadline, whatever the network does. The Locker reads this
// process's monotonic clock before it sends the call that grants or renews the lease. The deadline
// is that instant plus the TTL, less an allowance for clocks that run at different rates. The
// engine starts to count later, so it grants a successor only once the context has ended.
//
// The exceptions are a machine that sleeps, an engine's clock that jumps (see Clocks),
// [Locker.Evict], and an engine that loses a grant, as in a failover. Then only fencing tokens
// protect the resource.
//
// On engines whose Features include Fencing, each grant has a fencing token that is greater than
// all earlier ones of its resource. The page of each engine lists the exceptions.
//
// Release reports what is known: released (nil), lost before ([ErrLost]), or unknown (any other
// error). [ErrReleased] means that an earlier call has returned one of the first two. A lease may
// stay in the process, for a waiter or for the next call ([Options.HandOver], [Options.Keep]). Then
// Release returns nil without asking the engine.
//
// A call that fails leaves neither a lock nor a place in a queue. If it cannot reach the engine to
// clean up, what is left ends with its TTL. If an answer is lost, the next attempt of the same call
// finds the grant instead of waiting behind it.
//
// # What no lock can guarantee
//
// A process can be paused between its check of the lease and its write: by its garbage collector,
// its hypervisor or SIGSTOP. When it continues, another process may hold the lease, and the write
// still happens. Only the resource that is written to can refuse it. Send the token with each
// write, and let the resource refuse smaller ones. Package fence does that.
//
// A lock does not make anything happen exactly once. A holder may die halfway, and the next one
// cannot know how much was done. To know, record in the transaction that does the work that it was
// done: see fence.Once.
//
// # Clocks
//
// Durations are sent between processes, instants never are. The engine's clock decides when a
// lease expires, and it must not jump. If an engine's wall clock is set forward, leases end
// early, and their holders learn of it at their next renewal. This process's clock may show any
// time, but must not run slower than the engine's by more than [Options.Drift].
//
// When a machine sleeps, its monotonic clock stops but the engine's does not, so a successor may be
// granted meanwhile. On Linux, deadlines count the sleep (CLOCK_BOOTTIME). If a lease expired
// during the sleep, its context ends just after the machine wakes up, with a cause that says how
// long the machine slept. The context's Err and Release report it at once, but for a moment its
// Done channel may be open while a successor holds the resource. Other systems, such as macOS and
// Windows, do not report the sleep. There a lease may look live until the next renewal fails or the
// deadline passes, but for no longer than the machine slept.
package leasehold
