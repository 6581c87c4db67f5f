package leasehold_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

const keep = 100 * time.Millisecond

// A keeping is a process that keeps leases, and another one.
type keeping struct {
	t             *testing.T
	server        *memory.Server
	mine          *locktest.Faulty
	locks, others *leasehold.Locker
	told          events
}

func newKeeping(t *testing.T) *keeping {
	k := &keeping{t: t, server: memory.NewServer()}
	k.mine = newFaulty(t, k.server)
	k.locks = newLocker(t, k.mine, &leasehold.Options{Keep: keep, Trace: k.told.trace})
	k.others = newLocker(t, k.server.Connect(), nil)
	return k
}

// release releases a lease that is live.
func (k *keeping) release(lease *leasehold.Lease) {
	k.t.Helper()
	if err := lease.Release(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
}

// cycle acquires and releases "a", and returns the token.
func (k *keeping) cycle(opts ...leasehold.Option) uint64 {
	k.t.Helper()
	lease := acquire(k.t, k.locks, "a", opts...)
	k.release(lease)
	return lease.Token()
}

// wantCalls checks how many calls there were.
func (k *keeping) wantCalls(tries, renewals, releases int) {
	k.t.Helper()
	if a, b, c := k.mine.Calls(locktest.OpTry), k.mine.Calls(locktest.OpRenew), k.mine.Calls(locktest.OpRelease); a != tries || b != renewals || c != releases {
		k.t.Fatalf("%d tries, %d renewals and %d releases, want %d, %d and %d", a, b, c, tries, renewals, releases)
	}
}

// isHeld reports whether "a" is held at the engine.
func (k *keeping) isHeld() bool {
	k.t.Helper()
	synctest.Wait()
	state, err := k.others.Inspect(k.t.Context(), "a")
	if err != nil {
		k.t.Fatal(err)
	}
	return len(state.Holders) > 0
}

// What is kept is taken without a call to the engine, with the next token. Unused, it is given back.
func TestKeptLeaseIsTakenWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		last := k.cycle()
		for range 100 {
			if token := k.cycle(); token != last+1 {
				t.Fatalf("token %d after %d", token, last)
			} else {
				last = token
			}
		}
		lease, err := k.locks.TryAcquire(t.Context(), "a")
		if err != nil || lease.Token() != last+1 {
			t.Fatal(lease, err)
		}
		k.release(lease)
		err = k.locks.Do(t.Context(), "a", func(ctx context.Context) error {
			if le, _ := leasehold.FromContext(ctx); le.Token() != last+2 {
				t.Errorf("token %d after %d", le.Token(), last+1)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		k.wantCalls(1, 0, 0)
		if lease.Context().Err() == nil {
			t.Error("a lease outlived its release")
		}
		time.Sleep(3 * keep)
		k.wantCalls(1, 1, 1) // confirmed once, because it was used
		wantFree(t, k.others, "a")
	})
}

// What is never used is not even confirmed.
func TestUnusedLeaseIsGivenBackAfterTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		time.Sleep(keep - time.Millisecond)
		if !k.isHeld() {
			t.Error("given back too early")
		}
		time.Sleep(keep / 4)
		if k.isHeld() {
			t.Error("not given back")
		}
		k.wantCalls(1, 0, 1)
	})
}

// A lease that is used now and then is confirmed while it is, and no longer.
func TestKeptLeaseIsConfirmedWhileItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		last, start := k.cycle(), time.Now()
		for time.Since(start) < 30*time.Second {
			time.Sleep(3 * keep / 4) // later than the first check finds it unused
			token := k.cycle()
			if token != last+1 {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
		}
		if n := k.mine.Calls(locktest.OpRenew); n < 250 || n > 700 {
			t.Errorf("%d renewals in 30 s, want some two in each %v", n, keep)
		}
		if n := k.mine.Calls(locktest.OpTry); n != 1 {
			t.Errorf("%d grants", n)
		}
	})
}

// One that was not used for a while is confirmed as soon as it is used again, and not at the end of
// the window.
func TestKeptLeaseIsConfirmedWhenItIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.mine.Always(locktest.OpRenew, locktest.SlowReply(keep/4))
		last := k.cycle()
		time.Sleep(6 * keep / 10)
		for range keep / time.Millisecond {
			token := k.cycle()
			if token != last+1 {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
			time.Sleep(time.Millisecond)
		}
	})
}

