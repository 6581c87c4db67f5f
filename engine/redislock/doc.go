// Package redislock is Leasehold's driver for Redis: one server, Sentinel or Cluster.
//
// An exclusive lease is a plain string key, prefix + name, whose value is the owner and which
// expires. So it excludes, and is excluded by, every client that acquires a lock with SET key
// value NX PX and releases it by compare-and-delete. Fencing tokens, the fair queue and shared
// leases live in companion keys of the same hash slot.
//
// Redis 7.0 or newer is needed, or Valkey. Replication is asynchronous: after a failover, a
// replica that had not received a grant gives it to a second holder, unless [Options.Replicas]
// asks for acknowledgements. See docs/engines/redis.md.
//
// # The phases of a claim
//
// A claim is in one phase, which only answers change. Its state also records which calls are
// uncertain: +attempt and +release were sent, have no answer, and may still be served. In the
// table, "no" is a refusal without a place in the queue and "place" one with a place. "unknown"
// is no answer, for example because the caller has gone. "brought" is a grant that the server
// made without another Try.
//
//	event            idle             queued           held             leaving +release  over
//	Try yes          held             held             held             held              held
//	Try no           idle             idle             idle             idle              idle
//	Try place        queued           queued           queued           queued            queued
//	Try unknown      idle +attempt    queued +attempt  held +attempt    leaving +attempt +release  over +attempt
//	brought          held             held             held             held +release     held
//	Renew yes        held             held             held             held +release     held
//	Renew lost       over             over             over             over +release     over
//	Renew unknown    idle             queued           held             leaving +release  over
//	Release yes      over             over             over             over              over
//	Release nothing  over             over             over             over              over
//	Release unknown  leaving +release leaving +release leaving +release leaving +release  leaving +release
//
// After a Release that gave something up, another one sends nothing until the next Try or Renew.
//
// Uncertainty outlives the phase. An attempt or a release that may still arrive cannot do harm,
// because a Release or the next attempt leaves a mark that refuses it. A renewal that arrives
// late does no harm either. It extends the lease, or shortens it only if the lease still ends
// when the renewal says.
//
// # Files
//
//	redislock, url, redlock   options; the driver's life cycle; Redlock
//	claim, plain, phase       Try, Release and Linger; their fast path without contention; phases
//	together                  TryAll and ReleaseAll
//	renew, renewall, note     Renew, RenewAll and Note
//	script, keys              the scripts, and the keys of a resource
//	send, pipeline, conn      a call, its route to a server, the connection
//	connect, contact, resp    connecting, the handshake, the protocol
//	slot, server              hash slots of Cluster; versions and INFO of servers
//	crowd                     the waiters of one lock, whose places are kept together
//	subscriber, shards        notifications, and grants without a Try; the same on Cluster
//	known, seen, why          fences seen; uptime of servers; why a lease is over
//	patience                  calls that wait, and one timer for all of them
//	inspect, list, check      inspection and checks for operators
//	once                      effects that happen once
//	errors, shown             errors; printing without owners
package redislock
