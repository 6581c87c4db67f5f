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
// share it. It is in one phase (phase.go), and Driver.mu guards it:
//
//	idle     it is not known that its key exists: none was put, or a put may still come
//	queued   its key is in the queue
//	held     nobody is ahead, and the engine has said so
//	leaving  its key is to be deleted: by Release, or by the driver
//	over     it has no key, and none will come; the claim begins anew, or is done
//
// What an event does in a phase:
//
//	          yes     no      unknown  lost  release  unwanted
//	idle      queued  ends    idle     ends  ends     ends
//	queued    held    queued  queued   ends  leaving  leaving
//	held      held    ends    held     ends  leaving  leaving
//	leaving   over    over    leaving  ends  leaving  leaving
//	over      over    over    over     over  over     over
//
// "yes" is what the phase is for: the key is there, nobody is ahead, it was renewed, it was
// deleted. "no" is a refusal that leaves nothing, or that there is no such key. "lost" is told by
// the watch, by a read, or by a session that has ended; a holder's Request.Lost is called.
// "release" is the first call of Release or Linger. "unwanted" is that nobody has called for the
// TTL: the caller is gone.
//
// "ends" is over, but leaving as long as something is uncertain: a put, or a move to another
// session, that was sent, had no answer, and may still be served. A place in any phase may have
// such calls (uncertain), and calls under way, which keep it from being unwanted. What is
// uncertain never grants: a put that comes late is found by the next Try as the place's own key,
// or is kept out by a tombstone from Release on, or by a mark of its owner (barred.go); a move that
// comes late keeps the key's place and is undone by the next change of the key, and the key is
// deleted wherever it is found.
// Deletions need no such note: they name the create revision of their key.
//
// A cluster that is restored has keys again that were deleted. One that is in a session of the driver, and
// that no place has, is given to a place that begins in leaving.
package etcdlock
