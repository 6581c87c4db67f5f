// Package redislock is Leasehold's driver for Redis: one server, Sentinel or Cluster.
//
// An exclusive lease is a plain string key, prefix + name, whose value is the owner and
// which expires. So it excludes, and is excluded by, every client that takes a lock with
// SET key token NX PX and gives it up by compare-and-delete. Fencing tokens, the fair
// queue and shared leases live in companion keys of the same hash slot.
//
// Redis 7.0 or newer is needed, or Valkey. Failover is asynchronous: a replica that had
// not seen a grant gives it to a second holder, unless [Options.Replicas] asks for
// acknowledgements. See docs/engines/redis.md.
//
// # The phases of a claim
//
// A claim is in one phase, which answers alone change, and its state has a set of what is
// uncertain: +attempt and +release were sent and may still be served. "no" is a refusal without a
// place in the queue, "place" one with a place; "unknown" is no answer, such as when the caller has
// gone; "brought" is a grant that the server made without being asked.
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
// What is uncertain outlives the phase. An attempt or a release that may still come is kept from doing
// harm by the mark that a Release or the next attempt leaves. A renewal that may still come does
// none: it makes the lease last longer, or shortens it from the one end that it names.
//
// # Files
//
//	redislock, url, redlock   options, and the driver from its begin to its end; a Redlock of several
//	claim, plain, phase       Try, Release and Linger; their short way while nobody else wants the lock; phases
//	renew, renewall, note     Renew, RenewAll and Note
//	script, keys              the scripts, and the keys of a resource
//	send, pipeline, conn      a call, its way to a server, the connection
//	connect, contact, resp    how connections are made, the first word with a server, what answers are
//	slot, server              hash slots of Cluster; versions, and what servers tell of themselves
//	crowd                     those who wait for one lock, whose places are kept together
//	subscriber, shards        who is woken, and grants that come without a Try; the same on Cluster
//	known, seen, why          fences seen, and since when a server remembers; why a lease is over
//	patience                  calls that wait, and one timer for all of them
//	inspect, list, check, once  what operators ask for; effects that happen once
//	errors, shown             what errors mean; what prints in place of owners
package redislock
