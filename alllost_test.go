package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// Answers to some of several calls are lost. Whatever was granted is given back, and an unknown
// release stays unknown.
func TestLostAnswersOfSeveral(t *testing.T) {
	for _, c := range []struct {
		name string
		lose locktest.Fault
		want error // of Release
	}{
		{"request", locktest.LoseRequest, nil},
		{"reply", locktest.LoseReply, locktest.ErrInjected},
		{"hung", locktest.HangReply, context.DeadlineExceeded},
	} {
		eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
			server := memory.NewServer()
			mine := newFaulty(t, server)
			locks, other := newLocker(t, way(mine), nil), newLocker(t, server.Connect(), nil)
			names := []string{"a", "b", "c"}
			mine.Next(locktest.OpTry, nil, c.lose)
			if _, err := locks.AcquireAll(t.Context(), names); err == nil || errors.Is(err, leasehold.ErrBusy) {
				t.Errorf("%s: AcquireAll: %v; want that an answer was lost", c.name, err)
			}
			wantFree(t, other, names...)
			all := acquireAll(t, locks, names)
			mine.Next(locktest.OpRelease, nil, c.lose)
			if err := all.Release(t.Context()); c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s: Release: %v; want %v", c.name, err, c.want)
			}
			wantFree(t, other, names...)
			acquireAll(t, locks, names).Release(t.Context())
		})
	}
}

// Grants that come after their deadline are not used: each is asked for again.
func TestLateAnswerToSeveral(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks, other := newLocker(t, way(mine), &leasehold.Options{TTL: time.Second}), newLocker(t, server.Connect(), nil)
		mine.Next(locktest.OpTry, nil, locktest.SlowReply(999*time.Millisecond))
		all := acquireAll(t, locks, []string{"a", "b"})
		if left := time.Until(all.Deadline()); left < 900*time.Millisecond/2 {
			t.Errorf("held for another %v", left)
		}
		all.Release(t.Context())
		wantFree(t, other, "a", "b")
	})
}

func TestContextOfAllEndsWithTheFirstLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		all := acquireAll(t, locks, []string{"a", "b", "c"})
		state, err := locks.Inspect(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		if err := locks.Evict(t.Context(), "b", state.Holders[0].Owner.Reveal(), "for the test"); err != nil {
			t.Fatal(err)
		}
		<-all.Context().Done()
		wantErr(t, context.Cause(all.Context()), leasehold.ErrLost)
		wantErr(t, all.Release(t.Context()), leasehold.ErrLost)
		wantFree(t, locks, "a", "b", "c") // one that was lost does not stop the others
	})
}

// After a pause, the context looks at the clock of each lease.
func TestContextOfAllLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		all := acquireAll(t, locks, []string{"a", "b"}, leasehold.NoRenew())
		if err := all.Lease("a").Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(all.Deadline())) // that of b; timers of this instant may not have run
		if all.Context().Err() == nil {
			t.Error("live at the deadline")
		}
		wantErr(t, context.Cause(all.Context()), leasehold.ErrLost)
		wantErr(t, all.Release(t.Context()), leasehold.ErrLost)
	})
}

// Nobody acts under what is left when one was given up.
func TestOneReleasedEndsTheContextOfAll(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	for range 100 {
		all := acquireAll(t, locks, []string{"a", "b"})
		if err := all.Lease("b").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if all.Context().Err() == nil {
			t.Fatal("live without one of its leases")
		}
		wantErr(t, context.Cause(all.Context()), leasehold.ErrReleased)
		if err := all.Release(t.Context()); err != nil { // of the other
			t.Fatal(err)
		}
	}
}

func TestFailingMemberReleasesTheRest(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks, other := newLocker(t, way(mine), nil), newLocker(t, server.Connect(), nil)
		mine.Next(locktest.OpTry, nil, locktest.LoseReply)
		_, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c", "d"})
		wantErr(t, err, locktest.ErrInjected)
		wantFree(t, other, "a", "b", "c", "d")

		// Nobody has acted under those that were given up, so AtLeast keeps none.
		lease := acquire(t, other, "c")
		_, err = locks.AcquireAll(t.Context(), []string{"a", "b", "c", "d"}, leasehold.AtLeast(time.Hour), leasehold.Wait(time.Second))
		wantErr(t, err, leasehold.ErrBusy)
		wantFree(t, other, "a", "b", "d")
		lease.Release(t.Context())
		all := acquireAll(t, locks, []string{"a", "b"}, leasehold.AtLeast(time.Hour))
		if err := all.Release(t.Context()); err != nil {
			t.Error(err)
		}
		_, err = other.TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrBusy)
	})
}

// stuckReleases is an engine that does not answer a release of one name.
type stuckReleases struct {
	driver.Driver
	name  string
	stuck *atomic.Bool
}

func (d stuckReleases) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	if req.Resource == d.name {
		return stuckReleasesClaim{c, d.stuck}, err
	}
	return c, err
}

type stuckReleasesClaim struct {
	driver.Claim
	stuck *atomic.Bool
}

func (c stuckReleasesClaim) Release(ctx context.Context, how driver.End) error {
	if c.stuck.Load() {
		return locktest.ErrInjected
	}
	return c.Claim.Release(ctx, how)
}

func TestOneFailingReleaseStopsNoOther(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		var stuck atomic.Bool
		stuck.Store(true)
		server := memory.NewServer()
		locks, other := newLocker(t, way(stuckReleases{server.Connect(), "b", &stuck}), nil), newLocker(t, server.Connect(), nil)
		all := acquireAll(t, locks, []string{"a", "b", "c"})
		wantErr(t, all.Release(t.Context()), locktest.ErrInjected)
		wantFree(t, other, "a", "c")
		stuck.Store(false)
		if err := all.Release(t.Context()); err != nil { // for the one that is left
			t.Error(err)
		}
		wantFree(t, other, "b")
		wantErr(t, all.Release(t.Context()), leasehold.ErrReleased)
	})
}

