package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/record"
)

// heldRow is the answer about a resource that another holds, from a statement that takes a place.
func heldRow(name string) [][]sqldriver.Value {
	return rowOf(name, one("other", exclusive, record.Holding, 1_001_000))
}

// A crowd costs the database as much as one waiter: its process's heartbeats, and nothing for each
// Try.
func TestWaitersAreAnsweredFromMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiters, wait = 100, 20 * time.Second
		var asked, beats atomic.Int64
		var silent, blind atomic.Bool
		var others [][]any // the first places
		for i := range inView {
			others = append(others, []any{i + 1, "of others " + string(rune('a'+i)), 0, 0, 1, "", 8_000_000})
		}
		d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			switch text {
			case d.texts.beat:
				if beats.Add(1); silent.Load() {
					return nil, errors.New("no answer")
				}
				return nil, nil
			case d.texts.dead:
				return nil, nil
			case d.texts.mine:
				if blind.Load() {
					return nil, errors.New("no answer")
				}
				var all [][]sqldriver.Value
				for i := range waiters {
					all = append(all, []sqldriver.Value{"x", string(rune('A' + i)), int64(i + 1), int64(0), int64(7), int64(0), int64(8_000_000)})
				}
				return all, nil
			case d.texts.state: // by the watcher, as often for many as for one
				rows := heldRow("x")
				rows[0][len(rows[0])-1] = list(others...)
				return rows, nil
			case d.texts.join:
				return heldRow("x"), nil
			}
			asked.Add(1)
			return nil, nil
		})
		var all []*claim
		for i := range waiters {
			all = append(all, claimed(t, d, driver.Request{Resource: "x", Owner: string(rune('A' + i)), TTL: time.Minute, Queue: true}))
		}
		try := func() (unknown int) {
			for _, c := range all {
				_, err := c.Try(t.Context())
				if busy, ok := errors.AsType[*driver.Busy](err); !ok {
					unknown++
				} else if busy.Wake == nil || busy.Retry != keepPlace || busy.Holder.Owner.Reveal() != "other" {
					t.Fatalf("%+v; want a place behind the holder", busy)
				}
			}
			return unknown
		}
		try()
		asked.Store(0)
		beats.Store(0)
		for start := time.Now(); time.Since(start) < wait; time.Sleep(keepPlace) {
			try()
		}
		if most := int64(wait/(beatEvery*7/8)) + 1; asked.Load() != 0 || beats.Load() > most {
			t.Errorf("%d waiters, %v: %d statements of theirs and %d beats; want 0 and at most %d", waiters, wait, asked.Load(), beats.Load(), most)
		}
		// If the places cannot be read, waiters ask the database.
		blind.Store(true)
		for start := time.Now(); asked.Load() == 0; time.Sleep(keepPlace) {
			if try(); time.Since(start) > 2*believed {
				t.Fatalf("places were not read for %v, and nobody asks", time.Since(start))
			}
		}
		blind.Store(false)
		// If heartbeats get no answer, no waiter may rely on its place.
		silent.Store(true)
		time.Sleep(placeTTL / 2)
		if unknown := try(); unknown != waiters {
			t.Errorf("without beats %d of %d were told that they wait", waiters-unknown, waiters)
		}
	})
}

// armed returns a waiter that was refused by a Try that began then. The last grant had the number
// 7.
func armed(w *watcher, owner string, began boottime.Instant) *waiter {
	me := w.arm(&driver.Request{Resource: "x", Owner: owner, TTL: time.Minute, Queue: true}, nil, began)
	w.refused(me, true, 7, &driver.Busy{})
	w.begin(&me.req, began)()
	return me
}

