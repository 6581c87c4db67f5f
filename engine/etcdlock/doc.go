// Package etcdlock is Leasehold's driver for etcd.
//
// A claim is a key of its own, prefix/escaped-name/<lease id in hex>-<number>, under a
// lease of etcd; the order of create revisions is the queue, and the create revision is
// the fence. So an exclusive lease excludes, and is excluded by, clientv3/concurrency and
// "etcdctl lock".
//
// All claims of one TTL share a session, which is a lease of etcd that the driver keeps
// alive over one stream, but only when a claim asks for it. etcd 3.4 or newer is needed.
// See docs/engines/etcd.md.
//
// # Phases
//
// A place is what a claim has at etcd: the life of one key. Claims of one owner in one driver
// share it. It is in one phase, and phase.go has the table of what an event does in each.
//
// A place in any phase may have calls without an answer (uncertain), and calls under way, which
// keep it from being unwanted. What is uncertain never grants: a put that comes late is found by
// the next Try as the place's own key, or is kept out by a tombstone from Release on, or by a mark
// of its owner (barred.go); a move that comes late keeps the key's place and is undone by the next
// change of the key, and the key is deleted wherever it is found. Deletions need no such note:
// they name the create revision of their key.
//
// A cluster that is restored has keys again that were deleted. One that is in a session of the driver, and
// that no place has, is given to a place that begins in leaving.
//
// # Files
//
//	etcdlock, url       options, and the driver from its begin to its end
//	claim, find         Try, and the place by which a claim goes on
//	renew, release      Renew and RenewAll; Release, Linger, Note and Forget
//	barred              releases that keep an owner out
//	place, phase        places and their phases
//	wait, line          how a place waits; the queue as a driver knows it
//	watch               the watch, and why a key is gone
//	session, keepalive  leases of etcd
//	sweep, strays       what nobody renews, and what a restored cluster has again
//	call, batch         transactions, repeated and together
//	read, put, change   what is done to keys: a change is a move, a new value or a deletion
//	keys, errors        names and values of keys; what errors mean
//	inspect, check      what operators ask for
//	links, shown        connections; what prints in place of owners
package etcdlock
