package leasehold_test

import (
	"context"
	"errors"
	"slices"
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

// A call that changes the lease is still under way at its Release: then the engine is asked.
func TestNothingIsKeptDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		lease := acquire(t, k.locks, "a")
		k.mine.Next(locktest.OpNote, locktest.HangRequest)
		go lease.SetNote(t.Context(), "hangs")
		synctest.Wait()
		k.release(lease)
		if k.isHeld() {
			t.Error("kept")
		}
	})
}

// Another process has its turn at once, and after it has called nothing is kept.
func TestKeptLeaseIsRecalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		start := time.Now()
		other := acquire(t, k.others, "a")
		wantDuration(t, "waited for what is kept", time.Since(start), 0, 0)
		synctest.Wait() // the event follows after the other process has acquired the lock
		if ends := k.told.of(leasehold.KindKeep); !slices.Equal(ends, []string{"begun", "recalled", "given_back"}) {
			t.Errorf("keeps: %q", ends)
		}
		time.AfterFunc(time.Second, func() { other.Release(context.Background()) })
		lease := acquire(t, k.locks, "a")
		leave := waiting(t, k.others)
		leave() // it has given up meanwhile
		k.release(lease)
		if k.isHeld() {
			t.Error("kept although another process has called")
		}
		if !slices.Contains(k.told.of(leasehold.KindHold), "recalled") {
			t.Errorf("holds: %q", k.told.of(leasehold.KindHold))
		}
		k.cycle()
		if !k.isHeld() {
			t.Error("the next grant is not kept")
		}
	})
}

// deafened is an engine whose recalls get lost, but for those with the answer to a renewal.
type deafened struct{ *memory.Driver }

type deafenedClaim struct {
	driver.Claim
	hears *atomic.Bool
}

func (d deafened) Claim(req driver.Request) (driver.Claim, error) {
	hears, wanted := new(atomic.Bool), req.Wanted
	if wanted != nil {
		req.Wanted = func() {
			if hears.Load() {
				wanted()
			}
		}
	}
	claim, err := d.Driver.Claim(req)
	return deafenedClaim{claim, hears}, err
}

func (d deafened) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		r := &renewals[i]
		r.Answer(r.Claim.Renew(ctx, r.TTL))
	}
}

func (c deafenedClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	c.hears.Store(true)
	defer c.hears.Store(false)
	return c.Claim.Renew(ctx, ttl)
}

// A recall that is lost delays the other process by the window at most, however busy the one is.
func TestLostRecallIsHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		busy, others := newLocker(t, deafened{server.Connect()}, &leasehold.Options{Keep: keep}), newLocker(t, server.Connect(), nil)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					lease := acquire(t, busy, "a")
					time.Sleep(time.Millisecond)
					lease.Release(t.Context())
				}
			}
		})
		for range 10 {
			time.Sleep(time.Second)
			start := time.Now()
			lease := acquire(t, others, "a")
			wantDuration(t, "other process waited", time.Since(start), 0, keep)
			lease.Release(t.Context())
		}
		close(stop)
		wg.Wait()
	})
}

// A TryAcquire of another process gets what is merely kept, and is refused what is in use.
func TestTryElsewhereEndsKeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		start := time.Now()
		other, err := k.others.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		wantDuration(t, "waited", time.Since(start), 0, 0)
		other.Release(t.Context())
		lease := acquire(t, k.locks, "a")
		start = time.Now()
		var told events
		traced := newLocker(t, k.server.Connect(), &leasehold.Options{Trace: told.trace})
		_, err = traced.TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrBusy)
		if steps := told.of(leasehold.KindWait); steps[len(steps)-1] != "refused" {
			t.Errorf("its wait: %q", steps)
		}
		wantDuration(t, "waited for what is in use", time.Since(start), 0, 10*time.Millisecond)
		if busy, _ := errors.AsType[*leasehold.BusyError](err); busy == nil || busy.Holder.Token != lease.Token() {
			t.Errorf("%v does not tell the holder", err)
		}
		state, err := k.others.Inspect(t.Context(), "a")
		if err != nil || len(state.Waiters) > 0 {
			t.Errorf("left in the queue: %+v, %v", state.Waiters, err)
		}
		k.release(lease)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = k.others.TryAcquire(ctx, "a")
		wantErr(t, err, context.Canceled)
	})
}

