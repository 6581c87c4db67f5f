package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// A caller that waits holds smaller names only.
func TestWaitingForOneOfAllLeavesTheLaterOnesFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, other := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
		busy := acquire(t, other, "b")
		got := make(chan *leasehold.Leases)
		go func() {
			all, err := locks.AcquireAll(t.Context(), []string{"d", "c", "b", "a"})
			if err != nil {
				t.Error(err)
			}
			got <- all
		}()
		synctest.Wait()
		wantFree(t, other, "c", "d")
		_, err := other.TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrBusy)
		late := acquire(t, other, "d") // taken meanwhile: waited for in its turn
		busy.Release(t.Context())
		synctest.Wait()
		_, err = other.TryAcquire(t.Context(), "c")
		wantErr(t, err, leasehold.ErrBusy)
		late.Release(t.Context())
		if err := (<-got).Release(t.Context()); err != nil {
			t.Error(err)
		}
		wantFree(t, other, "a", "b", "c", "d")
	})
}

func TestOneWaitBoundsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, other := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
		first, second := acquire(t, other, "b"), acquire(t, other, "c", leasehold.Note("backup of db7"))
		time.AfterFunc(7*time.Second, func() { first.Release(context.Background()) })
		start := time.Now()
		_, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c", "d"}, leasehold.Wait(10*time.Second))
		wantErr(t, err, leasehold.ErrBusy)
		wantDuration(t, "waited", time.Since(start), 10*time.Second, 10100*time.Millisecond)
		busy, ok := errors.AsType[*leasehold.BusyError](err)
		if !ok || busy.Resource != "c" || busy.Holder.Note != "backup of db7" {
			t.Errorf("%v does not tell who is in the way", err)
		}
		wantFree(t, other, "a", "b", "d")

		start = time.Now()
		_, err = locks.AcquireAll(t.Context(), []string{"a", "b", "c"}, leasehold.Wait(0))
		wantErr(t, err, leasehold.ErrBusy)
		wantDuration(t, "waited without waiting", time.Since(start), 0, 0)
		wantFree(t, other, "a", "b")

		why := errors.New("user went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err = locks.AcquireAll(ctx, []string{"a", "b", "c"})
		wantErr(t, err, why)
		wantFree(t, other, "a", "b")
		second.Release(t.Context())
		wantFree(t, other, "c") // no place is left
	})
}

// Of a crowd that does not wait, one gets all: not nobody.
func TestOneOfACrowdWithoutWaitingGetsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		var lockers []*leasehold.Locker
		for range 8 {
			lockers = append(lockers, newLocker(t, slowTries{server.Connect()}, nil))
		}
		for range 20 {
			got := make(chan *leasehold.Leases, len(lockers))
			var crowd sync.WaitGroup
			for _, locks := range lockers {
				crowd.Go(func() {
					all, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c", "d"}, leasehold.Wait(0))
					switch {
					case err == nil:
						got <- all
					case !errors.Is(err, leasehold.ErrBusy):
						t.Error(err)
					}
				})
			}
			crowd.Wait()
			if n := len(got); n != 1 {
				t.Fatalf("%d of 8 got all", n)
			}
			if err := (<-got).Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A wait that ends between two calls to the engine returns the same error as one that ends during a call.
func TestWaitRunsOutBetweenTwoCalls(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		var stuck atomic.Bool
		stuck.Store(true)
		server := memory.NewServer()
		locks, other := newLocker(t, way(slowTries{stuckReleases{server.Connect(), "c", &stuck}}), nil), newLocker(t, server.Connect(), nil)
		lease := acquire(t, other, "b", leasehold.Note("backup of db7"))
		// It runs out while "c" is given up again.
		_, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c"}, leasehold.Wait(1020*time.Millisecond))
		wantErr(t, err, leasehold.ErrBusy)
		busy, ok := errors.AsType[*leasehold.BusyError](err)
		if !ok || busy.Resource != "b" || busy.Holder.Note != "backup of db7" {
			t.Errorf("%v does not tell who is in the way", err)
		}
		_, err = locks.AcquireAll(t.Context(), []string{"a", "b", "c"}, leasehold.Wait(time.Nanosecond))
		wantErr(t, err, context.DeadlineExceeded) // nobody knows
		lease.Release(t.Context())
	})
}

// Many who want overlapping sets, in any order, all get theirs, one at a time, and no
// set is ever held in part.
func TestOppositeOrdersNeverDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		var held [6]atomic.Int32
		var crowd sync.WaitGroup
		for range 8 {
			locks := newLocker(t, server.Connect(), nil)
			for range 3 {
				crowd.Go(func() {
					for range 10 {
						want := rand.Perm(len(held))[:1+rand.N(len(held))]
						names := make([]string, len(want))
						for i, n := range want {
							names[i] = fmt.Sprint(n)
						}
						all, err := locks.AcquireAll(t.Context(), names)
						if err != nil {
							t.Error(err)
							return
						}
						for _, n := range want {
							if held[n].Add(1) != 1 {
								t.Errorf("%d is held twice", n)
							}
						}
						time.Sleep(rand.N(50 * time.Millisecond))
						for _, n := range want {
							held[n].Add(-1)
						}
						if err := all.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		crowd.Wait()
		wantFree(t, newLocker(t, server.Connect(), nil), "0", "1", "2", "3", "4", "5")
	})
}

// Close waits until AcquireAll has given back what it held, also if none of its calls is under way.
func TestCloseWaitsForAcquireAll(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks, other := newLocker(t, way(mine), nil), newLocker(t, server.Connect(), nil)
		acquire(t, other, "b")
		slow := func(d time.Duration) locktest.Fault {
			return func(_ context.Context, apply func() error) error {
				time.Sleep(d)
				return apply()
			}
		}
		mine.Next(locktest.OpRelease, slow(40*time.Millisecond), slow(time.Second))
		got := make(chan error, 1)
		go func() {
			_, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c"})
			got <- err
		}()
		synctest.Wait() // "c" is being given up
		locks.Close()
		mine.Close()
		wantErr(t, <-got, leasehold.ErrClosed)
		wantFree(t, other, "a", "c")
	})
}

// The refusal of a name that was acquired since says nothing about later ones.
func TestWaitRunsOutAfterTheBusyNameWasAcquired(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks, other := newLocker(t, way(mine), nil), newLocker(t, server.Connect(), nil)
		busy := acquire(t, other, "b")
		time.AfterFunc(time.Second, func() { busy.Release(context.Background()) })
		slow := locktest.SlowReply(3 * time.Second)
		mine.Next(locktest.OpRelease, slow, slow) // "c" and "d" are given up
		_, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c", "d"}, leasehold.Wait(2*time.Second))
		wantErr(t, err, context.DeadlineExceeded)
		if errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("%v, which nobody holds", err)
		}
	})
}

// After Close all names are given back at the same time, so that an engine that hangs delays the
// call once, and not once for each name.
func TestCloseWhileManyAreAskedFor(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, way(mine), nil)
		names := make([]string, 200)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		mine.Always(locktest.OpTry, locktest.SlowReply(time.Second))
		mine.Always(locktest.OpRelease, locktest.HangRequest)
		time.AfterFunc(500*time.Millisecond, func() { locks.Close() })
		start := time.Now()
		_, err := locks.AcquireAll(t.Context(), names)
		wantErr(t, err, leasehold.ErrClosed)
		wantDuration(t, "AcquireAll", time.Since(start), time.Second, 1100*time.Millisecond)
	})
}
