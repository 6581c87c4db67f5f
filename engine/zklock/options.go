package zklock

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// Defaults of Options.
const (
	DefaultPrefix = "/leasehold"
	// DefaultSessionTimeout gives leases leasehold.DefaultTTL. It is within the default limits
	// of an ensemble: 2 to 20 ticks of 2 s.
	DefaultSessionTimeout = 15 * time.Second
)

// maxTimeout is the longest session timeout of ZooKeeper's protocol, which has 31 bits for the
// milliseconds.
const maxTimeout = math.MaxInt32 * time.Millisecond

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// SessionTimeout is the timeout of the driver's one session. All leases then have two thirds
	// of it as TTL, in whole milliseconds, and other TTLs are ErrUnsupported. 0: a session for
	// each requested TTL, up to eight, each half as long again as its TTL. It must be whole
	// milliseconds, at least two ticks of the ensemble, and at most 24 days. If the ensemble grants
	// another timeout, because of its minSessionTimeout or maxSessionTimeout, every call returns
	// ErrSessionTimeout.
	SessionTimeout time.Duration
	// Prefix is the path below which each resource has a node; "": DefaultPrefix, "/": the root.
	// All processes must use the same. The driver creates it if it is missing.
	Prefix string
	// Chroot is a path that precedes all others; "": none. It must exist.
	Chroot string
	// ReadWriteNames names exclusive claims as Curator's InterProcessReadWriteLock does. Its
	// InterProcessMutex, the default, would not see shared ones. All processes, including
	// Curator's, must use the same.
	ReadWriteNames bool
	// TTLNodes says that the ensemble has TTL nodes (zookeeper.extendedTypesEnabled), which
	// leasehold.AtLeast needs. A hold that lingers ends at the ensemble's next check, by default
	// once a minute.
	TTLNodes bool
	// User and Password are for the ensemble's digest scheme; "": none.
	User, Password string
	// ACL is the ACL of all nodes that the driver creates. nil: with User, all rights for that
	// user and none for others; without, all rights for everybody.
	ACL []zk.ACL
	// Dial replaces net.DialTimeout, for TLS.
	Dial zk.Dialer
}

// check fills in the defaults, and cleans the paths.
func (o *Options) check() (err error) {
	switch {
	case o.SessionTimeout < 0 || o.SessionTimeout%time.Millisecond != 0:
		return fmt.Errorf("zklock: SessionTimeout %v is no positive number of milliseconds", o.SessionTimeout)
	case o.SessionTimeout > maxTimeout:
		return fmt.Errorf("zklock: SessionTimeout %v is above %v", o.SessionTimeout, maxTimeout)
	case o.User == "" && o.Password != "":
		return errors.New("zklock: Password without User")
	case strings.Contains(o.User, ":"):
		return errors.New("zklock: User contains a colon, which the digest scheme cannot have")
	}
	if o.Chroot, err = cleanPath(o.Chroot); err != nil {
		return fmt.Errorf("zklock: Chroot: %w", err)
	}
	if o.Prefix, err = cleanPath(cmp.Or(o.Prefix, DefaultPrefix)); err != nil {
		return fmt.Errorf("zklock: Prefix: %w", err)
	}
	if o.Dial == nil {
		o.Dial = net.DialTimeout
	}
	switch {
	case o.ACL != nil:
	case o.User != "":
		o.ACL = zk.AuthACL(zk.PermAll)
	default:
		o.ACL = zk.WorldACL(zk.PermAll)
	}
	return nil
}

// addresses adds the port to each server that has none; IPv6 addresses stand in brackets.
func addresses(servers []string) []string {
	all := make([]string, len(servers))
	for i, s := range servers {
		all[i] = storeurl.WithPort(s, strconv.Itoa(zk.DefaultPort))
	}
	return all
}

// ttlOf returns the TTL of leases under a session with that timeout. Normally the leader's last
// contact with the session is at most a third of the timeout ago. So grants have their full TTL,
// and end before the session in any case.
func ttlOf(timeout time.Duration) time.Duration {
	return (timeout * 2 / 3).Truncate(time.Millisecond)
}

// sessionFor returns the timeout of a session for leases of ttl.
func sessionFor(ttl time.Duration) time.Duration {
	return (ttl*3/2 + time.Millisecond - 1).Truncate(time.Millisecond)
}
