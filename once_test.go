package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
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

const day = 24 * time.Hour

// Ten servers with the same crontab, whose clocks differ by up to a minute, and a job that
// takes a second: it runs once each day, on the day of 23 hours too.
func TestOncePerRunsOnceEachDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		var runs atomic.Int32
		var crontabs sync.WaitGroup
		days := []time.Duration{day, day, day - time.Hour, day, day + time.Hour, day}
		for i := range 10 {
			locks := newLocker(t, server.Connect(), nil)
			// The clock of each is wrong by something else on each day.
			ahead := func(n int) time.Duration { return time.Duration((i*7+n*13)%60) * time.Second }
			crontabs.Go(func() {
				midnight := time.Now().Add(time.Hour)
				for n, length := range days {
					time.Sleep(time.Until(midnight.Add(ahead(n))))
					err := locks.Do(t.Context(), "report", func(context.Context) error {
						runs.Add(1)
						time.Sleep(time.Second)
						return nil
					}, leasehold.OncePer(day))
					if err != nil && !errors.Is(err, leasehold.ErrBusy) {
						t.Error(err)
					}
					midnight = midnight.Add(length)
				}
			})
		}
		crontabs.Wait()
		if n := runs.Load(); int(n) != len(days) {
			t.Errorf("%d runs in %d days", n, len(days))
		}
	})
}

// A runner that is killed in the middle counts as run, unless TTL says when another may.
func TestTTLOfOncePerDecidesAfterADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			opts []leasehold.Option
			free time.Duration
		}{
			{[]leasehold.Option{leasehold.OncePer(day)}, day * 9 / 10},
			{[]leasehold.Option{leasehold.OncePer(day), leasehold.TTL(time.Hour)}, time.Hour},
			{[]leasehold.Option{leasehold.TTL(time.Hour), leasehold.OncePer(day)}, time.Hour},
		} {
			server := memory.NewServer()
			locks, other := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
			start := time.Now()
			killed := acquire(t, locks, "report", c.opts...)
			for time.Since(start) < c.free-time.Second {
				_, err := other.TryAcquire(t.Context(), "report", c.opts...)
				wantErr(t, err, leasehold.ErrBusy)
				time.Sleep(10 * time.Minute)
			}
			time.Sleep(c.free - time.Since(start))
			lease := acquire(t, other, "report", c.opts...)
			wantErr(t, killed.Release(t.Context()), leasehold.ErrLost)
			lease.Release(t.Context())
		}
	})
}

func TestOncePerWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, other := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
		acquire(t, locks, "report", leasehold.OncePer(time.Hour)).Release(t.Context())
		for _, opts := range [][]leasehold.Option{
			{leasehold.OncePer(time.Hour)}, {leasehold.Wait(0), leasehold.OncePer(time.Hour)}, {leasehold.OncePer(time.Hour), leasehold.Wait(0)},
		} {
			start := time.Now()
			_, err := other.Acquire(t.Context(), "report", opts...)
			wantErr(t, err, leasehold.ErrBusy)
			wantDuration(t, "waited", time.Since(start), 0, 0)
		}
	})
}

// What contradicts a period, in whatever order, is refused before anything is asked.
func TestOptionsThatContradictAPeriod(t *testing.T) {
	t.Parallel()
	d := memory.New()
	locks := newLocker(t, d, nil)
	for name, opt := range map[string]leasehold.Option{
		"AtLeast": leasehold.AtLeast(time.Minute), "Wait": leasehold.Wait(time.Second), "Shared": leasehold.Shared(), "OncePer(0s)": leasehold.OncePer(0),
	} {
		for _, opts := range [][]leasehold.Option{{leasehold.OncePer(day), opt}, {opt, leasehold.OncePer(day)}} {
			_, err := locks.Acquire(t.Context(), "report", opts...)
			wantErr(t, err, leasehold.ErrInvalidOption)
			_, err = locks.AcquireAll(t.Context(), []string{"report"}, opts...)
			wantErr(t, err, leasehold.ErrInvalidOption)
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%v does not name %s", err, name)
			}
		}
	}
	wantFree(t, locks, "report")
	for _, opt := range []leasehold.Option{leasehold.TTL(time.Hour), leasehold.NoRenew(), leasehold.MaxHold(time.Hour), leasehold.Limit(2), leasehold.Wait(0), leasehold.Reentrant(), leasehold.Note("x")} {
		lease := acquire(t, locks, fmt.Sprint("with ", &opt), leasehold.OncePer(day), opt)
		lease.Release(t.Context())
	}
}

