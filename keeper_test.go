package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func TestRenewalOutlivesManyTTLsAndTheAcquiringContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		lease, err := locks.Acquire(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * ttl)
		if err := lease.Context().Err(); err != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		if n := mine.Calls(locktest.OpRenew); n < 300 || n > 340 {
			t.Errorf("%d renewals in 100 TTLs, want about three a TTL", n)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHungRenewalLeavesTimeForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		lease := acquire(t, newLocker(t, mine, nil), "a")
		mine.Next(locktest.OpRenew, locktest.HangRequest, locktest.HangReply, locktest.LoseRequest)
		time.Sleep(3 * ttl)
		if err := lease.Context().Err(); err != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		lease.Release(t.Context())
	})
}

// Promise 4, for renewals: after a lost reply the former deadline stands.
func TestRenewalWithLostReplyLeavesTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		lease := acquire(t, newLocker(t, mine, nil), "a")
		deadline := lease.Deadline()
		mine.Always(locktest.OpRenew, locktest.LoseReply)
		<-lease.Context().Done()
		if late := time.Since(deadline); late != 0 {
			t.Errorf("the context ended %v after the deadline", late)
		}
		lease.Release(t.Context())
	})
}

// The holder of a lease that is to be lost may know long before, and why.
func TestFailedRenewalsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, wrapped := range map[string]func(driver.Driver) driver.Driver{
			"one by one": func(d driver.Driver) driver.Driver { return d },
			"in batches": func(d driver.Driver) driver.Driver { return batching{d} },
		} {
			mine := newFaulty(t, memory.NewServer())
			var lease *leasehold.Lease
			var told atomic.Int32
			var lost atomic.Bool
			left, why := ttl, locktest.ErrInjected
			locks := newLocker(t, wrapped(mine), &leasehold.Options{Trace: leasehold.TraceAll(
				locktest.On(leasehold.StepFailed, func(e leasehold.Event) {
					if !errors.Is(e.Err, why) || e.Name != "a" || e.Token != lease.Token() || e.Left >= left || e.Left != time.Until(lease.Deadline()) {
						t.Errorf("%+v, %v left before", e, left)
					}
					left = e.Left
					told.Add(1)
				}),
				locktest.On(leasehold.StepLost, func(leasehold.Event) { lost.Store(true) }),
			)})
			lease = acquire(t, locks, "a")
			mine.Always(locktest.OpRenew, locktest.LoseRequest)
			time.Sleep(ttl * 9 / 10)
			synctest.Wait()
			if n := mine.Calls(locktest.OpRenew); int(told.Load()) != n || n < 10 || lost.Load() {
				t.Errorf("%s: told of %d of %d renewals in nine tenths of a TTL; lost %t", name, told.Load(), n, lost.Load())
			}
			mine.Always(locktest.OpRenew, nil)
			before := told.Load()
			time.Sleep(3 * ttl)
			if told.Load() != before || lost.Load() {
				t.Errorf("%s: told of %d failures while all is well; lost %t", name, told.Load()-before, lost.Load())
			}
			left, why = ttl, context.DeadlineExceeded
			mine.Always(locktest.OpRenew, locktest.HangRequest)
			for ; told.Load() == before && !lost.Load(); synctest.Wait() {
				time.Sleep(ttl / 100)
			}
			if lost.Load() {
				t.Errorf("%s: lost before it was told of a renewal that hangs", name)
			}
			before = told.Load()
			locks.Close()
			if told.Load() != before {
				t.Errorf("%s: told of a renewal that Close has cut short", name)
			}
		}
	})
}

// batching renews several claims in one call.
type batching struct{ driver.Driver }

func (batching) RenewAll(ctx context.Context, all []driver.Renewal) {
	for i := range all {
		all[i].Grant, all[i].Err = all[i].Claim.Renew(ctx, all[i].TTL)
	}
}

func TestRenewedDeadlineCountsFromBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		var renewed time.Time
		locks := newLocker(t, mine, &leasehold.Options{Trace: locktest.On(leasehold.StepRenewed, func(leasehold.Event) { renewed = time.Now() })})
		lease := acquire(t, locks, "a")
		mine.Next(locktest.OpRenew, locktest.SlowReply(2*time.Second))
		time.Sleep(ttl*6/10 + time.Millisecond)
		synctest.Wait()
		drift := ttl/100 + 2*time.Millisecond
		if got := lease.Deadline().Sub(renewed); got != ttl-drift-2*time.Second {
			t.Errorf("deadline %v after an answer that took 2s", got)
		}
		lease.Release(t.Context())
	})
}

