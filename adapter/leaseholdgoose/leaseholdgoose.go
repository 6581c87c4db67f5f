// Package leaseholdgoose has one of several processes run goose's migrations at a time, on any
// engine, also for databases that goose has no lock for.
package leaseholdgoose

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/held"
)

// A Locker is a lock.Locker and a lock.SessionLocker of goose, for goose.WithLocker or
// goose.WithSessionLocker; both do the same. Where the locks are in the database that is
// migrated, they need a pool of their own or one of several connections: goose keeps one.
//
// goose is not told that a lease was lost, and goes on. Give its Up a context made by [Stoppable],
// which then ends: a statement that runs is cancelled, and what has not begun is left. Without one
// goose applies the rest beside whoever has the lock by then. Either way Up returns an error
// that matches [leasehold.ErrLost], whatever it has applied.
type Locker struct {
	locks *leasehold.Locker
	name  string
	opts  []leasehold.Option
	held  held.Leases
}

// New returns a Locker for the migrations that name stands for, with opts. It does no I/O. It
// waits for other processes until goose's context ends, or for as long as [leasehold.Wait] says.
func New(locks *leasehold.Locker, name string, opts ...leasehold.Option) *Locker {
	return &Locker{locks: locks, name: name, opts: opts}
}

// stopper is what Stoppable has put into a context.
type stopper struct{}

// Stoppable returns a context for goose, such as for Provider.Up, that ends when the lease is lost
// which goose takes with it. Its cause then matches [leasehold.ErrLost]. Call stop when goose has
// returned.
func Stoppable(ctx context.Context) (_ context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	return context.WithValue(ctx, stopper{}, cancel), func() { cancel(nil) }
}

// Lock implements lock.Locker. It returns what [leasehold.Locker.Acquire] does.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	lease, err := l.locks.Acquire(ctx, l.name, l.opts...)
	if err != nil {
		return err
	}
	l.held.Put(lease)
	if cancel, ok := ctx.Value(stopper{}).(context.CancelCauseFunc); ok {
		over := lease.Context()
		context.AfterFunc(over, func() {
			if cause := context.Cause(over); errors.Is(cause, leasehold.ErrLost) {
				cancel(cause)
			}
		})
	}
	return nil
}

// Unlock implements lock.Locker. It returns what [leasehold.Lease.Release] does.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error { return l.held.Release(ctx, l.name) }

// SessionLock implements lock.SessionLocker, as Lock.
func (l *Locker) SessionLock(ctx context.Context, _ *sql.Conn) error { return l.Lock(ctx, nil) }

// SessionUnlock implements lock.SessionLocker, as Unlock.
func (l *Locker) SessionUnlock(ctx context.Context, _ *sql.Conn) error { return l.Unlock(ctx, nil) }