// A lease that is held for long is not renewed more often than without Keep.
func TestLongSectionsAreNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		lease := acquire(t, k.locks, "a")
		time.Sleep(time.Minute)
		if n := k.mine.Calls(locktest.OpRenew); n < 15 || n > 25 {
			t.Errorf("%d renewals in a minute", n)
		}
		k.release(lease)
	})
}

// However long the window is, half of the lease is left of what is taken.
func TestKeptLeaseHasHalfOfItsLengthLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), &leasehold.Options{Keep: time.Hour})
		for _, wait := range []time.Duration{ttl/2 - time.Second, ttl/2 + time.Second} {
			first := acquire(t, locks, "a")
			first.Release(t.Context())
			time.Sleep(wait)
			second := acquire(t, locks, "a")
			if wait < ttl/2 && second.Token() != first.Token()+1 {
				t.Errorf("token %d after %d", second.Token(), first.Token())
			}
			wantDuration(t, "left", time.Until(second.Deadline()), ttl/2, ttl)
			second.Release(t.Context())
			time.Sleep(ttl)
		}
	})
}

func TestKeepStopsWhereTokensWouldOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		var tokens []uint64
		for range 3 * 1023 {
			tokens = append(tokens, k.cycle())
		}
		if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != len(tokens) {
			t.Error("tokens went back or repeated")
		}
		if n := k.mine.Calls(locktest.OpTry); n != 3 {
			t.Errorf("%d grants, want 3 of 1,023 leases each", n)
		}
	})
}

// Nothing is kept that others may act on, or that is not what the next call would be granted.
func TestNeverKept(t *testing.T) {
	manual := leasehold.WithDetails(leasehold.Details{Kind: leasehold.HolderManual})
	with := func(opts ...leasehold.Option) func(k *keeping) *leasehold.Lease {
		return func(k *keeping) *leasehold.Lease { return acquire(k.t, k.locks, "a", opts...) }
	}
	changed := func(change func(ctx context.Context, le *leasehold.Lease) error) func(k *keeping) *leasehold.Lease {
		return func(k *keeping) *leasehold.Lease {
			lease := acquire(k.t, k.locks, "a")
			if err := change(k.t.Context(), lease); err != nil {
				k.t.Error(err)
			}
			return lease
		}
	}
	for what, get := range map[string]func(k *keeping) *leasehold.Lease{
		"NoRenew": with(leasehold.NoRenew()), "MaxHold": with(leasehold.MaxHold(time.Hour)), "Yields": with(leasehold.Yields()),
		"Shared": with(leasehold.Shared()), "Kind": with(manual),
		"Owner": changed(func(_ context.Context, le *leasehold.Lease) error { le.Owner(); return nil }),
		"Extend": changed(func(ctx context.Context, le *leasehold.Lease) error {
			return le.Extend(ctx, time.Hour)
		}),
		"Extend of the same length": changed(func(ctx context.Context, le *leasehold.Lease) error { return le.Extend(ctx, ttl) }),
		"SetNote":                   changed(func(ctx context.Context, le *leasehold.Lease) error { return le.SetNote(ctx, "half") }),
		"SetDetails": changed(func(ctx context.Context, le *leasehold.Lease) error {
			return le.SetDetails(ctx, leasehold.Details{User: "anna"})
		}),
		"resumed": func(k *keeping) *leasehold.Lease {
			left := acquire(k.t, k.others, "a")
			lease, err := k.locks.Resume(k.t.Context(), "a", left.Owner())
			if err != nil {
				k.t.Fatal(err)
			}
			return lease
		},
		"AtLeast inside": func(k *keeping) *leasehold.Lease {
			lease := acquire(k.t, k.locks, "a")
			inner, err := k.locks.Acquire(lease.Context(), "a", leasehold.Reentrant(), leasehold.AtLeast(time.Nanosecond))
			if err != nil {
				k.t.Fatal(err)
			}
			k.release(inner)
			return lease
		},
		"MaxHold, taken from keep": func(k *keeping) *leasehold.Lease {
			last := k.cycle()
			lease := acquire(k.t, k.locks, "a", leasehold.MaxHold(time.Hour))
			if lease.Token() != last+1 {
				k.t.Errorf("token %d after %d", lease.Token(), last)
			}
			return lease
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeeping(t)
				k.release(get(k))
				time.Sleep(time.Millisecond) // AtLeast
				if k.isHeld() {
					t.Error("kept")
				}
			})
		})
	}
}

