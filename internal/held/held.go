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
}

// Put adds a lease that was acquired just now.
func (l *Leases) Put(lease *leasehold.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[string][]*leasehold.Lease)
	}
	l.all[lease.Name()] = append(l.all[lease.Name()], lease)
}

// Oldest returns the lease of name that would be released next, or nil.
func (l *Leases) Oldest(name string) *leasehold.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all[name]) == 0 {
		return nil
	}
	return l.all[name][0]
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

// Release releases the oldest lease of name, and returns the result of Lease.Release. After an
// unknown outcome the lease stays, to be released again.
func (l *Leases) Release(ctx context.Context, name string) error {
	lease := l.Oldest(name)
	if lease == nil {
		return fmt.Errorf("%q is not held", name)
	}
	err := lease.Release(ctx)
	if err == nil || errors.Is(err, leasehold.ErrLost) || errors.Is(err, leasehold.ErrReleased) {
		l.remove(lease)
	}
	return err
}

func (l *Leases) remove(lease *leasehold.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := lease.Name()
	if i := slices.Index(l.all[name], lease); i >= 0 {
		l.all[name] = slices.Delete(l.all[name], i, i+1)
	}
	if len(l.all[name]) == 0 {
		delete(l.all, name)
	}
}
