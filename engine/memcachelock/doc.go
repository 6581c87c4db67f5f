// Package memcachelock is Leasehold's driver for memcached, for programs that have no other
// store. Its locks avoid duplicate work, and must not be trusted with anything that must never
// happen twice.
//
// A resource is an item with a record, which is read with its version and written if it is
// unchanged. An exclusive lease is an item that is added if there is none, and expires. So it
// excludes, and is excluded by, every client that acquires a lock with add.
//
// Memcached may evict a lease, loses everything when it restarts, and has no counter that
// survives this. There are no fencing tokens, no shared leases and no queue, and waiters poll.
// See docs/engines/memcached.md.
//
// # Phases of a claim
//
// A claim is in one phase, which follows from the last answer about it. An error is no answer
// and keeps the phase, with one exception. A first Try that did not reach the server leads to
// over. So a claim that may take over a lease must begin with another call.
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
// Adds that were sent and have no answer are uncertain. While there are any, the claim asks the
// server even where the table says that nothing is asked. Its release leaves an ownerless record
// for barTTL, so that late adds find the name taken. A swap without an answer needs no care,
// because whatever is written after it has another version.
package memcachelock
