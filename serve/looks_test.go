package serve_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A lease that another instance granted, and that this one renewed before a look has seen it, expires
// like its own, once, and was held since its grant.
func TestLeaseThatIsRenewedHereBeforeALookExpires(t *testing.T) {
	t.Parallel()
	for _, called := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.NewServer()
			s := newBubble(t, engine.Connect(), &serve.Options{History: serve.HistoryOptions{Every: 5 * time.Second, Sole: true}})
			other := newBubble(t, engine.Connect(), nil)
			time.Sleep(time.Second) // until the first look is over
			other.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":20000}`)
			time.Sleep(2 * time.Second)
			s.want(200, wire.Renew, `{"name":"n","owner":"a","ttl_ms":20000}`)
			time.Sleep(20*time.Second + 500*time.Millisecond)
			if called {
				s.want(410, wire.Renew, `{"name":"n","owner":"a","ttl_ms":20000}`)
			}
			time.Sleep(20 * time.Second)
			all := s.history("name=n")
			if got := kinds(all); got != "granted a, expired a" {
				t.Fatalf("called: %t: told %s", called, got)
			}
			if e := all.Entries[0]; e.Held == nil || *e.Held < 21_900 || *e.Silent > 20_100 {
				t.Errorf("called: %t: %+v", called, e)
			}
			if f := s.figures(); *f.LostHour != 1 {
				t.Errorf("called: %t: %d are lost", called, *f.LostHour)
			}
		})
	}
}

// What an instance finds held when it starts is not reported as granted, even if a call for it is in
// progress during the first look. A grant that is in progress is.
func TestFirstLookWhileACallIsInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		other := newBubble(t, engine.Connect(), nil)
		for _, name := range []string{"n", "o"} {
			other.want(200, wire.Acquire, `{"name":%q,"owner":"a","ttl_ms":600000}`, name)
		}
		time.Sleep(time.Minute)
		d := &slowList{late: late{Driver: engine.Connect(), by: 3 * time.Second}, first: time.Second}
		d.served = func() { time.Sleep(3 * time.Second) }
		s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Every: 5 * time.Second}})
		for body, path := range map[string]string{
			`{"name":"n","owner":"a","ttl_ms":600000}`:                       wire.Renew,
			`{"name":"o","owner":"a","ttl_ms":600000}`:                       wire.Acquire, // again
			`{"name":"m","owner":"b","ttl_ms":600000,"call":1,"caller":"c"}`: wire.Acquire,
		} {
			go func() {
				if got := s.post(path, "%s", body); got != 200 {
					t.Errorf("%s: status %d", path, got)
				}
			}()
		}
		time.Sleep(time.Minute)
		if got := kinds(s.history("")); got != "granted b" {
			t.Errorf("told %s", got)
		}
	})
}

// slowList answers the first List after a while, with what is true then.
type slowList struct {
	late
	first time.Duration
}

func (d *slowList) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	time.Sleep(d.first)
	d.first = 0
	return d.late.List(ctx, prefix, after, limit)
}

// damaged lists all but one name, whose record it cannot read.
type damaged struct {
	*memory.Driver
	name atomic.Value // a string; nil or "": none
}

func (d *damaged) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	var fine []driver.State
	for _, state := range states {
		if state.Resource == d.name.Load() {
			err = fmt.Errorf("record of %q: %w", state.Resource, driver.ErrCorrupt)
		} else {
			fine = append(fine, state)
		}
	}
	return fine, next, err
}

func (d *damaged) Inspect(ctx context.Context, name string) (driver.State, error) {
	if name == d.name.Load() {
		return driver.State{}, fmt.Errorf("record of %q: %w", name, driver.ErrCorrupt)
	}
	return d.Driver.Inspect(ctx, name)
}

// eachSecond makes looks more frequent than places end.
var eachSecond = &serve.Options{History: serve.HistoryOptions{Every: time.Second}}

