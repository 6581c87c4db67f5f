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
package etcdlock
