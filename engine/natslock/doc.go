// Package natslock is Leasehold's driver for NATS: caslock on a key-value bucket of JetStream.
// A record is the value of a key; the bucket's revisions are its versions and its fences; the
// watch of the bucket wakes who waits. See docs/engines/nats.md, also for what NATS itself may
// lose.
package natslock
