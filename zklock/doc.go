// Package zklock is Leasehold's driver for ZooKeeper.
//
// A claim is a protected ephemeral sequential node below the resource's node. The claims of
// a resource hold in the order of their sequence numbers: an exclusive one alone, shared ones
// together up to their limits. Who waits watches the one ahead. The fencing token is the
// zxid that created the node. An exclusive claim is named as Curator's InterProcessMutex and
// go-zookeeper's Lock name theirs, so that each excludes the others.
//
// A driver has one session, and its leases hang on it: they all have two thirds of the
// session's timeout as TTL (driver.Features.SessionTTL), end with it, and cannot be resumed by
// another process.
// ZooKeeper 3.5 or newer is needed for resources to leave nothing behind. See
// docs/engines/zookeeper.md.
package zklock
