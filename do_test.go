package leasehold_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A doer is Do, or DoAll of several names.
type doer func(l *leasehold.Locker, ctx context.Context, fn func(ctx context.Context) error, opts ...leasehold.Option) error

// doers have to promise the same.
var doers = map[string]doer{
	"Do": func(l *leasehold.Locker, ctx context.Context, fn func(ctx context.Context) error, opts ...leasehold.Option) error {
		return l.Do(ctx, "a", fn, opts...)
	},
	"DoAll": func(l *leasehold.Locker, ctx context.Context, fn func(ctx context.Context) error, opts ...leasehold.Option) error {
		return l.DoAll(ctx, []string{"b", "a", "c", "a"}, fn, opts...)
	},
}

// onDoers runs test with each of them, in a bubble.
func onDoers(t *testing.T, test func(t *testing.T, do doer)) {
	for name, do := range doers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, do) })
		})
	}
}

func TestDoReportsLossAlthoughTheWorkSucceeded(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		mine := newFaulty(t, memory.NewServer())
		err := do(newLocker(t, mine, nil), t.Context(), func(ctx context.Context) error {
			mine.Always(locktest.OpRenew, locktest.HangRequest)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), leasehold.ErrLost)
			return nil
		})
		wantErr(t, err, leasehold.ErrLost)
	})
}

func TestDoJoinsTheErrorOfTheWorkWithTheLoss(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		locks, why := newLocker(t, memory.New(), nil), errors.New("out of paper")
		err := do(locks, t.Context(), func(ctx context.Context) error {
			lease, _ := leasehold.FromContext(ctx)
			if err := locks.Evict(t.Context(), lease.Name(), lease.Owner(), "for the test"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return why
		})
		wantErr(t, err, leasehold.ErrLost)
		wantErr(t, err, why)
	})
}

func TestDoEndsWithItsContextAndReleases(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		locks := newLocker(t, memory.New(), nil)
		why := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := do(locks, ctx, func(ctx context.Context) error {
			cancel(why)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		wantErr(t, err, why)
		if errors.Is(err, leasehold.ErrLost) {
			t.Errorf("%v tells of a loss", err)
		}
		wantFree(t, locks, "a", "b", "c")
	})
}

// The work never begins with a live context when that of its caller has ended.
func TestDoBeginsNothingAfterItsContext(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		for range 100 {
			ctx, end := context.WithCancel(t.Context())
			l := newLocker(t, endsInTry{memory.New(), end}, nil)
			err := do(l, ctx, func(ctx context.Context) error {
				if ctx.Err() == nil {
					t.Error("the work began with a live context")
				}
				return nil
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

func TestDoReleasesWhenTheWorkPanics(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		locks := newLocker(t, memory.New(), nil)
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recovered %v", got)
				}
			}()
			do(locks, t.Context(), func(context.Context) error { panic("boom") })
		}()
		wantFree(t, locks, "a", "b", "c")
	})
}

// A machine that stands still may wake the work before any timer: its context looks at the clock.
func TestContextOfDoLooksAtTheClock(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		link := newFaulty(t, memory.NewServer())
		err := do(newLocker(t, link, nil), t.Context(), func(ctx context.Context) error {
			link.Always(locktest.OpRenew, locktest.HangRequest)
			time.Sleep(2 * leasehold.DefaultTTL)
			wantErr(t, ctx.Err(), context.Canceled)
			wantErr(t, context.Cause(ctx), leasehold.ErrLost)
			return nil
		})
		wantErr(t, err, leasehold.ErrLost)
	})
}

func TestDoSaysThatTheOutcomeOfItsReleaseIsUnknown(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		link := newFaulty(t, memory.NewServer())
		err := do(newLocker(t, link, nil), t.Context(), func(context.Context) error {
			link.Always(locktest.OpRelease, locktest.LoseRequest)
			return nil
		})
		if err == nil || errors.Is(err, leasehold.ErrLost) || errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("%v; want an outcome that is unknown", err)
		}
	})
}

func TestDoCallsNothingThatIsBusy(t *testing.T) {
	onDoers(t, func(t *testing.T, do doer) {
		server := memory.NewServer()
		held := acquire(t, newLocker(t, server.Connect(), nil), "a")
		locks := newLocker(t, server.Connect(), nil)
		err := do(locks, t.Context(), func(context.Context) error { t.Error("called"); return nil }, leasehold.Wait(time.Second))
		wantErr(t, err, leasehold.ErrBusy)
		held.Release(t.Context())
		wantFree(t, locks, "a", "b", "c")
	})
}

// The work of DoAll holds all names: it finds the leases in its context, and does not wait for itself.
func TestWorkOfDoAllHoldsAllNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "kept")
		err := locks.DoAll(ctx, []string{"b", "a"}, func(ctx context.Context) error {
			all, ok := leasehold.AllFromContext(ctx)
			if !ok || !slices.Equal(all.Names(), []string{"a", "b"}) || all.Lease("a").Token() == 0 || ctx.Value(key{}) != "kept" {
				t.Errorf("%v in the context", all)
			}
			for _, name := range all.Names() {
				_, err := locks.Acquire(ctx, name)
				wantErr(t, err, leasehold.ErrDeadlock)
				if err := locks.Do(ctx, name, func(ctx context.Context) error {
					if inner, _ := leasehold.AllFromContext(ctx); inner != all {
						t.Error("a nested lease hides the leases")
					}
					return nil
				}, leasehold.Reentrant()); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if _, ok := leasehold.AllFromContext(t.Context()); ok {
			t.Error("a context without leases has some")
		}
		wantErr(t, locks.DoAll(t.Context(), nil, nil), leasehold.ErrInvalidName)
	})
}

// endsInTry is an engine that ends a context just before it grants.
type endsInTry struct {
	driver.Driver
	end context.CancelFunc
}

func (d endsInTry) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return endsInTryClaim{c, d.end}, err
}

type endsInTryClaim struct {
	driver.Claim
	end context.CancelFunc
}

func (c endsInTryClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(context.WithoutCancel(ctx))
	c.end()
	return g, err
}