// A job that is done leaves its record as long as nobody else may run it.
func TestLastNoteIsTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		lease := acquire(t, locks, "report", leasehold.OncePer(day), leasehold.Note("web1"))
		time.Sleep(time.Minute)
		if err := lease.SetNote(t.Context(), "web1: done"); err != nil {
			t.Error(err)
		}
		lease.Release(t.Context())
		time.Sleep(time.Hour)
		state, err := locks.Inspect(t.Context(), "report")
		if err != nil || len(state.Holders) != 1 {
			t.Fatalf("%+v, %v", state, err)
		}
		h := state.Holders[0]
		if h.Note != "web1: done" || h.Owner.Reveal() != "" || h.Held != time.Hour+time.Minute || h.Left != day*9/10-h.Held {
			t.Errorf("the record is %+v", h)
		}
		wantErr(t, lease.SetNote(t.Context(), "late"), leasehold.ErrReleased)
	})
}

func TestSetNoteOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks, other := newLocker(t, mine, nil), newLocker(t, server.Connect(), nil)
		lease := acquire(t, locks, "a")
		heal := mine.Sever()
		start := time.Now()
		if err := lease.SetNote(t.Context(), "x"); err == nil || errors.Is(err, leasehold.ErrLost) {
			t.Errorf("got %v, but nobody knows", err)
		}
		// A renewal that waits for it still comes in time.
		wantDuration(t, "hung", time.Since(start), 0, leasehold.DefaultTTL/4)
		heal()
		time.Sleep(time.Minute)
		if err := lease.SetNote(t.Context(), "y"); err != nil {
			t.Error(err)
		}
		lease.Release(t.Context())

		lease = acquire(t, newLocker(t, deaf{server.Connect()}, nil), "b")
		state, err := other.Inspect(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Evict(t.Context(), "b", state.Holders[0].Owner.Reveal(), "for the test"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, lease.SetNote(t.Context(), "z"), leasehold.ErrLost)
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrLost)
	})
}

// What the context of a call says about another lease is not what the engine says of this.
func TestSetNoteWithTheContextOfALostLease(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	all := acquireAll(t, locks, []string{"a", "b"})
	if err := locks.Evict(t.Context(), "b", all.Lease("b").Owner(), "for the test"); err != nil {
		t.Fatal(err)
	}
	<-all.Context().Done()
	err := all.Lease("a").SetNote(all.Context(), "x")
	wantErr(t, err, context.Canceled)
	if ctx := all.Lease("a").Context(); errors.Is(err, leasehold.ErrLost) || ctx.Err() != nil {
		t.Errorf("%v, and the lease is over: %v", err, context.Cause(ctx))
	}
	all.Release(t.Context())
}

func TestRefusalInTheProcessTellsTheLastNote(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	lease := acquire(t, locks, "a", leasehold.Note("first"))
	if err := lease.SetNote(t.Context(), "last"); err != nil {
		t.Fatal(err)
	}
	_, err := locks.TryAcquire(t.Context(), "a")
	if busy, ok := errors.AsType[*leasehold.BusyError](err); !ok || busy.Holder.Note != "last" {
		t.Errorf("%v does not tell the last note", err)
	}
	lease.Release(t.Context())
}

// deaf is an engine that tells nobody of an early end.
type deaf struct{ driver.Driver }

func (d deaf) Claim(req driver.Request) (driver.Claim, error) {
	req.Lost = nil
	return d.Driver.Claim(req)
}

