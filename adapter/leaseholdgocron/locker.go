package leaseholdgocron

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/leasehold-go/leasehold"
)

// ErrNoLease: a task was run without the lease that it is for. The job's name is another than the
// task's, or its scheduler has no such Locker, or is not the leader.
var ErrNoLease = errors.New("leaseholdgocron: the job has no lease")

// A Locker is a gocron.Locker: a job that is due runs on the scheduler that gets its lease. Give
// it to gocron.WithDistributedLocker. It is safe for concurrent use, by several schedulers too.
type Locker struct {
	locks *leasehold.Locker
	opts  []leasehold.Option

	mu     sync.Mutex
	leases map[string]*leasehold.Lease // guarded by mu; of the jobs that run, by their names
}

// NewLocker returns a Locker that asks for leases with opts. It does no I/O.
//
// Schedulers do not fire at the same instant. A job that has ended on the first before it is due
// on the second runs again there, unless opts say otherwise: [leasehold.AtLeast] with more than the
// schedulers may differ by, and less than the job's period; or [leasehold.OncePer] with its period,
// which renews nothing. By default a job is not waited for, as by [leasehold.Wait] of 0: who
// is refused skips it.
func NewLocker(locks *leasehold.Locker, opts ...leasehold.Option) *Locker {
	return &Locker{
		locks: locks, opts: append([]leasehold.Option{leasehold.Wait(0)}, opts...),
		leases: make(map[string]*leasehold.Lease),
	}
}

// Lock implements gocron.Locker: key is the job's name, and the name of the lease. gocron then
// skips the job on any error; it matches [leasehold.ErrBusy] if it runs elsewhere.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.locks.Acquire(ctx, key, slices.Clone(l.opts)...)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases[key] = lease
	return &held{l, lease}, nil
}

// Task makes a job's function of one that stops when its context ends, for gocron.NewTask. key is
// the job's name, see gocron.WithName.
//
// The context ends with the lease and with that of the job; [leasehold.FromContext] finds
// the lease in it. The task returns fn's error, joined with one that matches [leasehold.ErrLost]
// when the lease ended before fn did: another may have run the job meanwhile. Without a
// lease it is [ErrNoLease], and fn is not called.
func (l *Locker) Task(key string, fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		l.mu.Lock()
		lease := l.leases[key]
		l.mu.Unlock()
		if lease == nil {
			return fmt.Errorf("%w: job %q", ErrNoLease, key)
		}
		return under(ctx, lease.Context(), fn)
	}
}

// under calls fn with a context that ends with ctx and with held, whose values it has.
func under(ctx, held context.Context, fn func(ctx context.Context) error) error {
	both, end := context.WithCancelCause(held)
	defer end(nil)
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	defer stop()
	err := fn(both)
	if lost := context.Cause(held); errors.Is(lost, leasehold.ErrLost) {
		err = errors.Join(err, lost)
	}
	return err
}

// held is the lease of a job that runs.
type held struct {
	locker *Locker
	lease  *leasehold.Lease
}

// Unlock implements gocron.Lock.
func (h *held) Unlock(ctx context.Context) error {
	h.locker.mu.Lock()
	if name := h.lease.Name(); h.locker.leases[name] == h.lease { // else it was lost, and another has come
		delete(h.locker.leases, name)
	}
	h.locker.mu.Unlock()
	return h.lease.Release(ctx)
}