// Nor is a leader's, who has stepped down.
func TestLeadKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		c := runForLeader(t, k.locks)
		<-c.tokens
		c.cancel()
		<-c.result
		wantFree(t, k.others, "scheduler")
	})
}

// What was kept before its owner was read is given back.
func TestOwnerReadAfterTheReleaseEndsKeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		lease := acquire(t, k.locks, "a")
		k.release(lease)
		if !k.isHeld() {
			t.Fatal("not kept")
		}
		lease.Owner()
		if k.isHeld() {
			t.Error("kept although its owner is known")
		}
	})
}

func TestKeepIsRefused(t *testing.T) {
	for _, o := range []leasehold.Options{{Keep: -1}, {Keep: time.Millisecond}, {Keep: keep, HandOver: -1}} {
		_, err := leasehold.New(memory.New(), &o)
		wantErr(t, err, leasehold.ErrInvalidOption)
	}
	features := memory.New().Features()
	features.Keeps = false
	_, err := leasehold.New(limited{memory.New(), features}, &leasehold.Options{Keep: keep})
	wantErr(t, err, leasehold.ErrUnsupported)
}

// A call for a lease of another kind gives back what is kept, and is not refused because of it.
func TestOtherCallsGiveBackWhatIsKept(t *testing.T) {
	for what, opt := range map[string]leasehold.Option{
		"shared": leasehold.Shared(), "TTL": leasehold.TTL(time.Minute), "NoRenew": leasehold.NoRenew(),
		"AtLeast": leasehold.AtLeast(time.Nanosecond), "Yields": leasehold.Yields(),
	} {
		for _, wait := range []time.Duration{0, time.Hour} {
			t.Run(what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := newKeeping(t)
					first := acquire(t, k.locks, "a")
					k.release(first)
					next := acquire(t, k.locks, "a", opt, leasehold.Wait(wait))
					wantGrant(t, next, first)
					k.wantCalls(2, 0, 1)
					k.release(next)
				})
			})
		}
	}
}

// Where a note cannot be changed, what is kept goes to a call with the same one.
func TestKeptLeaseWithoutNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, fixedNotes{memory.New()}, &leasehold.Options{Keep: keep})
		var last *leasehold.Lease
		for i, note := range []string{"a", "a", "b", "b"} {
			lease := acquire(t, locks, "a", leasehold.Note(note))
			if d := held(t, locks).Details(); d.Text != note || d.Kind != leasehold.HolderKeeps {
				t.Errorf("shows %+v", d)
			}
			if i%2 == 0 && last != nil {
				wantGrant(t, lease, last)
			} else if last != nil && lease.Token() != last.Token()+1 {
				t.Errorf("token %d after %d", lease.Token(), last.Token())
			}
			lease.Release(t.Context())
			last = lease
		}
	})
}

// Elsewhere the next confirmation changes it.
func TestKeptLeaseShowsItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle(leasehold.Note("a"))
		lease := acquire(t, k.locks, "a", leasehold.Note("b"))
		time.Sleep(keep)
		if d := held(t, k.others).Details(); d.Text != "b" || d.Kind != leasehold.HolderKeeps {
			t.Errorf("shows %+v", d)
		}
		k.release(lease)
	})
}

// The window counts from before the call that the engine last agreed to.
func TestWindowCountsFromTheEnginesWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.mine.Next(locktest.OpTry, locktest.SlowReply(keep))
		k.cycle()
		if k.isHeld() {
			t.Error("kept although the engine's answer was slow")
		}
		lease := acquire(t, k.locks, "a")
		time.Sleep(keep)
		k.release(lease)
		if k.isHeld() {
			t.Error("kept although the section was long")
		}
		lease = acquire(t, k.locks, "a")
		time.Sleep(keep - time.Millisecond)
		k.release(lease)
		time.Sleep(time.Millisecond)
		next := acquire(t, k.locks, "a")
		wantGrant(t, next, lease)
		k.release(next)
	})
}

// So it does after a confirmation, however late its answer comes.
func TestWindowCountsFromBeforeTheConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.mine.Always(locktest.OpRenew, locktest.SlowReply(8*keep/10))
		k.cycle()
		first := acquire(t, k.locks, "a")
		k.release(first)
		time.Sleep(155 * keep / 100) // the answer has come, and was asked for more than the window ago
		second := acquire(t, k.locks, "a")
		wantGrant(t, second, first)
		k.release(second)
	})
}

