package kubelock

import (
	"errors"
	"fmt"
	"strings"

	api "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
)

// Errors to test for with errors.Is. None of them means that a lock was acquired. Each says what to
// do.
var (
	// ErrNoNamespace: the namespace does not exist, or is being deleted.
	ErrNoNamespace = errors.New("kubelock: the namespace does not exist, create it")
	// ErrAuth: the server does not know the user, or the user lacks a right on Leases.
	ErrAuth = fmt.Errorf("kubelock: %w, check its Role and RoleBinding", driver.ErrDenied)
	// ErrFull: a ResourceQuota allows no more Leases, which does not affect renewals, or etcd is
	// full.
	ErrFull = fmt.Errorf("kubelock: the namespace or etcd is %w, raise the ResourceQuota or etcd's quota", driver.ErrFull)
	// ErrOverloaded: the server is overloaded. Outcomes are unknown.
	ErrOverloaded = errors.New("kubelock: the server has too much to do")
	// ErrUnreachable: no API server answers. Outcomes are unknown.
	ErrUnreachable = errors.New("kubelock: no API server answers, check the kubeconfig and the network")
	// ErrInvalid: the server refuses the Lease, for example with more waiters than fit into an
	// annotation. Nothing was written.
	ErrInvalid = fmt.Errorf("kubelock: the server does not take the Lease: %w", caslock.ErrRefused)
)

// explain wraps an error of the client with what it means. The cause stays in the chain.
func explain(err error) error {
	means := ErrUnreachable
	switch {
	case isMissing(err), api.HasStatusCause(err, terminating):
		means = ErrNoNamespace
	case isFull(err):
		means = ErrFull
	case api.IsForbidden(err), api.IsUnauthorized(err):
		means = ErrAuth
	case api.IsTooManyRequests(err), api.IsServiceUnavailable(err), api.IsServerTimeout(err), api.IsTimeout(err):
		means = ErrOverloaded
	case api.IsInvalid(err), api.IsRequestEntityTooLargeError(err):
		means = ErrInvalid
	}
	return fmt.Errorf("%w: %w", means, err)
}

// isFull reports whether the API server says that something is full. It forbids what exceeds a
// quota, and passes on etcd's own error. Neither has a reason that a program could check.
func isFull(err error) bool {
	return api.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: ") ||
		isStatus(err) && strings.Contains(err.Error(), "etcdserver: mvcc: database space exceeded")
}

func isStatus(err error) bool {
	var answer api.APIStatus
	return errors.As(err, &answer)
}

// isMissing reports whether the API server says that an object does not exist. A server that is
// starting, or a proxy before it, says the same of the path.
func isMissing(err error) bool {
	return api.IsNotFound(err) && !api.HasStatusCause(err, meta.CauseTypeUnexpectedServerResponse)
}

// terminating is the cause with which a namespace that is being deleted refuses new objects.
const terminating = "NamespaceTerminating"
