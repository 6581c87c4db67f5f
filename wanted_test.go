package leasehold_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// isWanted reports whether the lease's Wanted is closed.
func isWanted(lease *leasehold.Lease) bool {
	synctest.Wait()
	select {
	case <-lease.Wanted():
		return true
	default:
		return false
	}
}

// waiting has a call wait for the resource "a", and returns how to end it.
func waiting(t *testing.T, locks *leasehold.Locker, opts ...leasehold.Option) (leave func()) {
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		if lease, err := locks.Acquire(ctx, "a", opts...); err == nil {
			lease.Release(t.Context())
		}
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-left
	}
}

// A holder that yields hears of waiters in its own process and in others, and of nobody else.
func TestHolderHearsThatOthersWait(t *testing.T) {
	for where, opts := range map[string][]leasehold.Option{
		"exclusive": nil, "shared": {leasehold.Shared()}, "no renewal": {leasehold.NoRenew()},
	} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := memory.NewServer()
					locks, others := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
					if !elsewhere {
						others = locks
					}
					lease := acquire(t, locks, "a", append(opts, leasehold.Yields())...)
					if _, err := others.TryAcquire(t.Context(), "a"); err == nil {
						t.Fatal("two holders")
					}
					waiting(t, others, leasehold.Wait(0))
					if isWanted(lease) {
						t.Error("wanted by calls that do not wait")
					}
					defer waiting(t, others)()
					if !isWanted(lease) {
						t.Error("not wanted by a call that waits")
					}
					defer waiting(t, others)() // closes nothing twice
					if lease.Context().Err() != nil {
						t.Error("its lease has ended")
					}
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// Whoever is granted a resource that others wait for hears of them at once, and whoever has been
// handed a lease.
func TestHolderHearsOfThoseWhoWaitAlready(t *testing.T) {
	for where, handOver := range map[string]time.Duration{"handed over": time.Hour, "granted": -1} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := newLocker(t, memory.New(), &leasehold.Options{HandOver: handOver})
				first := acquire(t, locks, "a", leasehold.Yields())
				leases := make(chan *leasehold.Lease)
				for range 2 {
					go func() { leases <- acquire(t, locks, "a", leasehold.Yields()) }()
					synctest.Wait()
				}
				first.Release(t.Context())
				second := <-leases
				if (second.Token() == first.Token()+1) != (handOver > 0) {
					t.Errorf("token %d after %d", second.Token(), first.Token())
				}
				if !isWanted(second) {
					t.Error("the second is not wanted although the third waits")
				}
				second.Release(t.Context())
				third := <-leases
				if isWanted(third) {
					t.Error("the last is wanted")
				}
				third.Release(t.Context())
			})
		})
	}
}

// A lease that was handed over within the process is still wanted by the other one.
func TestHandOverKeepsThatOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, others := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
		first := acquire(t, locks, "a", leasehold.Yields())
		leases := make(chan *leasehold.Lease)
		go func() { leases <- acquire(t, locks, "a", leasehold.Yields()) }()
		synctest.Wait()
		defer waiting(t, others)()
		first.Release(t.Context())
		second := <-leases
		if second.Token() != first.Token()+1 || !isWanted(second) {
			t.Errorf("token %d after %d, wanted: %v", second.Token(), first.Token(), isWanted(second))
		}
		second.Release(t.Context())
	})
}

// A grant whose claim did not ask to hear of others is not handed over to a call that does.
func TestOnlyAGrantThatHearsIsHandedOverToOneThatYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, others := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
		first := acquire(t, locks, "a")
		if first.Wanted() != nil {
			t.Error("a lease that does not yield has Wanted")
		}
		leases := make(chan *leasehold.Lease)
		go func() { leases <- acquire(t, locks, "a", leasehold.Yields()) }()
		synctest.Wait()
		first.Release(t.Context())
		second := <-leases
		wantGrant(t, second, first)
		defer waiting(t, others)()
		if !isWanted(second) {
			t.Error("not wanted")
		}
		go func() { leases <- acquire(t, locks, "a") }() // and goes to any other
		synctest.Wait()
		second.Release(t.Context())
		third := <-leases
		if third.Token() != second.Token()+1 || third.Wanted() != nil {
			t.Errorf("token %d after %d", third.Token(), second.Token())
		}
		third.Release(t.Context())
	})
}

// A nested lease is wanted as the outermost one is.
func TestNestedLeaseIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		outer := acquire(t, locks, "a", leasehold.Yields())
		nest := func(opts ...leasehold.Option) *leasehold.Lease {
			inner, err := locks.Acquire(outer.Context(), "a", append(opts, leasehold.Reentrant())...)
			if err != nil {
				t.Fatal(err)
			}
			return inner
		}
		inner, silent := nest(leasehold.Yields()), nest()
		defer waiting(t, locks)()
		later := nest(leasehold.Yields())
		if !isWanted(outer) || !isWanted(inner) || !isWanted(later) || silent.Wanted() != nil {
			t.Errorf("wanted: %v, %v, %v; %v", isWanted(outer), isWanted(inner), isWanted(later), silent.Wanted())
		}
		for _, le := range []*leasehold.Lease{later, silent, inner, outer} {
			le.Release(t.Context())
		}
	})
}

// recaller calls Wanted whenever it likes, also before the answer that tells of the grant.
type recaller struct {
	*memory.Driver
	asked atomic.Int64
	early bool
	call  func()
}

func (d *recaller) Claim(req driver.Request) (driver.Claim, error) {
	if d.call = req.Wanted; d.call != nil {
		d.asked.Add(1)
		if d.early {
			d.call()
		}
	}
	return d.Driver.Claim(req)
}

// A recall that overtakes the grant is not lost, and one that comes after the end does nothing.
func TestRecallThatIsEarlyOrLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &recaller{Driver: memory.New(), early: true}
		locks := newLocker(t, d, nil)
		first := acquire(t, locks, "a", leasehold.Yields())
		if !isWanted(first) {
			t.Error("the recall before the grant is lost")
		}
		first.Release(t.Context())
		d.early = false
		second := acquire(t, locks, "a", leasehold.Yields())
		second.Release(t.Context())
		d.call()
		if isWanted(second) {
			t.Error("wanted after its end")
		}
		third := acquire(t, locks, "a", leasehold.Yields())
		if err := locks.Evict(t.Context(), "a", third.Owner(), "test"); err != nil {
			t.Fatal(err)
		}
		d.call()
		if isWanted(third) {
			t.Error("wanted after its loss")
		}
	})
}

// Nobody asks the engine for recalls who does not yield, and no engine is asked that has none.
func TestRecallsAreAskedForByThoseWhoYield(t *testing.T) {
	d := &recaller{Driver: memory.New()}
	locks := newLocker(t, d, nil)
	acquire(t, locks, "a").Release(t.Context())
	if n := d.asked.Load(); n != 0 {
		t.Errorf("asked for by %d claims", n)
	}
	acquire(t, locks, "a", leasehold.Yields()).Release(t.Context())
	if n := d.asked.Load(); n != 1 {
		t.Errorf("asked for by %d claims, want one", n)
	}
	features := memory.New().Features()
	features.Tells, features.Recalls, features.Keeps = false, false, false
	_, err := newLocker(t, limited{memory.New(), features}, nil).Acquire(t.Context(), "a", leasehold.Yields())
	wantErr(t, err, leasehold.ErrUnsupported)
}
