// Package kubelock is Leasehold's driver for Kubernetes: caslock on the Leases of a namespace. A record is an
// annotation of its Lease, and the spec says the same as far as it can, so that kubectl get lease shows who
// holds a lock, and leader election on the same Lease excludes it and is excluded by it; resourceVersions
// are versions and fences; a watch wakes who waits. See docs/engines/kubernetes.md.
package kubelock
