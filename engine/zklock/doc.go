// Package zklock is Leasehold's driver for ZooKeeper.
//
// A claim is a protected ephemeral sequential node below the resource's node. The claims of
// a resource hold in the order of their sequence numbers: an exclusive one alone, shared ones
// together up to their limits. A waiter watches the one ahead. The fencing token is the
// zxid that created the node. An exclusive claim is named as Curator's InterProcessMutex and
// go-zookeeper's Lock name theirs, so that each excludes the others.
//
// Leases hang on a session: they have two thirds of its timeout as TTL, end with it, and cannot
// be resumed by another process. A Driver has a session for each TTL, or one session, and no other
// TTL, where [Options.SessionTimeout] says so ([driver.Features.SessionTTL]).
// ZooKeeper 3.5 or newer is needed for resources to leave nothing behind. See
// docs/engines/zookeeper.md.
//
// # The phases of a claim
//
// A claim is idle (nothing of it is at the ensemble), queued (its node is, or may be, and was not
// granted), held (granted, and not known to have ended), or leaving (its node has to go, and may be
// gone). One call at a time changes it; an event may end a held lease beside that.
//
// What is uncertain is a creation without an answer, marked "?" below: the node may be there, or
// still come. Nothing else may come late: a node that is to be deleted is never used
// again, so that a deletion without an answer is what leaving is. A claim whose creation is
// uncertain looks for the node before all else, behind a sync, which the leader answers after all
// that it has proposed: without one, a server that we have changed to shows no node while the
// creation waits for a quorum, and then it comes.
//
// phase.go has the table of what each event makes of a claim.
//
// A lease is lost when the session ends, or may end before it, when somebody deletes the node,
// and when the driver is closed; it is over when nobody has renewed it. Its node stays until then,
// or until it is given up. Renew answers all but held with ErrLost.
//
// The caller may be gone in each of them. So but for idle each has an instant at which the timer
// gives it up: a place in the queue 4 s after its last Try, and a grant that nobody takes with it; a
// lease at its end; what is leaving a second after the last attempt.
//
// # Files
//
//	driver, options, url   the driver from its begin to its end, RenewAll, options
//	claim, try, linger     calls of a claim: renewal and release; Try; the end that leaves a lease behind
//	phase                  phases, and the timer of a claim
//	next, watch            who is woken, and grants that come without a Try; the watches of a session
//	view                   waiters of one session that look at the queue together
//	create, node, path     nodes: their creation, names, contents and paths
//	session, proof         sessions, their connections, and how long they live
//	wire, hosts            what go-zookeeper does not tell of a connection; servers in turn
//	inspect, check         what operators ask for
//	errors, shown          what errors mean; what prints in place of owners
package zklock