// Release says nil without asking only within the window, and nobody goes on with what the engine
// has lost for longer than half of it.
func TestKeptGrantThatTheEngineLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		var told events
		locks := newLocker(t, silent{server.Connect()}, &leasehold.Options{Keep: keep, Trace: told.trace})
		others := newLocker(t, server.Connect(), nil)
		first := acquire(t, locks, "a")
		first.Release(t.Context())
		server.Flush()
		other := acquire(t, others, "a")
		second := acquire(t, locks, "a")
		if second.Token() != first.Token()+1 || second.Deadline().After(first.Deadline()) {
			t.Errorf("token %d after %d, deadlines %v and %v", second.Token(), first.Token(), second.Deadline(), first.Deadline())
		}
		start := time.Now()
		<-second.Context().Done()
		wantDuration(t, "lived on a grant that was lost", time.Since(start), 0, keep*6/10)
		wantErr(t, second.Release(t.Context()), leasehold.ErrLost)
		other.Release(t.Context())

		third := acquire(t, locks, "a")
		server.Flush()
		other = acquire(t, others, "a")
		time.Sleep(keep)
		wantErr(t, third.Release(t.Context()), leasehold.ErrLost)
		other.Release(t.Context())

		fourth := acquire(t, locks, "a")
		fourth.Release(t.Context())
		acquire(t, locks, "a").Release(t.Context())
		server.Flush() // is found by the confirmation while it is kept
		time.Sleep(keep)
		last := acquire(t, locks, "a")
		wantGrant(t, last, fourth)
		last.Release(t.Context())
		if ends := told.of(leasehold.KindKeep); !slices.Contains(ends, "lost") {
			t.Errorf("keeps: %q", ends)
		}
	})
}

// An engine that says so ends keeping at once.
func TestKeptGrantThatIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		first := acquire(t, k.locks, "a")
		k.release(first)
		if err := k.others.Evict(t.Context(), "a", held(t, k.others).Owner.Reveal(), "test"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second, err := k.locks.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		wantGrant(t, second, first)
		k.release(second)
		if ends := k.told.of(leasehold.KindKeep); !slices.Equal(ends[:2], []string{"begun", "evicted"}) {
			t.Errorf("keeps: %q", ends)
		}
	})
}

// What ended while the machine slept is not taken.
func TestKeptGrantThatEndedInASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clock boottime.Clock
		locks, err := leasehold.NewOnClock(memory.New(), &leasehold.Options{Keep: keep}, &clock)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		first := acquire(t, locks, "a")
		first.Release(t.Context())
		clock.Sleep(keep)
		second := acquire(t, locks, "a")
		wantGrant(t, second, first)
		second.Release(t.Context())
	})
}

// A confirmation that hangs keeps nobody waiting, and ends keeping with the window.
func TestConfirmationThatHangsIsInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		last := k.cycle()
		k.mine.Always(locktest.OpRenew, locktest.HangRequest)
		start := time.Now()
		for time.Since(start) < keep-time.Millisecond {
			token := k.cycle()
			if token != last+1 {
				t.Fatalf("token %d after %d within the window", token, last)
			}
			last = token
			time.Sleep(time.Millisecond)
		}
		k.wantCalls(1, 1, 0)
		time.Sleep(2 * time.Millisecond)
		asked := time.Now()
		if token := k.cycle(); token < last+512 {
			t.Errorf("token %d after %d, taken after the window", token, last)
		}
		wantDuration(t, "waited", time.Since(asked), 0, 0)
		k.cycle()
		k.cycle()
		time.Sleep(2 * keep) // and what nobody takes is given back
		if k.isHeld() {
			t.Error("kept although the engine does not confirm it")
		}
	})
}

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

// Of a Locker that is closed only what is kept is given back, and nothing is kept any more.
func TestCloseGivesBackWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		for _, name := range []string{"a", "b", "c"} {
			k.release(acquire(t, k.locks, name))
		}
		held := acquire(t, k.locks, "held")
		k.locks.Close()
		wantFree(t, k.others, "a", "b", "c")
		state, err := k.others.Inspect(t.Context(), "held") // recalls nothing
		if err != nil || len(state.Holders) != 1 || held.Context().Err() != nil {
			t.Error("Close ended a lease that is held")
		}
		k.release(held)
		wantFree(t, k.others, "held")
	})
}

// An engine that does not answer delays Close by no more than a clean-up.
func TestCloseWithAnEngineThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		k.mine.Always(locktest.OpRelease, locktest.HangRequest)
		start := time.Now()
		k.locks.Close()
		wantDuration(t, "Close", time.Since(start), 5*time.Second, 5*time.Second+time.Millisecond)
		if steps := k.told.of(leasehold.KindKeep); steps[len(steps)-1] != "unknown" {
			t.Errorf("keeps: %q", steps)
		}
	})
}

