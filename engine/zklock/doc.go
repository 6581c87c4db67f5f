// Package zklock is Leasehold's driver for ZooKeeper.
//
// A claim is a protected ephemeral sequential node below the resource's node. The claims of a
// resource hold in the order of their sequence numbers: an exclusive one alone, shared ones
// together up to their limits. A waiter watches the one ahead. The fencing token is the zxid
// that created the node. Exclusive claims have the names that Curator's InterProcessMutex and
// go-zookeeper's Lock use, so that all exclude each other. So do shared claims that weigh more than
// 1, with their weights in their names: clients that know no weights queue behind them.
//
// Leases depend on a session. Their TTL is two thirds of its timeout, they end with it, and
// another process cannot resume them. A Driver has a session for each TTL. If
// [Options.SessionTimeout] is set, it has only one session and one TTL
// ([driver.Features.SessionTTL]). Resources leave nothing behind on ZooKeeper 3.5 or newer,
// which is needed. See docs/engines/zookeeper.md.
//
// # The phases of a claim
//
// A claim is in one of four phases. It is idle if it has nothing at the ensemble. It is queued
// if its node is there, or may be, and was not granted. It is held if it was granted and is not
// known to have ended. It is leaving if its node must go and may be gone. One call at a time
// changes the phase, and events may end a held lease meanwhile.
//
// A creation without an answer is uncertain: the node may exist, or still come. No other call may
// come late. A node that is to be deleted is never used again, so a deletion without an answer is
// simply leaving.
//
// A claim whose creation is uncertain first looks for the node, after a sync. The leader answers
// the sync after everything that it has proposed. Without one, a server to which the client has
// switched might show no node while the creation waits for a quorum.
//
// phase.go has the table of transitions.
//
// A lease is lost when the session ends, or may have ended, when somebody deletes the node, and
// when the driver is closed. It is over when it was not renewed. Its node stays until then, or
// until it is given up. Renew returns ErrLost in all phases but held.
//
// The caller may die in any phase. So every phase but idle has a timeout after which the timer
// gives the node up. That is 4 s after the last Try for a place in the queue and for a grant
// that nobody takes. It is the end of a lease, and a second after the last attempt in leaving.
//
// # Files
//
//	driver, options, url   the driver's life cycle, RenewAll, options
//	claim, try, linger     calls of a claim: renewal and release; Try; Linger
//	phase                  phases, and the timer of a claim
//	next, watch            notifications, and grants without a Try; the watches of a session
//	limit                  limits that operators set
//	recall                 notifies holders of waiters, see Request.Wanted
//	view                   one view of the queue for all waiters of a session
//	create, node, path     nodes: their creation, names, contents and paths
//	session, proof         sessions, their connections, and how long they live
//	wire, hosts            details of a connection that go-zookeeper hides; servers in turn
//	inspect, check         inspection and checks for operators
//	errors, shown          errors; printing without owners
package zklock
