package leasehold_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// wantLossAtDeadline waits until all leases are lost, each at its deadline.
func wantLossAtDeadline(t *testing.T, leases []*leasehold.Lease) {
	t.Helper()
	late := make(chan string, len(leases))
	for _, lease := range leases {
		context.AfterFunc(lease.Context(), func() {
			what := ""
			if d := time.Since(lease.Deadline()); d != 0 {
				what = fmt.Sprintf("the context of %s ended %v after its deadline", lease.Name(), d)
			}
			late <- what
		})
	}
	for range leases {
		select {
		case what := <-late:
			if what != "" {
				t.Error(what)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("the context of a lease did not end")
		}
	}
	for _, lease := range leases {
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrLost)
	}
}

// Each lease has been looked at long before its last deadline, because it had earlier ones.
func TestLossIsToldOnTimeAfterRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		leases := make([]*leasehold.Lease, 300)
		for i := range leases {
			time.Sleep(rand.N(50 * time.Millisecond))
			leases[i] = acquire(t, locks, fmt.Sprint("lease ", i), leasehold.TTL(time.Second+rand.N(20*time.Second)))
		}
		time.Sleep(time.Minute)
		mine.Always(locktest.OpRenew, locktest.LoseRequest)
		wantLossAtDeadline(t, leases)
	})
}

// stuck is an engine whose renewals hang whatever their contexts say.
type stuck struct {
	driver.Driver
	until chan struct{}
}

func (d stuck) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return stuckClaim{c, d}, err
}

type stuckClaim struct {
	driver.Claim
	of stuck
}

func (c stuckClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	<-c.of.until
	return c.Claim.Renew(ctx, ttl)
}

func TestLossIsToldOnTimeWhileAllRenewalsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := stuck{memory.New(), make(chan struct{})}
		locks := newLocker(t, d, nil)
		leases := make([]*leasehold.Lease, 100) // many more than workers
		for i := range leases {
			leases[i] = acquire(t, locks, fmt.Sprint("lease ", i))
		}
		wantLossAtDeadline(t, leases)
		close(d.until)
	})
}

func TestAHookThatHangsDoesNotDelayAnotherLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		locks := newLocker(t, memory.New(), &leasehold.Options{Trace: locktest.On(leasehold.StepLost, func(leasehold.Event) { <-hang })})
		wantLossAtDeadline(t, []*leasehold.Lease{
			acquire(t, locks, "a", leasehold.NoRenew()), acquire(t, locks, "b", leasehold.NoRenew()),
		})
	})
}

// hanging is a context of which the second look into its values hangs: the first is before
// the engine is asked.
type hanging struct {
	context.Context
	looks *atomic.Int32
	until chan struct{}
}

func (c hanging) Value(key any) any {
	if c.looks.Add(1) == 2 {
		<-c.until
	}
	return c.Context.Value(key)
}

// In real time: a goroutine that waits for a mutex stops that of synctest.
func TestACallerThatHangsDoesNotDelayALoss(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	until, ended := make(chan struct{}), make(chan error)
	looks := new(atomic.Int32)
	go func() {
		lease, err := locks.Acquire(hanging{t.Context(), looks, until}, "a", leasehold.NoRenew(), leasehold.TTL(200*time.Millisecond))
		if err == nil {
			err = lease.Context().Err()
		}
		ended <- err
	}()
	for looks.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	lease := acquire(t, locks, "b", leasehold.NoRenew(), leasehold.TTL(600*time.Millisecond))
	select {
	case <-lease.Context().Done():
	case <-time.After(10 * time.Second):
		t.Error("the context of a lease did not end while the caller of another hung")
	}
	close(until)
	if err := <-ended; err == nil {
		t.Error("a lease was alive that had come after its deadline")
	}
}

// A deadline that comes closer counts at once, one that moves away at its time.
func TestExtendedLeaseEndsAtItsDeadline(t *testing.T) {
	for _, d := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			locks := newLocker(t, memory.New(), nil)
			lease, other := acquire(t, locks, "a", leasehold.NoRenew()), acquire(t, locks, "b", leasehold.NoRenew())
			if err := lease.Extend(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			wantDuration(t, "left", time.Until(lease.Deadline()), d*95/100, d)
			wantLossAtDeadline(t, []*leasehold.Lease{lease, other})
		})
	}
}

// A closed Locker whose leases were released is not kept in memory by a timer.
func TestClosedLockerIsForgotten(t *testing.T) {
	locks, err := leasehold.New(memory.New(), &leasehold.Options{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	late := acquire(t, locks, "late")
	if err := acquire(t, locks, "a").Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	locks.Close()
	if err := late.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	late = nil
	there := weak.Make(locks)
	locks = nil
	for end := time.Now().Add(10 * time.Second); there.Value() != nil; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal("it is still there")
		}
	}
}

// gated is an engine whose batches wait until it is opened.
type gated struct {
	*memory.Driver
	sizes chan int      // of the batches, as they begin
	open  chan struct{} // closed: they go on
}

func newGated() gated { return gated{memory.New(), make(chan int, 100), make(chan struct{})} }

func (d gated) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	d.sizes <- len(renewals)
	<-d.open
	d.Driver.RenewAll(ctx, renewals)
}

// acquireGroup acquires ten leases at once and returns when their first renewal is in flight.
func acquireGroup(t *testing.T, locks *leasehold.Locker, d gated, opts ...leasehold.Option) []*leasehold.Lease {
	t.Helper()
	leases := make([]*leasehold.Lease, 10)
	for i := range leases {
		leases[i] = acquire(t, locks, fmt.Sprint("lease ", i), opts...)
	}
	if n := <-d.sizes; n != len(leases) {
		t.Fatalf("a batch of %d, want all %d", n, len(leases))
	}
	return leases
}

