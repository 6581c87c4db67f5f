package zklock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. None of them means that a lease was acquired. Each says what
// to do. Permanent ones also match driver.ErrUnsupported or ErrCorrupt.
var (
	// ErrUnreachable: no server accepts a connection.
	ErrUnreachable = errors.New("zklock: no server can be reached, check the addresses and the network")
	// ErrNoQuorum: a server accepts connections but no session.
	ErrNoQuorum = errors.New("zklock: the servers accept no session, check that the ensemble has a quorum")
	// ErrSessionTimeout: the ensemble grants another session timeout than
	// Options.SessionTimeout.
	ErrSessionTimeout = fmt.Errorf("zklock: the ensemble does not grant this session timeout: %w", driver.ErrUnsupported)
	// ErrAuth: the ensemble or a node's ACL refuses the user.
	ErrAuth = fmt.Errorf("zklock: %w, check name, password and the ACLs of the nodes", driver.ErrDenied)
	// ErrFull: an enforced quota on the nodes is used up.
	ErrFull = fmt.Errorf("zklock: the quota of the nodes is %w, raise it by setquota", driver.ErrFull)
	// ErrReadOnly: the server has no quorum and only serves reads.
	ErrReadOnly = fmt.Errorf("zklock: the server is %w, check that the ensemble has a quorum", driver.ErrReadOnly)
	// ErrNoChroot: Options.Chroot does not exist. The driver does not create it.
	ErrNoChroot = errors.New("zklock: the chroot does not exist, create it first")
	// ErrAlien: a resource's node has children that are not claims, so that its holder cannot be
	// determined.
	ErrAlien = fmt.Errorf("zklock: a resource's node has children that are no claims, choose another Options.Prefix: %w", driver.ErrCorrupt)
)

// explain wraps an error of the client with advice, if there is any. The cause stays in the chain.
func explain(err error) error {
	switch {
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("%w: %w", ErrAuth, err)
	case errors.Is(err, zk.ErrNoServer):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case isCode(err, quotaExceeded):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case isCode(err, notReadOnly):
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return err
}

// Codes of the protocol that the client does not know by name.
const quotaExceeded, notReadOnly, unimplemented = "-125", "-119", "-6"

// isCode reports whether err is an answer with that code.
func isCode(err error, code string) bool {
	return err != nil && strings.HasSuffix(err.Error(), "unknown error: "+code)
}

// answered reports whether err is an answer of the ensemble, so that nothing was applied. After any
// other error, the outcome is unknown.
func answered(err error) bool {
	for _, e := range []error{
		zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrBadVersion,
		zk.ErrNoChildrenForEphemerals, zk.ErrBadArguments, zk.ErrSessionExpired, zk.ErrAPIError, zk.ErrInvalidPath,
		zk.ErrNoServer, // the request was never sent
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isCode(err, quotaExceeded) || isCode(err, notReadOnly)
}