// A look that cannot read a record ends nothing of it, and its figures are not those of the whole
// store. The others' leases still end.
func TestLookThatFindsDamage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		d := &damaged{Driver: engine.Connect()}
		s, other := newBubble(t, d, eachSecond), newBubble(t, engine.Connect(), nil)
		time.Sleep(500 * time.Millisecond) // until the first look is over
		other.want(200, wire.Acquire, `{"name":"bad","owner":"a","ttl_ms":600000}`)
		other.want(200, wire.Acquire, `{"name":"good","owner":"b","ttl_ms":600000}`)
		time.Sleep(time.Second)
		queue := func() { // a place is kept by calls
			other.want(409, wire.Acquire, `{"name":"bad","owner":"w","ttl_ms":600000,"queue":true}`)
			time.Sleep(time.Second)
		}
		queue()
		shows := func(line string) {
			t.Helper()
			if !strings.Contains(string(s.get("/metrics")), "\n"+line+"\n") {
				t.Errorf("the metrics have no %s", line)
			}
		}
		shows("leasehold_store_held 2")
		d.name.Store("bad")
		other.want(200, wire.Release, `{"name":"good","owner":"b"}`)
		for range 3 {
			queue()
		}
		if got := kinds(s.history("kind=ended,waiting,left")); got != "waiting w, ended b" {
			t.Errorf("told %s", got)
		}
		shows("leasehold_store_held NaN")
		if f := s.figures(); !f.Partial || f.Store != wire.StoreUp {
			t.Errorf("partial %t, the store %s", f.Partial, f.Store)
		}
		if all := s.history(""); len(all.Gaps) != 1 || all.Gaps[0].To != "" {
			t.Errorf("gaps %v", all.Gaps)
		}
		d.name.Store("")
		queue()
		shows("leasehold_store_held 1")
		if f := s.figures(); f.Partial {
			t.Error("it is partial once the record is mended")
		}
	})
}

// besideDamage returns an instance that cannot read the record of the held lock "bad", and another
// that can.
func besideDamage(t *testing.T) (d *damaged, s, other bubble) {
	t.Helper()
	engine := memory.NewServer()
	d = &damaged{Driver: engine.Connect()}
	d.name.Store("bad")
	s, other = newBubble(t, d, eachSecond), newBubble(t, engine.Connect(), nil)
	other.want(200, wire.Acquire, `{"name":"bad","owner":"a","ttl_ms":600000}`)
	return d, s, other
}

// A waiter that goes on at another instance is not refused because of damage that its lock does not
// mind.
func TestWaiterChangesItsInstanceBesideDamage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, s, other := besideDamage(t)
		const waits = `{"name":"bad","owner":"w","ttl_ms":60000,"queue":true,"caller":"c","call":%d}`
		other.want(409, wire.Acquire, waits, 1)
		s.want(409, wire.Acquire, waits, 2)
	})
}

// While a record cannot be read, the leases of others that end do not pile up until it is mended.
func TestLeasesThatEndBesideDamage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, s, other := besideDamage(t)
		time.Sleep(500 * time.Millisecond) // until the first look is over
		const names = 40
		for look := range 12 {
			for i := range names {
				other.want(200, wire.Acquire, `{"name":"n%d/%d","owner":"o","ttl_ms":600000}`, look, i)
			}
			time.Sleep(time.Second)
			for i := range names {
				other.want(200, wire.Release, `{"name":"n%d/%d","owner":"o"}`, look, i)
			}
		}
		d.name.Store("")
		time.Sleep(time.Second)
		if n := len(s.history("kind=ended&since_ms=900&limit=1000").Entries); n != names {
			t.Errorf("%d leases ended when the record was mended, want the last %d", n, names)
		}
	})
}

// The history tells all ends of this instance's own leases, even while a record cannot be read.
func TestOwnLeasesThatEndBesideDamage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, s, other := besideDamage(t)
		time.Sleep(300 * time.Millisecond) // until the first look is over
		const names = 40
		for i := range names {
			s.want(200, wire.Acquire, `{"name":"short/%d","owner":"o","ttl_ms":1000}`, i) // a look sees its second half
			s.want(200, wire.Acquire, `{"name":"long/%d","owner":"o","ttl_ms":600000}`, i)
		}
		time.Sleep(time.Second)
		for i := range names {
			other.want(200, wire.Release, `{"name":"long/%d","owner":"o"}`, i)
		}
		time.Sleep(5 * time.Second)
		for query, kind := range map[string]string{"prefix=short/": wire.Expired, "prefix=long/": wire.EventEnded} {
			if n := len(s.history(query + "&limit=1000&kind=" + kind).Entries); n != names {
				t.Errorf("%s: %d leases %s, want %d", query, n, kind, names)
			}
		}
		s.wantMetric(`leasehold_service_lost_total{cause="expired"} %d`, names)
	})
}

