package leasehold_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

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
