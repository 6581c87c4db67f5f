// Package kubelock is Leasehold's driver for Kubernetes: caslock on the Leases of a namespace. A
// record is an annotation of its Lease. The spec repeats it as far as possible, so that "kubectl
// get lease" shows who holds a lock. Leader election on the same Lease excludes the lock, and
// the lock excludes it. The resourceVersions are versions and fences, and a watch notifies
// waiters. See docs/engines/kubernetes.md.
package kubelock