// A wait is over when what it was for is lost.
func TestLossWhileWaitingForTheRest(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		locks, other := newLocker(t, way(server.Connect()), nil), newLocker(t, server.Connect(), nil)
		busy := acquire(t, other, "b")
		time.AfterFunc(time.Second, func() {
			state, _ := other.Inspect(context.Background(), "a")
			other.Evict(context.Background(), "a", state.Holders[0].Owner.Reveal(), "for the test")
		})
		_, err := locks.AcquireAll(t.Context(), []string{"a", "b"})
		wantErr(t, err, leasehold.ErrLost)
		if !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%v does not name what was lost", err)
		}
		wantFree(t, other, "a")
		busy.Release(t.Context())
		wantFree(t, other, "b")
	})
}

// One that was lost in a call for the others is found before anybody acts on it.
func TestLossWhileTheRestIsAskedFor(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		locks, other := newLocker(t, way(slowTries{server.Connect()}), nil), newLocker(t, server.Connect(), nil)
		busy := acquire(t, other, "b")
		time.AfterFunc(1100*time.Millisecond, func() { busy.Release(context.Background()) })
		time.AfterFunc(2500*time.Millisecond, func() { // "b" is held, "c" and "d" are asked for
			state, _ := other.Inspect(context.Background(), "a")
			other.Evict(context.Background(), "a", state.Holders[0].Owner.Reveal(), "for the test")
		})
		all, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c", "d"})
		wantErr(t, err, leasehold.ErrLost)
		if all != nil {
			t.Error("leases beside an error")
		}
		wantFree(t, other, "a", "b", "c", "d")
	})
}

// hungTries is an engine that does not answer attempts for one name.
type hungTries struct {
	driver.Driver
	name string
	hung *atomic.Bool
}

func (d hungTries) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	if req.Resource == d.name {
		return hungTriesClaim{c, d.hung}, err
	}
	return c, err
}

type hungTriesClaim struct {
	driver.Claim
	hung *atomic.Bool
}

func (c hungTriesClaim) Try(ctx context.Context) (driver.Grant, error) {
	if c.hung.Load() {
		<-ctx.Done()
		return driver.Grant{}, ctx.Err()
	}
	return c.Claim.Try(ctx)
}

// A call for the others that hangs does not delay the news of one that was lost.
func TestLossWhileACallForTheRestHangs(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		var hung atomic.Bool
		server := memory.NewServer()
		locks, other := newLocker(t, way(hungTries{server.Connect(), "c", &hung}), nil), newLocker(t, server.Connect(), nil)
		busy := acquire(t, other, "b")
		time.AfterFunc(1100*time.Millisecond, func() {
			hung.Store(true)
			busy.Release(context.Background())
		})
		time.AfterFunc(2*time.Second, func() { // "b" is held, "c" and "d" are asked for
			state, _ := other.Inspect(context.Background(), "a")
			other.Evict(context.Background(), "a", state.Holders[0].Owner.Reveal(), "for the test")
		})
		start := time.Now()
		_, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c", "d"})
		wantErr(t, err, leasehold.ErrLost)
		if !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%v does not name what was lost", err)
		}
		wantDuration(t, "AcquireAll", time.Since(start), 2*time.Second, 2100*time.Millisecond)
		wantFree(t, other, "a", "b", "c", "d")
	})
}

// An engine that answers no release takes as much time for many leases as for one.
func TestReleaseOfManyWithAnEngineThatHangs(t *testing.T) {
	for what, c := range map[string]struct {
		names       int
		opts        leasehold.Options
		close, lost bool
		atMost      time.Duration
	}{
		"lost":                        {names: 200, lost: true, atMost: 500 * time.Millisecond},
		"lost, and the Locker closed": {names: 20, lost: true, close: true, atMost: 11 * time.Second},
		"they would be kept":          {names: 20, opts: leasehold.Options{TTL: time.Hour, Keep: time.Hour}, close: true, atMost: 11 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
				mine := newFaulty(t, memory.NewServer())
				locks := newLocker(t, way(mine), &c.opts)
				names := make([]string, c.names)
				for i := range names {
					names[i] = fmt.Sprint(i)
				}
				all := acquireAll(t, locks, names)
				mine.Always(locktest.OpRenew, locktest.HangRequest)
				mine.Always(locktest.OpRelease, locktest.HangRequest)
				if c.close {
					locks.Close()
				}
				if c.lost {
					time.Sleep(leasehold.DefaultTTL)
				}
				start := time.Now()
				err := all.Release(t.Context())
				if err == nil || errors.Is(err, leasehold.ErrLost) != c.lost {
					t.Errorf("Release: %v; lost: %v", err, c.lost)
				}
				wantDuration(t, "Release", time.Since(start), 0, c.atMost)
			})
		})
	}
}

// The clean-up of a lost lease does not wait for the releases of the others, which may hang.
func TestLostFirstOfAllIsGivenUpAtOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		var stuck atomic.Bool
		stuck.Store(true)
		server := memory.NewServer()
		locks, other := newLocker(t, way(stuckReleases{server.Connect(), "b", &stuck}), nil), newLocker(t, server.Connect(), nil)
		acquire(t, other, "c")
		_, err := locks.AcquireAll(t.Context(), []string{"b", "c"}, leasehold.For("a", leasehold.MaxHold(time.Second)))
		wantErr(t, err, leasehold.ErrLost)
		wantFree(t, other, "a")
	})
}
