// Package leaseholdgoose lets only one of several processes at a time run goose's migrations. It
// works on any engine, and for databases that goose itself cannot lock.
package leaseholdgoose

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/held"
)

// A Locker is a lock.Locker and a lock.SessionLocker of goose, for goose.WithLocker or
// goose.WithSessionLocker. Both do the same. goose keeps one connection during the migrations. So
// if the locks are in the migrated database, give them a pool of their own, or one of several
// connections.
//
// goose does not notice that a lease was lost. Pass its Up a context made by [Stoppable], which
// then ends: the running statement is cancelled, and no further migration begins. With another
// context, goose applies the remaining migrations while another process may hold the lock. In both
// cases Up returns an error that matches [leasehold.ErrLost], whatever it has applied.
type Locker struct {
	locks *leasehold.Locker
	name  string
	opts  []leasehold.Option
	held  held.Leases
}

// New returns a Locker that runs migrations under the lock name, acquired with opts. It does no
// I/O. The Locker waits for other processes until goose's context ends, or for as long as
// [leasehold.Wait] allows.
func New(locks *leasehold.Locker, name string, opts ...leasehold.Option) *Locker {
	return &Locker{locks: locks, name: name, opts: opts}
}

// stopper is the context key of the function that ends a context of Stoppable.
type stopper struct{}

// Stoppable returns a context for goose, such as for Provider.Up. It ends when goose's lease is
// lost, with a cause that matches [leasehold.ErrLost]. Call stop after goose has returned.
func Stoppable(ctx context.Context) (_ context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	return context.WithValue(ctx, stopper{}, cancel), func() { cancel(nil) }
}

// Lock implements lock.Locker. It returns the error of [leasehold.Locker.Acquire].
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

// Unlock implements lock.Locker. It returns the error of [leasehold.Lease.Release].
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error { return l.held.Release(ctx, l.name) }

// SessionLock implements lock.SessionLocker, in the same way as Lock.
func (l *Locker) SessionLock(ctx context.Context, _ *sql.Conn) error { return l.Lock(ctx, nil) }

// SessionUnlock implements lock.SessionLocker, in the same way as Unlock.
func (l *Locker) SessionUnlock(ctx context.Context, _ *sql.Conn) error { return l.Unlock(ctx, nil) }