// repeats lists each name on two pages, as an engine that cannot sort may.
type repeats struct{ *memory.Driver }

func (d repeats) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, _, err := d.Driver.List(ctx, prefix, "", limit)
	if after == "" {
		return states, "again", err
	}
	return states, "", err
}

// A name that is on several pages of the list counts once.
func TestNamesOnSeveralPagesCountOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, repeats{memory.New()}, &serve.Options{History: eachSecond.History, MetricLimits: true})
		s.want(200, wire.Limit, `{"name":"n","limit":5}`)
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000,"details":{"host":"h"}}`)
		s.want(409, wire.Acquire, `{"name":"n","owner":"b","ttl_ms":600000,"queue":true}`)
		time.Sleep(1500 * time.Millisecond)
		metrics := string(s.get("/metrics"))
		for _, line := range []string{
			`leasehold_store_held 1`, `leasehold_store_waiting{reason="exclusive"} 1`,
			`leasehold_store_used{lock="n"} 0`, `leasehold_store_limit{lock="n"} 5`,
		} {
			if n := strings.Count(metrics, "\n"+line+"\n"); n != 1 {
				t.Errorf("%d lines are %s", n, line)
			}
		}
		if n := strings.Count(metrics, "\nleasehold_store_limit{"); n != 1 {
			t.Errorf("the limit is there %d times", n)
		}
		if f := s.figures(); f.Held != 1 || f.Waiting != 1 || f.Hosts[0].Held != 1 || *f.Series.Points[0].Held != 1 {
			t.Errorf("%+v", f)
		}
	})
}

// A waiter has not left the queue if it was granted the lock between two looks, or if a look has
// merely missed it.
func TestWaitersThatHaveNotLeft(t *testing.T) {
	t.Parallel()
	for _, missed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.NewServer()
			d := &asked{Driver: engine.Connect()}
			s, other := newBubble(t, d, eachSecond), newBubble(t, engine.Connect(), nil)
			time.Sleep(500 * time.Millisecond) // until the first look is over
			other.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000}`)
			other.want(409, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":600000,"queue":true}`)
			other.want(409, wire.Acquire, `{"name":"n","owner":"x","ttl_ms":600000,"queue":true}`)
			time.Sleep(time.Second)
			if got := kinds(s.history("kind=waiting")); got != "waiting w, waiting x" && got != "waiting x, waiting w" {
				t.Fatalf("told %s", got)
			}
			if missed {
				d.misses.Store(true)
			} else {
				other.want(200, wire.Release, `{"name":"n","owner":"x"}`)
				time.Sleep(time.Second)
				other.want(200, wire.Release, `{"name":"n","owner":"a"}`)
				other.want(200, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":600000,"queue":true}`)
				other.want(200, wire.Release, `{"name":"n","owner":"w"}`)
			}
			time.Sleep(time.Second)
			want := "left x"
			if missed {
				want = ""
			}
			if got := kinds(s.history("kind=left")); got != want {
				t.Errorf("missed: %t: told %s", missed, got)
			}
		})
	}
}

// A lease of nobody here that somebody evicts elsewhere is no loss of a client here.
func TestEvictionOfAnotherInstancesLeaseIsNoLossHere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s, other := newBubble(t, engine.Connect(), nil), newBubble(t, engine.Connect(), nil)
		time.Sleep(time.Second) // until the first look is over
		for _, by := range []bubble{other, s} {
			by.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000}`)
			time.Sleep(6 * time.Second)
			other.want(200, wire.Evict, `{"name":"n","owner":"a","reason":"r"}`)
			time.Sleep(6 * time.Second)
			want := `leasehold_service_lost_total{cause="evicted"} 0`
			if by == s {
				want = `leasehold_service_lost_total{cause="evicted"} 1`
			}
			if !strings.Contains(string(s.get("/metrics")), "\n"+want+"\n") {
				t.Errorf("the metrics have no %s", want)
			}
		}
		s.wantHistory("kind=evicted", "evicted a, evicted a")
	})
}

// An eviction whose answer comes when the owner holds anew is of the lease before.
func TestEvictionThatIsAnsweredAfterTheNextGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &renewing{Driver: memory.New()}
		s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Every: 5 * time.Second, Sole: true}})
		time.Sleep(time.Second) // until the first look is over
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":20000}`)
		d.renew = func() {
			s.want(410, wire.Renew, `{"name":"n","owner":"a","ttl_ms":20000}`)
			s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":20000}`)
		}
		s.want(200, wire.Evict, `{"name":"n","owner":"a","reason":"r"}`)
		time.Sleep(6 * time.Second)
		s.want(200, wire.Renew, `{"name":"n","owner":"a","ttl_ms":20000}`)
		time.Sleep(21 * time.Second)
		s.wantCode(wire.CodeLost, wire.Renew, `{"name":"n","owner":"a","ttl_ms":20000}`)
		time.Sleep(6 * time.Second)
		all := s.history("name=n&kind=expired,ended,evicted")
		if got := kinds(all); got != "evicted a, expired a" {
			t.Errorf("told %s", kinds(s.history("name=n")))
		}
	})
}