// The TTL of a grant without a call counts from the heartbeat that it ends with, or from the call
// that found it. It does not count from the last Try, which was answered from memory.
func TestGrantsCountFromTheBeat(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(context.Context, *Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		return nil, errors.New("no answer")
	})
	w := d.watch
	now := boottime.Now()
	w.mu.Lock()
	w.sent[4], w.sent[5] = now.Add(-7900*time.Millisecond), now.Add(-3*time.Second)
	w.mu.Unlock()
	for name, test := range map[string]struct {
		tell func(me *waiter)
		want time.Duration // of the grant; 0: there is none
	}{
		"of a beat":               {func(me *waiter) { w.hear(givenMessage + me.hash + " 9 5") }, 4 * time.Second},
		"of a beat of long ago":   {func(me *waiter) { w.hear(givenMessage + me.hash + " 9 4") }, 0},
		"of an unknown beat":      {func(me *waiter) { w.hear(givenMessage + me.hash + " 9 6") }, 0},
		"of a release of version": {func(me *waiter) { w.hear(givenMessage + me.hash + " 9") }, 0},
		"found": {func(me *waiter) {
			w.applyPlaces([]placed{{Name: "x", Owner: me.req.Owner, over: true, fence: 9, left: 3 * time.Second}}, now)
		}, 2 * time.Second},
	} {
		me := armed(w, name, now.Add(time.Second)) // as if the Try were late
		test.tell(me)
		var got driver.Grant
		select {
		case got = <-me.granted:
		default:
		}
		select {
		case <-me.wake:
		default:
			t.Errorf("%s: not woken", name)
		}
		want := driver.Grant{}
		if test.want > 0 {
			want = driver.Grant{TTL: test.want, Fence: driver.FenceOf(int64(9))}
		}
		if got != want || me.number.Load() != 9 {
			t.Errorf("%s: %+v of number %d; want %+v of number 9", name, got, me.number.Load(), want)
		}
		w.disarm(&me.req)
	}
}

// A heartbeat compares places with waiters.
func TestBeatsComparePlacesWithWaiters(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(context.Context, *Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		return nil, errors.New("no answer")
	})
	w := d.watch
	now := boottime.Now()
	waits, lost, passed, joins := armed(w, "waits", now), armed(w, "lost", now), armed(w, "passed", now), armed(w, "joins", now.Add(2*time.Second))
	abandoned, late := armed(w, "abandoned", now.Add(-overdue-1)), armed(w, "late", now.Add(-overdue-1))
	abandoned.ended, late.ended = abandoned.tried, now // the Try of late took long
	slow := armed(w, "slow", now.Add(-time.Minute))
	w.begin(&slow.req, now.Add(-time.Minute))
	of := func(owner string, over bool, crowd time.Duration) placed {
		return placed{Name: "x", Owner: owner, over: over, fence: 8, crowd: crowd}
	}
	w.settled = now
	gone, extend := w.applyPlaces([]placed{
		of("waits", false, placeTTL), of("passed", true, placeTTL), of("stray", false, placeTTL), of("abandoned", false, placeTTL), of("slow", false, placeTTL), of("late", false, placeTTL),
	}, now.Add(time.Second))
	var names []string
	for _, p := range gone {
		names = append(names, p.Owner)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"abandoned", "passed", "stray"}) || len(extend) > 0 {
		t.Errorf("removes %q, extends %v", names, extend)
	}
	for _, test := range []struct {
		me          *waiter
		isIn, woken bool
	}{{waits, true, false}, {lost, false, true}, {passed, false, true}, {joins, true, false}, {abandoned, false, false}, {slow, true, false}, {late, true, false}} {
		if test.me.isIn != test.isIn || test.me.woken != test.woken {
			t.Errorf("%s: has a place %v, woken %v", test.me.req.Owner, test.me.isIn, test.me.woken)
		}
	}
	if w.waiterOf("x", "abandoned") != nil || w.waiterOf("x", "slow") == nil || w.waiterOf("x", "late") == nil {
		t.Error("who has not tried for long is let go, but not while it asks")
	}
	if _, extend := w.applyPlaces([]placed{of("waits", false, placeTTL/2-1)}, now); !extend["x"] {
		t.Error("newcomers soon pass by the crowd")
	}
}

// A claim whose place may be behind those that were read must wait.
func TestOnlyTheFirstPlacesAreSeen(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]bool{0: true, inView - 1: true, inView: false} {
		r := decoded(columns{})
		var all []place
		for i := range n {
			all = append(all, place{seq: int64(i + 1), ends: 8_001_000, owner: string(rune('a' + i)), mode: shared})
		}
		r.line(all)
		req := driver.Request{Owner: "new", Mode: shared, TTL: time.Minute}
		if a := r.obstacle(&req); a.Granted != want {
			t.Errorf("behind %d: %+v", n, a)
		}
		if a, changed := r.try(&req); a.Granted != want || changed != want {
			t.Errorf("behind %d: %+v, changed %v", n, a, changed)
		}
		if n == 0 {
			continue
		}
		req.Owner = all[n-1].owner // beside the claims ahead of it, which have not come yet
		if a, _ := r.try(&req); !a.Granted || r.encode().served != 0 && n > 1 {
			t.Errorf("the last of %d: %+v, served %d", n, a, r.encode().served)
		}
	}
}