func TestSetNoteWhereNotesStay(t *testing.T) {
	locks := newLocker(t, limited{memory.New(), driver.Features{MinTTL: time.Millisecond}}, nil)
	lease := acquire(t, locks, "a")
	wantErr(t, lease.SetNote(t.Context(), "x"), leasehold.ErrUnsupported)
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The second call of a period is made again while the first grant lasts; when it is never answered, the job is not begun,
// and the name is given back.
func TestSecondCallOfAPeriod(t *testing.T) {
	for name, c := range map[string]struct {
		next   []locktest.Fault
		always locktest.Fault
		begun  bool
	}{
		"lost":       {next: []locktest.Fault{locktest.LoseRequest, locktest.LoseReply}, begun: true},
		"hangs once": {next: []locktest.Fault{locktest.HangReply}, begun: true},
		"never":      {always: locktest.LoseRequest},
		"in vain":    {always: locktest.HangReply},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				link := locktest.NewFaulty(server.Connect())
				link.Next(locktest.OpRenew, c.next...)
				link.Always(locktest.OpRenew, c.always)
				lease, err := newLocker(t, link, nil).TryAcquire(t.Context(), "report", leasehold.OncePer(day))
				if (err == nil) != c.begun {
					t.Fatalf("%v, want a lease: %v", err, c.begun)
				}
				if c.begun {
					if left := time.Until(lease.Deadline()); left < 20*time.Hour {
						t.Errorf("the lease lasts %v", left)
					}
					lease.Release(t.Context())
					return
				}
				synctest.Wait()
				acquire(t, newLocker(t, server.Connect(), nil), "report").Release(t.Context())
			})
		})
	}
}

// A job that needs several names was not begun if one of them was not answered. So the name that
// was granted before is kept for no longer than Options.TTL, even if it cannot be given back.
func TestPeriodOfSeveralBeginsWithTheLast(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		link := newFaulty(t, server)
		link.Next(locktest.OpTry, nil, locktest.HangRequest)
		link.Always(locktest.OpRelease, locktest.HangRequest)
		_, err := newLocker(t, way(link), nil).AcquireAll(t.Context(), []string{"a", "b"}, leasehold.OncePer(day))
		if err == nil || errors.Is(err, leasehold.ErrBusy) {
			t.Fatalf("AcquireAll: %v; want that there was no answer", err)
		}
		time.Sleep(leasehold.DefaultTTL)
		other := newLocker(t, server.Connect(), nil)
		lease, err := other.TryAcquire(t.Context(), "a", leasehold.OncePer(day))
		if err != nil {
			t.Fatal(err)
		}
		lease.Release(t.Context())
	})
}

// The second calls for several names are made at the same time, each again while its lease lasts.
// Each lease then has its own length.
func TestSecondCallsForSeveral(t *testing.T) {
	for what, c := range map[string]struct {
		next  []locktest.Fault
		takes time.Duration
		begun bool
	}{
		"slow":       {takes: 100 * time.Millisecond, begun: true},
		"lost":       {next: []locktest.Fault{locktest.LoseRequest, nil, locktest.LoseReply}, takes: 100 * time.Millisecond, begun: true},
		"hangs once": {next: []locktest.Fault{locktest.HangReply}, begun: true},
		"never":      {takes: time.Minute},
	} {
		t.Run(what, func(t *testing.T) {
			eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
				server := memory.NewServer()
				link := newFaulty(t, server)
				link.Next(locktest.OpRenew, c.next...)
				link.Always(locktest.OpRenew, locktest.SlowReply(c.takes))
				start := time.Now()
				all, err := newLocker(t, way(link), nil).AcquireAll(t.Context(), []string{"0", "1", "2", "3", "4", "5", "6", "7", "8"},
					leasehold.OncePer(day), leasehold.For("9", leasehold.TTL(time.Hour)))
				if (err == nil) != c.begun {
					t.Fatalf("%v, want leases: %v", err, c.begun)
				}
				if !c.begun {
					wantErr(t, err, leasehold.ErrLost)
					synctest.Wait()
					wantFree(t, newLocker(t, server.Connect(), nil), "0", "5", "9")
					return
				}
				if took := time.Since(start); c.takes > 0 && took > 3*c.takes {
					t.Errorf("took %v for second calls of %v", took, c.takes)
				}
				for _, name := range all.Names() {
					least, most := 20*time.Hour, day
					if name == "9" {
						least, most = 50*time.Minute, time.Hour
					}
					wantDuration(t, name+" lasts", time.Until(all.Lease(name).Deadline()), least, most)
				}
				all.Release(t.Context())
			})
		})
	}
}