// otherGrant is an engine that renews something else than what it granted.
type otherGrant struct{ driver.Driver }

func (d otherGrant) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return otherGrantClaim{c}, err
}

type otherGrantClaim struct{ driver.Claim }

func (c otherGrantClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	g, err := c.Claim.Renew(ctx, ttl)
	g.Fence++
	return g, err
}

func TestRenewalOfAnotherGrantIsALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := acquire(t, newLocker(t, otherGrant{memory.New()}, nil), "a")
		time.Sleep(ttl / 2)
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrLost)
		wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)
	})
}

func TestNoRenewAndMaxHoldEndTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		start := time.Now()
		lease := acquire(t, locks, "a", leasehold.NoRenew())
		<-lease.Context().Done()
		wantDuration(t, "NoRenew", time.Since(start), ttl*98/100, ttl)
		wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)

		start = time.Now()
		lease = acquire(t, locks, "a", leasehold.MaxHold(time.Minute))
		<-lease.Context().Done()
		if held := time.Since(start); held != time.Minute {
			t.Errorf("MaxHold ended the lease after %v", held)
		}
		renewals := mine.Calls(locktest.OpRenew)
		wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)
		time.Sleep(ttl)
		if n := mine.Calls(locktest.OpRenew); n != renewals {
			t.Errorf("%d renewals after MaxHold", n-renewals)
		}
	})
}

func TestCloseEndsEverythingOfTheLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks := newLocker(t, mine, nil)
		lease := acquire(t, locks, "a")
		other := acquire(t, newLocker(t, server.Connect(), nil), "b")
		errs := make(chan error)
		for _, name := range []string{"a", "b"} { // one waits in the process, one at the engine
			go func() {
				_, err := locks.Acquire(t.Context(), name)
				errs <- err
			}()
		}
		synctest.Wait()
		locks.Close()
		wantErr(t, <-errs, leasehold.ErrClosed)
		wantErr(t, <-errs, leasehold.ErrClosed)
		_, err := locks.TryAcquire(t.Context(), "c")
		wantErr(t, err, leasehold.ErrClosed)

		start := time.Now()
		<-lease.Context().Done()
		wantDuration(t, "lease after Close", time.Since(start), ttl/2, ttl)
		if n := mine.Calls(locktest.OpRenew); n != 0 {
			t.Errorf("%d renewals after Close", n)
		}
		wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)
		other.Release(t.Context())
	})
}

// Ten thousand leases, many of them renewed while we look.
func TestLeasesCostNoGoroutine(t *testing.T) {
	synctest.Test(t, leasesCostNoGoroutine)
}

func leasesCostNoGoroutine(t *testing.T) {
	const leases = 10_000
	renewed := make(chan struct{}, leases)
	locks := newLocker(t, memory.New(), &leasehold.Options{
		Trace: locktest.On(leasehold.StepRenewed, func(leasehold.Event) {
			select {
			case renewed <- struct{}{}:
			default:
			}
		}),
	})
	names := make([]string, leases)
	for i := range names {
		names[i] = fmt.Sprintf("lease/%d", i)
	}
	held := make([]*leasehold.Lease, 0, leases)
	goroutines := runtime.NumGoroutine()
	for _, name := range names {
		held = append(held, acquire(t, locks, name))
	}
	most := 0
	for range leases {
		<-renewed
		most = max(most, runtime.NumGoroutine())
	}
	t.Logf("at most %d goroutines for %d leases", most-goroutines, leases)
	if most-goroutines > 32 {
		t.Errorf("%d goroutines for %d leases, want at most 32", most-goroutines, leases)
	}
	for _, lease := range held {
		lease.Release(t.Context())
	}
}