// Places are over once the first of them is granted. Places from a former version come before all
// others.
func TestPlacesInTheRow(t *testing.T) {
	t.Parallel()
	former := record.Record{Claims: []record.Claim{one("former", exclusive, record.Waiting, 8_000_000)}}
	r := decoded(columns{record: string(former.Encode())})
	r.line([]place{{seq: 5, ends: 8_001_000, owner: "b", wants: 1}, {seq: 4, ends: 8_001_000, owner: "a", wants: 1}})
	a := driver.Request{Owner: "a", TTL: time.Minute}
	if r.obstacle(&a).Granted {
		t.Error("granted before a waiter of the former version")
	}
	if err := r.Release("former"); err != nil {
		t.Fatal(err)
	}
	if c := r.encode(); c.served != 0 || c.record != nothing || c.crowd != 1000+record.Micros(placeTTL) {
		t.Errorf("places in the table: %+v", c)
	}
	if got, _ := r.try(&a); !got.Granted {
		t.Errorf("%+v; want a grant", got)
	}
	if c := r.encode(); c.served != 4 || c.owner != "a" || c.record != nothing {
		t.Errorf("the first was granted: %+v", c)
	}
	if r.placeOf("b") == nil || r.hides("b") || !r.waitsAt(*r.placeOf("b")) || r.waitsAt(*r.placeOf("a")) {
		t.Error("the second waits")
	}
}

// A heartbeat leaves the place of a waiter that is leaving to its Release, which notifies those behind.
func TestBeatsLeavePlacesToTheirReleases(t *testing.T) {
	t.Parallel()
	const owner = "me"
	var gone []placed
	d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		if text != d.texts.leave {
			return nil, errors.New("not to be asked")
		}
		for range 2 { // overdue at the second one
			found, _ := d.watch.applyPlaces([]placed{{Name: "x", Owner: owner, Seq: 8, crowd: placeTTL}}, boottime.Now().Add(2*overdue))
			gone = append(gone, found...)
		}
		d.watch.hear(givenMessage + givenTo(&driver.Request{Resource: "x", Owner: owner}) + " 9 3 " + othersWait)
		return [][]sqldriver.Value{{nil}}, nil
	})
	c := claimed(t, d, driver.Request{Resource: "x", Owner: owner, TTL: time.Minute, Queue: true, Wanted: func() { t.Error("Wanted was called") }})
	turn := d.watch.arm(&c.req, nil, boottime.Now())
	_ = c.waits(turn, true, &driver.Busy{Wake: turn.wake}, 7)
	d.watch.begin(&c.req, boottime.Now())() // its Try has ended
	if err := c.Release(t.Context(), driver.End{}); err != nil || len(gone) > 0 {
		t.Errorf("Release: %v; a heartbeat meanwhile removed %d places", err, len(gone))
	}
	if gone, _ := d.watch.applyPlaces([]placed{{Name: "x", Owner: owner, Seq: 8}}, boottime.Now()); len(gone) != 1 {
		t.Errorf("a heartbeat after the Release removed %d places; want 1", len(gone))
	}
}

// A place is removed by its number, because its owner may have taken another since it was read.
func TestBeatsRemovePlacesByNumber(t *testing.T) {
	t.Parallel()
	var removed string
	d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		switch text {
		case d.texts.mine:
			return [][]sqldriver.Value{{"x", "me", int64(42), int64(0), int64(7), int64(0), int64(8_000_000)}}, nil
		case d.texts.remove:
			removed = args[1].Value.(string)
		}
		return nil, nil
	})
	d.watch.reconcile(t.Context(), "process")
	if want := `[{"name":"x","owner":"me","seq":42}]`; removed != want {
		t.Errorf("removed %s; want %s", removed, want)
	}
}

