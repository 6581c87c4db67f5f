package leaseholdgocron

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// lockers returns a Locker on an engine of its own.
func lockers(t *testing.T, opts ...leasehold.Option) (*Locker, *leasehold.Locker) {
	t.Helper()
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	return NewLocker(locks, opts...), locks
}

func lock(t *testing.T, l *Locker) gocron.Lock {
	t.Helper()
	lock, err := l.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// A started task runs until stop is called or its context ends.
type started struct {
	lease *leasehold.Lease
	ctx   context.Context
	stop  context.CancelFunc
	ended chan error
}

// start starts a task of the job. If it has no lease, ended has the error.
func start(t *testing.T, l *Locker) *started {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Hour)
	t.Cleanup(stop)
	s := &started{stop: stop, ended: make(chan error, 1)}
	task := l.Task("job", func(ctx context.Context) error {
		s.ctx = ctx
		s.lease, _ = leasehold.FromContext(ctx)
		<-ctx.Done()
		return nil
	})
	go func() { s.ended <- task(ctx) }()
	synctest.Wait()
	return s
}

// If a job is due again before the task of its lost lease has started, each of the two tasks gets its
// own lease.
func TestTheNextRunHasItsOwnLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, locks := lockers(t)
		first := lock(t, l)
		state, err := locks.Inspect(t.Context(), "job")
		if err != nil || len(state.Holders) != 1 {
			t.Fatalf("%d holders, %v", len(state.Holders), err)
		}
		if err := locks.Evict(t.Context(), "job", state.Holders[0].Owner.Reveal(), "a test"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second := lock(t, l)
		one, other := start(t, l), start(t, l)
		if err := <-one.ended; !errors.Is(err, leasehold.ErrLost) {
			t.Errorf("the task of the lost lease: %v, want ErrLost", err)
		}
		if one.lease == other.lease || other.ctx.Err() != nil {
			t.Errorf("the other task runs under %v after %v, and its context has %v", other.lease, one.lease, other.ctx.Err())
		}
		if err := first.Unlock(t.Context()); !errors.Is(err, leasehold.ErrLost) {
			t.Errorf("Unlock of the lost lease: %v, want ErrLost", err)
		}
		if other.ctx.Err() != nil {
			t.Error("the other task's lease was released")
		}
		other.stop()
		if err := <-other.ended; err != nil {
			t.Errorf("the other task: %v", err)
		}
		if err := second.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Runs that share a limit have a lease each, whoever's task begins first.
func TestRunsAtTheSameTime(t *testing.T) {
	// In each case two runs have locked. Both have released at the end.
	for name, run := range map[string]func(t *testing.T, l *Locker, first, second gocron.Lock){
		"one after the other": func(t *testing.T, l *Locker, first, second gocron.Lock) {
			one := start(t, l)
			endsFree(t, one, first)
			two := start(t, l)
			endsFree(t, two, second)
		},
		"both at once": func(t *testing.T, l *Locker, first, second gocron.Lock) {
			one, two := start(t, l), start(t, l)
			if one.lease == two.lease {
				t.Error("two tasks run under one lease")
			}
			endsFree(t, one, first, two)
			endsFree(t, two, second)
		},
		"the second begins and ends first": func(t *testing.T, l *Locker, first, second gocron.Lock) {
			two, one := start(t, l), start(t, l)
			endsFree(t, two, second, one)
			endsFree(t, one, first)
		},
		"the first has no task": func(t *testing.T, l *Locker, first, second gocron.Lock) {
			two := start(t, l)
			if err := first.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if two.ctx.Err() != nil {
				t.Error("the lease of the task that runs was released")
			}
			endsFree(t, two, second)
		},
		"the first begins when the second has ended": func(t *testing.T, l *Locker, first, second gocron.Lock) {
			endsFree(t, start(t, l), second)
			endsFree(t, start(t, l), first)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, locks := lockers(t, leasehold.Limit(2))
				run(t, l, lock(t, l), lock(t, l))
				state, err := locks.Inspect(t.Context(), "job")
				if err != nil || len(state.Holders) > 0 || len(l.leases) > 0 {
					t.Errorf("%d holders, %v; the Locker has %d", len(state.Holders), err, len(l.leases))
				}
				err = l.Task("job", func(context.Context) error { return nil })(t.Context())
				if !errors.Is(err, ErrNoLease) {
					t.Errorf("a task of nobody: %v, want ErrNoLease", err)
				}
			})
		})
	}
}

// endsFree ends a task and unlocks its run. The lease was live until then, and those of others stay.
func endsFree(t *testing.T, s *started, of gocron.Lock, others ...*started) {
	t.Helper()
	if s.lease == nil {
		t.Fatalf("the task did not run: %v", <-s.ended)
	}
	if s.ctx.Err() != nil {
		t.Errorf("the task's lease has ended: %v", context.Cause(s.ctx))
	}
	s.stop()
	if err := <-s.ended; err != nil {
		t.Errorf("the task: %v", err)
	}
	if err := of.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if s.lease.Context().Err() == nil {
		t.Error("the task's lease was not released")
	}
	for _, o := range others {
		if o.ctx.Err() != nil {
			t.Error("the lease of another task was released")
		}
	}
}