func releaseAll(t *testing.T, leases []*leasehold.Lease) {
	t.Helper()
	for _, lease := range leases {
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestReleaseWhileTheBatchIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newGated()
		leases := acquireGroup(t, newLocker(t, d, nil), d)
		released := make(chan error)
		for _, lease := range leases[:6] {
			go func() { released <- lease.Release(t.Context()) }()
			<-lease.Context().Done()
		}
		close(d.open)
		for range 6 {
			if err := <-released; err != nil {
				t.Error(err)
			}
		}
		for range 5 {
			if n := <-d.sizes; n != 4 {
				t.Errorf("a batch of %d, want the 4 that are left", n)
			}
		}
		releaseAll(t, leases[6:])
	})
}

// What AtLeast leaves ends on time although the release has waited for the batch.
func TestReleaseAfterTheBatchKeepsAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, start := newGated(), time.Now()
		leases := acquireGroup(t, newLocker(t, d, nil), d, leasehold.AtLeast(time.Minute))
		time.AfterFunc(3*time.Second, func() { close(d.open) })
		if err := leases[0].Release(t.Context()); err != nil {
			t.Error(err)
		}
		state, err := d.Inspect(t.Context(), leases[0].Name())
		if err != nil || len(state.Holders) != 1 {
			t.Fatalf("%+v, %v", state, err)
		}
		wantDuration(t, "kept", time.Since(start)+state.Holders[0].Left, time.Minute, time.Minute+time.Millisecond)
		releaseAll(t, leases[1:])
	})
}

func TestCloseWhileTheBatchIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newGated()
		locks := newLocker(t, d, nil)
		leases := acquireGroup(t, locks, d)
		time.AfterFunc(time.Second, func() { close(d.open) })
		start := time.Now()
		locks.Close()
		wantDuration(t, "Close", time.Since(start), time.Second, time.Second)
		wantLossAtDeadline(t, leases)
		if len(d.sizes) > 0 {
			t.Error("renewed after Close")
		}
	})
}

// slowCalls is an engine that takes a second to set a note or to renew a lease alone.
type slowCalls struct{ *memory.Driver }

func (d slowCalls) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return slowClaim{c}, err
}

func (d slowCalls) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		renewals[i].Claim = renewals[i].Claim.(slowClaim).Claim
	}
	d.Driver.RenewAll(ctx, renewals)
}

type slowClaim struct{ driver.Claim }

func (c slowClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	time.Sleep(time.Second)
	return c.Claim.Renew(ctx, ttl)
}

func (c slowClaim) Note(ctx context.Context, note string) error {
	time.Sleep(time.Second)
	return c.Claim.Note(ctx, note)
}

// A batch passes over a lease that another call is about. Its renewal comes afterwards.
func TestCallsBesideABatch(t *testing.T) {
	for what, call := range map[string]func(*leasehold.Lease, context.Context) error{
		"extend": func(le *leasehold.Lease, ctx context.Context) error { return le.Extend(ctx, 6*time.Second) },
		"note":   func(le *leasehold.Lease, ctx context.Context) error { return le.SetNote(ctx, "at work") },
	} {
		synctest.Test(t, func(t *testing.T) {
			locks := newLocker(t, slowCalls{memory.New()}, nil)
			leases := []*leasehold.Lease{acquire(t, locks, "a"), acquire(t, locks, "b"), acquire(t, locks, "c")}
			time.Sleep(ttl * 29 / 100)
			if err := call(leases[0], t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*ttl + ttl/20)
			for _, lease := range leases {
				if lease.Context().Err() != nil {
					t.Errorf("%s: %s: %v", what, lease.Name(), context.Cause(lease.Context()))
				}
			}
			locks.Close()
		})
	}
}

// A lease whose MaxHold is over is released while its end is on the way: the other lease of the hold
// has its deadline still.
func TestDeadlineIsWatchedAfterAMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		outer := acquire(t, locks, "a", leasehold.TTL(10*time.Second), leasehold.NoRenew())
		inner, err := locks.Acquire(outer.Context(), "a", leasehold.Reentrant(), leasehold.MaxHold(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		inner.ReleaseAsDeadlineFires()
		wantLossAtDeadline(t, []*leasehold.Lease{outer})
	})
}

// A MaxHold beyond all deadlines ended the timer of the others.
func TestLossIsToldOnTimeBesideAnEndlessHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		lease := acquire(t, locks, "a", leasehold.NoRenew())
		for _, most := range []time.Duration{math.MaxInt64, 10 * 365 * 24 * time.Hour} {
			locks.Acquire(t.Context(), most.String(), leasehold.MaxHold(most))
		}
		wantLossAtDeadline(t, []*leasehold.Lease{lease})
	})
}

// So did a HandOver like that to the timer of renewals.
func TestRenewalsGoOnBesideAnEndlessHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), &leasehold.Options{HandOver: math.MaxInt64})
		renewed, lease := acquire(t, locks, "a"), acquire(t, locks, "b")
		time.AfterFunc(time.Second, func() { lease.Release(context.Background()) })
		acquire(t, locks, "b")
		time.Sleep(time.Minute)
		if renewed.Context().Err() != nil {
			t.Error(context.Cause(renewed.Context()))
		}
	})
}