// Close returns when nothing of the Locker runs any more, so that the driver can follow.
func TestCloseWaitsForWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		other := acquire(t, newLocker(t, server.Connect(), nil), "held")
		mine := newFaulty(t, server)
		locks := newLocker(t, mine, nil)
		errs := make(chan error, 2)
		go func() { // waits at the engine
			_, err := locks.Acquire(t.Context(), "held")
			errs <- err
		}()
		synctest.Wait()
		mine.Next(locktest.OpTry, locktest.SlowReply(time.Second))
		go func() { // is being granted
			_, err := locks.Acquire(t.Context(), "free")
			errs <- err
		}()
		synctest.Wait()
		locks.Close()
		mine.Close()
		wantErr(t, <-errs, leasehold.ErrClosed)
		wantErr(t, <-errs, leasehold.ErrClosed)
		for _, name := range []string{"held", "free"} {
			st, err := server.Connect().Inspect(t.Context(), name)
			if err != nil || len(st.Waiters) > 0 || name == "free" && len(st.Holders) > 0 {
				t.Errorf("left behind on %q: %+v, %v", name, st, err)
			}
		}
		other.Release(t.Context())
	})
}

// batches counts the calls that renew, and can make them hang or one claim lose.
type batches struct {
	*memory.Driver
	calls, renewals, hang atomic.Int32
	moments               sync.Map // when calls were made
}

func (b *batches) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	b.calls.Add(1)
	b.moments.Store(time.Now(), true)
	b.renewals.Add(int32(len(renewals)))
	if b.hang.Add(-1) >= 0 {
		<-ctx.Done()
		for i := range renewals {
			renewals[i].Err = ctx.Err()
		}
		return
	}
	b.Driver.RenewAll(ctx, renewals)
}

func TestRenewalsShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases = 2000
		b := &batches{Driver: memory.New()}
		locks := newLocker(t, b, nil)
		var held []*leasehold.Lease
		for i := range leases {
			held = append(held, acquire(t, locks, fmt.Sprint("lease ", i)))
		}
		b.hang.Store(3)
		evicted := held[leases/2]
		locks.Evict(t.Context(), evicted.Name(), evicted.Owner(), "test")
		time.Sleep(10 * ttl)
		for _, lease := range held {
			if live := lease.Context().Err() == nil; live != (lease != evicted) {
				t.Fatalf("%s: live %v: %v", lease.Name(), live, context.Cause(lease.Context()))
			}
			lease.Release(t.Context())
		}
		each := float64(b.renewals.Load()) / float64(b.calls.Load())
		t.Logf("%d renewals in %d calls", b.renewals.Load(), b.calls.Load())
		if each < 50 {
			t.Errorf("%.0f renewals a call, want at least 50", each)
		}
		moments := 0
		b.moments.Range(func(_, _ any) bool { moments++; return true })
		if calls := int(b.calls.Load()); moments < calls*9/10 {
			t.Errorf("%d calls at %d moments, want them spread over time", calls, moments)
		}
	})
}

func TestReleaseBesideABatchDoesNotWaitForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{Driver: memory.New()}
		locks := newLocker(t, b, &leasehold.Options{TTL: time.Hour})
		one, two := acquire(t, locks, "one"), acquire(t, locks, "two")
		b.hang.Store(1)
		time.Sleep(21 * time.Minute)
		for b.calls.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		start := time.Now()
		one.Release(t.Context())
		wantDuration(t, "release", time.Since(start), 0, 5*time.Second)
		two.Release(t.Context())
	})
}

// shortGrants is an engine that grants half of the TTL asked for.
type shortGrants struct {
	*memory.Driver
	renewals *atomic.Int32
}

func (d shortGrants) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return shortClaim{c, d}, err
}

type shortClaim struct {
	driver.Claim
	of shortGrants
}

func (c shortClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	g.TTL /= 2
	return g, err
}

func (c shortClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	c.of.renewals.Add(1)
	g, err := c.Claim.Renew(ctx, ttl)
	g.TTL /= 2
	return g, err
}

// A grant that is shorter than the TTL is renewed in its own thirds: in time, and no oftener.
func TestShortGrantsAreRenewedByTheirLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := shortGrants{memory.New(), new(atomic.Int32)}
		l, err := leasehold.New(d, &leasehold.Options{TTL: 6 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		lease, err := l.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("after 30 s: %v", context.Cause(lease.Context()))
		}
		if n := d.renewals.Load(); n < 28 || n > 36 { // every second, less the jitter
			t.Errorf("%d renewals in 30 s of a lease of 3 s", n)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