// Places of dead processes are removed even if the sweep that removed the heartbeats was cut short. A
// sweep that finds nothing looks for no places: that would read all of them.
func TestCutSweepIsFinished(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"dead", "bury"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			buried, cut := 0, true
			d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
				is := map[string]string{d.texts.dead: "dead", d.texts.bury: "bury"}[text]
				switch {
				case is == at && cut:
					return nil, errors.New("no answer")
				case is == "bury":
					buried++
				case is == "dead" && cut:
					return [][]sqldriver.Value{{nil}}, nil
				}
				return nil, nil
			})
			if err := d.sweep(t.Context()); err == nil {
				t.Fatal("a sweep without an answer succeeds")
			}
			cut = false
			for i, want := range []int{1, 1} {
				if err := d.sweep(t.Context()); err != nil || buried != want {
					t.Errorf("sweep %d: %v; places were removed %d times, want %d", i+2, err, buried, want)
				}
			}
			if err := d.Purge(t.Context()); err != nil || buried != 2 { // another process may have been cut short, for good
				t.Errorf("Purge: %v; places were removed %d times, want 2", err, buried)
			}
		})
	}
}

// Few statements refuse newcomers for all names of a process, so a heartbeat has time for them. What
// it spends on places leaves time for the sweep.
func TestBeatsOfManyNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const names = 1000
		var mu sync.Mutex
		refused := make(map[string]bool) // guarded by mu; the names for which newcomers are refused
		var stuck atomic.Bool
		var sweeps atomic.Int64
		d := scripted(t, func(ctx context.Context, d *Driver, text string, args []sqldriver.NamedValue) (all [][]sqldriver.Value, err error) {
			switch {
			case text == d.texts.mine && stuck.Load():
				return nil, pause.For(ctx, time.Hour)
			case text == d.texts.mine:
				for i := range names {
					all = append(all, []sqldriver.Value{fmt.Sprint(i), "me", int64(i + 1), int64(0), int64(7), int64(0), int64(0)})
				}
			case text == d.texts.extend:
				if err := pause.For(ctx, 3*time.Millisecond); err != nil {
					return nil, err
				}
				var some []string
				if err := json.Unmarshal([]byte(args[0].Value.(string)), &some); err != nil {
					return nil, err
				}
				mu.Lock()
				defer mu.Unlock()
				for _, name := range some {
					refused[name] = true
				}
			case text == d.texts.dead:
				sweeps.Add(1)
			}
			return all, nil
		})
		for i := range names {
			d.watch.arm(&driver.Request{Resource: fmt.Sprint(i), Owner: "me", TTL: time.Minute, Queue: true}, nil, boottime.Now())
		}
		time.Sleep(2 * (beatEvery + beatWithin))
		mu.Lock()
		if len(refused) != names {
			t.Errorf("after two heartbeats, newcomers are refused for %d of %d names", len(refused), names)
		}
		mu.Unlock()
		stuck.Store(true)
		time.Sleep(sweepEvery * (beatEvery + 3*beatWithin))
		if sweeps.Load() == 0 {
			t.Error("no sweep, because places cannot be read")
		}
	})
}

// A heartbeat without an answer is sent again while its caller has time.
func TestTrySendsHeartbeatsAgain(t *testing.T) {
	t.Parallel()
	for what, answers := range map[string]func(sent int64, age time.Duration) (in time.Duration){
		"the server stands still": func(_ int64, age time.Duration) time.Duration { return 2*beatWithin - age },
		"a connection is dead": func(sent int64, _ time.Duration) time.Duration {
			if sent == 1 {
				return time.Hour
			}
			return 0
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var sent atomic.Int64
			d := scripted(t, func(ctx context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
				switch text {
				case d.texts.beat:
					return nil, pause.For(ctx, answers(sent.Add(1), time.Since(start)))
				case d.texts.save:
					return [][]sqldriver.Value{{int64(4)}}, nil
				}
				return rowOf("x"), nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*beatWithin)
			defer cancel()
			if _, err := claimed(t, d, driver.Request{Resource: "x", Owner: "me", Mode: shared, TTL: time.Minute, Queue: true}).Try(ctx); err != nil || time.Since(start) > 2*beatWithin {
				t.Errorf("%s: Try: %v after %v; want a grant after at most %v", what, err, time.Since(start), 2*beatWithin)
			}
		})
	}
}