// The time for which the history file lacks entries counts from when the first of them was to be
// written, even if the call that hangs had none, and whenever the entry happened.
func TestLagOfAHistoryFileThatHangsBetweenEntries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &paper{}
		s := newBubble(t, memory.New(), keptIn(p, 0))
		time.Sleep(time.Second)
		hangs := make(chan struct{})
		defer close(hangs)
		p.set(nil, hangs)
		time.Sleep(10 * time.Second) // with a sign of life, which hangs
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000}`)
		time.Sleep(2 * time.Minute)
		if text := string(s.get("/metrics")); !strings.Contains(text, "\nleasehold_history_lag_seconds 120\n") {
			t.Error(text[strings.Index(text, "# HELP leasehold_history_lag"):])
		}
		if all := s.history("limit=1"); all.Warning == "" {
			t.Error("the history does not warn")
		}
	})
}

// An entry about a time long ago is not late in the file.
func TestLagOfAnEntryThatIsFoundLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, engine := &paper{}, memory.NewServer()
		d := locktest.NewFaulty(engine.Connect())
		s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{File: p, Sole: true}})
		other := newBubble(t, engine.Connect(), nil)
		time.Sleep(time.Second)
		d.Always(locktest.OpInspect, locktest.LoseRequest)
		other.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000}`)
		time.Sleep(5 * time.Minute)
		p.set(errors.New("the disk is full"), nil)
		d.Always(locktest.OpInspect, nil)
		time.Sleep(12 * time.Second)
		if all := s.history("kind=granted"); len(all.Entries) != 1 || all.Entries[0].Ago < 200_000 {
			t.Errorf("%+v", all.Entries)
		}
		for line := range strings.Lines(string(s.get("/metrics"))) {
			var lag float64
			if n, _ := fmt.Sscanf(line, "leasehold_history_lag_seconds %g", &lag); n == 1 && (lag > 20 || lag == 0) {
				t.Errorf("it lags by %v s", lag)
			}
		}
	})
}

// An entry from a wrong clock does not make the figures cover a time that was not read, nor omit one
// that was.
func TestFiguresBeginWithWhatWasRead(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		entries      int // one a minute, of which 20 are read
		past, future []int
		least        int64 // minutes ago
	}{
		"behind":               {60, []int{50, 40}, nil, 10}, // 40 is the oldest that is read
		"ahead":                {60, nil, []int{40, 45}, 10},
		"ahead, with all read": {15, nil, []int{0}, 14},
		"ahead, and no other":  {2, nil, []int{0, 1}, 0},
		"behind, then ahead":   {60, []int{41}, []int{40}, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			now, p := time.Now(), &paper{}
			for i := range c.entries {
				p.entries = append(p.entries, serve.HistoryEntry{Seq: int64(i + 1), Time: now.Add(time.Duration(i-c.entries) * time.Minute), Kind: wire.EventGranted, Name: "n"})
			}
			for _, i := range c.past {
				p.entries[i].Time = now.Add(-1000 * time.Hour)
			}
			for _, i := range c.future {
				p.entries[i].Time = now.Add(1000 * time.Hour)
			}
			b := newBubble(t, memory.New(), keptIn(p, 200))
			time.Sleep(time.Second)
			if f := b.figures(); f.BeginsMS < c.least*60_000 || f.BeginsMS > 25*60_000 || len(f.Series.Points) > 25 {
				t.Errorf("%s: they begin %v ago, with %d points", what, wire.Duration(f.BeginsMS), len(f.Series.Points))
			}
		})
	}
}
