// Package etcdlock is Leasehold's driver for etcd.
//
// A claim is a key of its own, prefix/escaped-name/<lease id in hex>-<number>, under an etcd
// lease. A weight above 1 ends the key, as w<weight>. The order of create revisions is the queue,
// and the create revision is the fence. So an exclusive lease excludes, and is excluded by,
// clientv3/concurrency and "etcdctl lock".
//
// All claims of one TTL share a session: an etcd lease that the driver keeps alive over one
// stream, but only when a claim asks for it. etcd 3.4 or newer is needed. See
// docs/engines/etcd.md.
//
// # Phases
//
// A place is a claim's presence at etcd: the life of one key. Claims of one owner in one driver
// share it. It is in one phase; the table in phase.go has all transitions.
//
// In any phase, calls may have had no answer (uncertain in phase.go). They never grant: the next Try
// finds a late put as the place's own key. From Release on, a tombstone or a mark of its owner
// (barred.go) keeps the put out.
//
// # Files
//
//	etcdlock, url       options; the driver's life cycle
//	claim, find         Try, and the place that a claim continues with
//	renew, release      Renew and RenewAll; Release, Linger, Note and Forget
//	barred              releases that keep an owner out
//	place, phase        places and their phases
//	wait, line          how a place waits; the queue as a driver knows it
//	watch               the watches, and why a key is gone
//	recall              notifies holders of waiters
//	session, keepalive  leases of etcd
//	sweep, strays       places that nobody renews; keys that a restored cluster has again
//	call, batch         transactions, repeated and batched
//	read, put, change   operations on keys: a change is a move, a new value or a deletion
//	limit               limits of operators
//	keys, errors        names and values of keys; errors
//	inspect, check      inspection and checks for operators
//	links, shown        connections; printing without owners
package etcdlock
