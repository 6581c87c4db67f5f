// Package held keeps leases for interfaces whose Unlock has only the name.
package held

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/leasehold-go/leasehold"
)

// Leases are leases that are released by name. If a lease was lost, and another caller of the
// process acquires the name before the first one releases it, there are two. They are released
// in their order, whoever comes first, so that no lease is released while its holder still
// works. The zero value is empty. It is safe for concurrent use.
type Leases struct {
	mu  sync.Mutex
	all map[string][]*leasehold.Lease // guarded by mu; oldest first
	// unknown are leases whose release had an unknown outcome, by name. Guarded by mu.
	unknown map[string]*leasehold.Lease
}

// Put adds a lease that was acquired just now. An earlier one of an unknown outcome is over then,
// even if its outcome comes later.
func (l *Leases) Put(lease *leasehold.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all, l.unknown = make(map[string][]*leasehold.Lease), make(map[string]*leasehold.Lease)
	}
	l.all[lease.Name()] = append(l.all[lease.Name()], lease)
	delete(l.unknown, lease.Name())
}

// Current returns a lease of name that lives, else the oldest that nobody has released yet, or nil.
func (l *Leases) Current(name string) *leasehold.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all[name]
	if len(all) == 0 {
		return nil
	}
	live := slices.IndexFunc(all, func(lease *leasehold.Lease) bool { return lease.Context().Err() == nil })
	return all[max(live, 0)]
}

// Replace replaces former by next, of the same name. It returns false if former was released.
func (l *Leases) Replace(former, next *leasehold.Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all[former.Name()]
	i := slices.Index(all, former)
	if i >= 0 {
		all[i] = next
	}
	return i >= 0
}

// Release releases the oldest lease of name, and returns the result of Lease.Release. If nobody
// acquires the name after an unknown outcome, the next Release tries again.
func (l *Leases) Release(ctx context.Context, name string) error {
	lease := l.take(name)
	if lease == nil {
		return fmt.Errorf("%q is not held", name)
	}
	err := lease.Release(ctx)
	if err != nil && !errors.Is(err, leasehold.ErrLost) && !errors.Is(err, leasehold.ErrReleased) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.all[name]) == 0 {
			l.unknown[name] = lease
		}
	}
	return err
}

// take removes and returns the lease that is released next, or nil.
func (l *Leases) take(name string) *leasehold.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all[name]
	if len(all) == 0 {
		lease := l.unknown[name]
		delete(l.unknown, name)
		return lease
	}
	if l.all[name] = all[1:]; len(all) == 1 {
		delete(l.all, name)
	}
	return all[0]
}
