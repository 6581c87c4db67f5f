// Package fence guards writes with fencing tokens, on the side of the resource.
//
// A lease cannot stop a process that was paused between its check and its write: when it continues,
// another process may hold the lease. So the resource that is written to records the greatest token
// it has seen and refuses smaller ones, atomically with the write.
package fence

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
)

// ErrStale: a later holder has written already, or the token does not prove otherwise. Nothing
// was written. The caller's lease is over, so it must give up its work.
var ErrStale = errors.New("fencing token is stale")

// A Lease is the proof that a holder shows to a guard; a *leasehold.Lease is one.
type Lease interface {
	Name() string  // the resource
	Token() uint64 // the fencing token; 0: the engine has none, and guards refuse it
	Owner() string // distinguishes leases with the same token
}

// LeaseOf returns a Lease of these parts, for a program that got them from the holder's process.
func LeaseOf(name string, token uint64, owner string) Lease {
	return lease{name, token, driver.OwnerOf(owner)}
}

// lease is the Lease that LeaseOf returns.
type lease struct {
	name  string
	token uint64
	owner driver.Owner
}

func (l lease) Name() string  { return l.name }
func (l lease) Token() uint64 { return l.token }
func (l lease) Owner() string { return l.owner.Reveal() }

// A mark is what a guard compares: what it keeps of the last lease that it admitted.
type mark struct {
	epoch int64
	token uint64
	owner string
}

// markOf returns the mark of a lease. It refuses token 0, which leases have on engines without
// fencing.
func markOf(l Lease) (mark, error) {
	if l.Token() == 0 {
		return mark{}, fmt.Errorf("%w: token 0 is no fencing token", ErrStale)
	}
	return mark{epochOf(l), l.Token(), l.Owner()}, nil
}

// admits reports whether a write under next may follow one under m.
func (m mark) admits(next mark) bool {
	if c := cmp.Or(cmp.Compare(next.epoch, m.epoch), cmp.Compare(next.token, m.token)); c != 0 {
		return c > 0
	}
	return next.owner == m.owner
}

// Memory guards values in this process's memory, or a resource such as a file that only this
// process writes. The zero value is ready. It is safe for concurrent use.
type Memory struct {
	mu   sync.Mutex
	seen map[string]*seen // guarded by mu
}

// seen serialises the writes to one resource.
type seen struct {
	mu   sync.Mutex
	last mark
}

// Do runs write, and returns its error, unless a later lease of the same name was here before:
// then it returns [ErrStale]. A later lease has a larger token, or the same token and another
// owner. Writes under one name run one at a time. The lease counts as seen even if write fails.
func (m *Memory) Do(lease Lease, write func() error) error {
	next, err := markOf(lease)
	if err != nil {
		return err
	}
	s := m.of(lease.Name())
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.admits(next) {
		return fmt.Errorf("%w: %d after %d for %q", ErrStale, next.token, s.last.token, lease.Name())
	}
	s.last = next
	return write()
}

func (m *Memory) of(resource string) *seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen == nil {
		m.seen = make(map[string]*seen)
	}
	s := m.seen[resource]
	if s == nil {
		s = &seen{}
		m.seen[resource] = s
	}
	return s
}
