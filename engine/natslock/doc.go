// Package natslock is Leasehold's driver for NATS: caslock on a key-value bucket of JetStream. A
// record is the value of a key, the bucket's revisions are its versions and fences, and a watch
// of the bucket notifies waiters. See docs/engines/nats.md, also for what NATS itself may lose.
package natslock