// A slow engine has time for it.
func TestTryElsewhereWaitsForTwoRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		const trip = 50 * time.Millisecond
		slow := func(_ context.Context, apply func() error) error {
			time.Sleep(trip / 2)
			err := apply()
			time.Sleep(trip / 2)
			return err
		}
		theirs := newFaulty(t, k.server)
		others := newLocker(t, theirs, nil)
		for _, op := range []locktest.Op{locktest.OpTry, locktest.OpRelease} {
			theirs.Always(op, slow)
		}
		k.mine.Always(locktest.OpRelease, slow)
		k.cycle()
		lease, err := others.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		lease.Release(t.Context())
	})
}

// What bounds the wait for what another process keeps does not bound the renewal that follows it.
func TestOncePerElsewhereIsLengthenedInItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		theirs := newFaulty(t, k.server)
		theirs.Always(locktest.OpRenew, locktest.SlowReply(120*time.Millisecond))
		k.cycle()
		lease, err := newLocker(t, theirs, nil).TryAcquire(t.Context(), "a", leasehold.OncePer(24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		wantDuration(t, "left", time.Until(lease.Deadline()), 21*time.Hour, 24*time.Hour*9/10)
		lease.Release(t.Context())
	})
}

// A call that does not wait is not refused because of what is being given back.
func TestTryIsNotRefusedByWhatIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		first := acquire(t, k.locks, "a")
		k.release(first)
		k.mine.Next(locktest.OpRelease, locktest.SlowReply(time.Second))
		first.Owner()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := k.locks.TryAcquire(ctx, "a")
		wantErr(t, err, context.DeadlineExceeded)
		_, err = k.locks.Acquire(t.Context(), "a", leasehold.Wait(time.Millisecond))
		wantErr(t, err, context.DeadlineExceeded) // nobody knows whether it is busy
		second, err := k.locks.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		wantGrant(t, second, first)
		k.release(second)
	})
}

// Whoever gives back what is kept, and gives up meanwhile, does not leave the turn.
func TestCallThatGivesUpWhileItGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		first := acquire(t, k.locks, "a")
		k.release(first)
		k.mine.Next(locktest.OpRelease, locktest.SlowReply(time.Second))
		start := time.Now()
		_, err := k.locks.Acquire(t.Context(), "a", leasehold.Shared(), leasehold.Wait(time.Millisecond))
		wantErr(t, err, context.DeadlineExceeded)
		wantDuration(t, "waited", time.Since(start), time.Millisecond, time.Millisecond)
		second := acquire(t, k.locks, "a", leasehold.Wait(time.Minute))
		wantDuration(t, "waited for the release", time.Since(start), time.Second, time.Second)
		wantGrant(t, second, first)
		k.release(second)
	})
}

// Waiters of the process get what is released, in order, as long as nobody else waits.
func TestWaitersOfTheProcessGetWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		first := acquire(t, k.locks, "a")
		order, tokens, wait := queueUp(t, k.locks, 50, func(*leasehold.Lease) { time.Sleep(time.Millisecond) })
		time.Sleep(2 * leasehold.DefaultHandOver)
		k.release(first)
		wait()
		if !slices.IsSorted(*order) || (*tokens)[49] != first.Token()+50 {
			t.Errorf("order %v, tokens %v after %d", *order, *tokens, first.Token())
		}
	})
}

// A call that does not wait, and loses what it got from the other process, does not wait then
// either.
func TestTryElsewhereThatLosesItsGrantDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		theirs := newFaulty(t, k.server)
		theirs.Next(locktest.OpRenew, func(_ context.Context, apply func() error) error {
			k.server.Flush()
			acquire(t, k.others, "a")
			return apply()
		})
		k.cycle()
		start := time.Now()
		_, err := newLocker(t, theirs, nil).TryAcquire(t.Context(), "a", leasehold.OncePer(24*time.Hour))
		wantErr(t, err, leasehold.ErrBusy)
		wantDuration(t, "waited", time.Since(start), 0, 0)
	})
}