// Without Keep nothing is asked of the engine, and nothing shown.
func TestWithoutKeepNothingIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &recaller{Driver: memory.New()}
		locks := newLocker(t, d, nil)
		lease := acquire(t, locks, "a")
		if held(t, locks).Details().Kind != "" || d.asked.Load() != 0 {
			t.Errorf("shows %+v, %d claims ask for recalls", held(t, locks).Details(), d.asked.Load())
		}
		lease.Release(t.Context())
		wantFree(t, locks, "a")
	})
}

func TestTraceTellsOfKeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		first := acquire(t, k.locks, "a")
		k.release(first)
		time.Sleep(time.Millisecond)
		k.cycle()
		time.Sleep(3 * keep)
		if steps := k.told.of(leasehold.KindKeep); !slices.Equal(steps, []string{"begun", "taken", "begun", "given_back"}) {
			t.Errorf("keeps: %q", steps)
		}
		if steps := k.told.of(leasehold.KindWait); !slices.Equal(steps, []string{"begun", "granted", "begun", "taken"}) {
			t.Errorf("waits: %q", steps)
		}
		if steps := k.told.of(leasehold.KindHold); !slices.Equal(steps, []string{"begun", "released", "begun", "released"}) {
			t.Errorf("holds: %q", steps)
		}
		for _, e := range k.told.all {
			if e.Kind == leasehold.KindKeep && e.Step == leasehold.StepTaken && (e.Took != time.Millisecond || e.Token != first.Token()) {
				t.Errorf("%+v", e)
			}
		}
	})
}

// Calls, recalls, evictions and ends of the window race; nothing is lost or held twice.
func TestNothingIsLeftAfterARaceWithKeep(t *testing.T) {
	server := memory.NewServer()
	inside := 0
	var wg sync.WaitGroup
	var last atomic.Uint64
	var all []*leasehold.Locker
	var pairs locktest.Pairs
	for range 2 {
		locks := newLocker(t, server.Connect(), &leasehold.Options{Keep: 10 * time.Millisecond, HandOver: time.Millisecond, Trace: pairs.Trace})
		all = append(all, locks)
		for i := range 4 {
			wg.Go(func() {
				for range 500 {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond))
					var lease *leasehold.Lease
					var err error
					switch {
					case i == 3 && rand.N(8) == 0:
						lease, err = locks.TryAcquire(ctx, "a")
					case i == 2 && rand.N(8) == 0:
						lease, err = locks.Acquire(ctx, "a", leasehold.TTL(time.Minute))
					default:
						lease, err = locks.Acquire(ctx, "a")
					}
					cancel()
					if err != nil {
						continue
					}
					inside++ // guarded by the lease: the race detector and the sum tell
					if before := last.Swap(lease.Token()); before >= lease.Token() {
						t.Errorf("token %d after %d", lease.Token(), before)
					}
					if rand.N(50) == 0 {
						lease.Owner()
					}
					inside--
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
					if rand.N(100) == 0 {
						time.Sleep(rand.N(20 * time.Millisecond))
					}
				}
			})
		}
	}
	wg.Wait()
	for _, locks := range all {
		locks.Close()
	}
	if inside != 0 {
		t.Errorf("two holders at once: %d", inside)
	}
	if err := pairs.Err(); err != nil || len(pairs.Open()) > 0 {
		t.Errorf("%v; open: %+v", err, pairs.Open())
	}
	wantFree(t, newLocker(t, server.Connect(), nil), "a")
}

// Evictions race with all that happens to what is kept.
func TestKeepAndLossRace(t *testing.T) {
	server := memory.NewServer()
	var pairs locktest.Pairs
	locks := newLocker(t, server.Connect(), &leasehold.Options{Keep: 10 * time.Millisecond, Trace: pairs.Trace})
	raceWithEvictions(t, locks, newLocker(t, server.Connect(), nil), 4, func() { time.Sleep(rand.N(200 * time.Microsecond)) })
	acquire(t, locks, "a", leasehold.Wait(time.Second)).Release(t.Context())
	locks.Close()
	if err := pairs.Err(); err != nil || len(pairs.Open()) > 0 {
		t.Errorf("%v; open: %+v", err, pairs.Open())
	}
}
