// Package memcachelock is Leasehold's driver for memcached, for those who have nothing
// else: it saves work that two would otherwise do, and must not be trusted with what
// must never happen twice.
//
// What is known of a resource is a record in an item, which is read with its version and
// written if it is still the same. An exclusive lease is an item that was stored where
// there was none, and expires. So it excludes, and is excluded by, every client that takes
// a lock with add. Memcached has no memory to rely on: it may evict a lease, forgets all
// when it restarts, and has no counter that outlives that. There are no fencing tokens, no
// shared leases, no queue, and waiters poll. See docs/engines/memcached.md.
//
// # Phases of a claim
//
// A claim is in one phase, which is what the last answer about it said. An error is no
// answer and leaves the phase, but for a first Try that did not reach the server: over.
//
//	phase    Try                       Renew, Linger      Release
//	idle     adds                      asks, takes over   asks, takes over
//	refused  reads, adds if there      asks               nothing to give up: lost,
//	         is nothing                                   and nothing is asked
//	held     reads, swaps if it is     asks               asks
//	         there, adds if not
//	over     as idle                   asks               as refused
//
//	answer   granted   refused   renewed   released, lingers   lost
//	phase    held      refused   held      over                over
//
// Uncertain are adds that were sent and have no answer. While there are any, the claim is
// asked for wherever the table says that nothing is; its release leaves a record that
// nobody owns for barTTL, in which they arrive and find the name taken. A swap that has no
// answer needs nothing: whatever is written after it has another version.
package memcachelock