// A lease that is nested in one that is held around the call stays as long as that was.
func TestPeriodOfSeveralLeavesAloneWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		outer := acquire(t, locks, "a", leasehold.OncePer(time.Hour))
		time.Sleep(time.Minute)
		ends := outer.Deadline()
		all, err := locks.AcquireAll(outer.Context(), []string{"a", "b"}, leasehold.OncePer(day), leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if moved := outer.Deadline().Sub(ends); moved != 0 {
			t.Errorf("the deadline of the outer lease has moved by %v", moved)
		}
		wantDuration(t, "the other lasts", time.Until(all.Lease("b").Deadline()), 20*time.Hour, day)
		all.Release(t.Context())
		outer.Release(t.Context())
	})
}

// The answers to the second calls may come after Close. The leases are then given back, as that of
// one name is.
func TestCloseDuringTheSecondCallsForSeveral(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		link := newFaulty(t, server)
		link.Always(locktest.OpRenew, locktest.SlowReply(time.Second))
		locks := newLocker(t, way(link), nil)
		time.AfterFunc(500*time.Millisecond, func() { locks.Close() })
		_, err := locks.AcquireAll(t.Context(), []string{"a", "b"}, leasehold.OncePer(day))
		wantErr(t, err, leasehold.ErrClosed)
		wantFree(t, newLocker(t, server.Connect(), nil), "a", "b")
	})
}

// The first lease that is lost ends the second calls for the others, which may hang.
func TestLossDuringTheSecondCallsForSeveral(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		link, other := newFaulty(t, server), newLocker(t, server.Connect(), nil)
		link.Next(locktest.OpRenew, func(context.Context, func() error) error {
			time.Sleep(100 * time.Millisecond) // the others' calls have begun
			return leasehold.ErrLost
		})
		link.Always(locktest.OpRenew, locktest.HangRequest)
		start := time.Now()
		_, err := newLocker(t, way(link), nil).AcquireAll(t.Context(), []string{"a", "b", "c"}, leasehold.OncePer(day))
		wantErr(t, err, leasehold.ErrLost)
		wantDuration(t, "AcquireAll", time.Since(start), 100*time.Millisecond, 200*time.Millisecond)
		wantFree(t, other, "a", "b", "c")
	})
}

// So does a lease that is lost after its own second call was answered.
func TestLossAfterTheSecondCallForOneOfSeveral(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		link, other := newFaulty(t, server), newLocker(t, server.Connect(), nil)
		link.Next(locktest.OpRenew, nil) // one is answered
		link.Always(locktest.OpRenew, locktest.HangRequest)
		lost := ""
		time.AfterFunc(time.Second, func() {
			for _, name := range []string{"a", "b", "c"} {
				st, err := other.Inspect(context.Background(), name)
				if err == nil && len(st.Holders) == 1 && st.Holders[0].Left > time.Hour {
					lost = name
					other.Evict(context.Background(), name, st.Holders[0].Owner.Reveal(), "for the test")
				}
			}
		})
		start := time.Now()
		_, err := newLocker(t, way(link), nil).AcquireAll(t.Context(), []string{"a", "b", "c"}, leasehold.OncePer(day))
		wantErr(t, err, leasehold.ErrLost)
		if lost == "" || !strings.Contains(err.Error(), strconv.Quote(lost)) {
			t.Errorf("%v does not name %q, which was lost", err, lost)
		}
		wantDuration(t, "AcquireAll", time.Since(start), time.Second, 1100*time.Millisecond)
		wantFree(t, other, "a", "b", "c")
	})
}
