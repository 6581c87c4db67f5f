package serve_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// Figures of all names include entries that memory has no room for. Figures of some names are
// absent if they would be wrong.
func TestFiguresOfMoreThanMemoryHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, memory.New(), &serve.Options{History: serve.HistoryOptions{Entries: 100}})
		cycles := func(n int) {
			for i := range n {
				s.want(200, wire.Acquire, `{"name":"n","owner":"o%d/%d","ttl_ms":60000,"call":1,"caller":"one"}`, n, i)
				s.want(200, wire.Release, `{"name":"n","owner":"o%d/%d"}`, n, i)
				time.Sleep(10 * time.Millisecond)
			}
		}
		some := func() wire.Figures { return told[wire.Figures](s, wire.Overview+"?prefix=n") }
		for i, n := range []int{30, 270} {
			cycles(n)
			if f := s.figures(); f.GrantsMin == nil || *f.GrantsMin != []int{30, 300}[i] || f.P50 == nil {
				t.Errorf("after %d more grants: %v, %v", n, f.GrantsMin, f.P50)
			}
			f := some()
			if whole := i == 0; whole != (f.GrantsMin != nil) || whole != (f.P50 != nil) || whole && *f.GrantsMin != 30 {
				t.Errorf("of some names, after %d more grants: %v, %v", n, f.GrantsMin, f.P50)
			}
		}
		time.Sleep(62 * time.Second)
		if f, one := s.figures(), some(); *f.GrantsMin != 0 || one.GrantsMin == nil || *one.GrantsMin != 0 || one.P50 != nil {
			t.Errorf("a minute later: %+v, %+v", f, one)
		}
	})
}

// Losses and evictions are counted although memory has dropped them for what ended after them. Of some names, their numbers
// are absent until memory has all of an hour.
func TestLossesThatMemoryHasDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s := newBubble(t, engine.Connect(), &serve.Options{History: serve.HistoryOptions{Entries: 50}})
		other := newBubble(t, engine.Connect(), nil)
		check := func(when string, lost, evicted int, ofSome bool) {
			t.Helper()
			if f := s.figures(); f.LostHour == nil || *f.LostHour != lost || f.EvictedHour == nil || *f.EvictedHour != evicted {
				t.Errorf("%s: want %d lost and %d evicted, got %s", when, lost, evicted, s.get(wire.Overview))
			}
			f := told[wire.Figures](s, wire.Overview+"?prefix=n")
			if known := f.LostHour != nil && f.EvictedHour != nil; known != ofSome || known && (*f.LostHour != lost || *f.EvictedHour != evicted) {
				t.Errorf("%s: want %d lost and %d evicted of some names, got %s", when, lost, evicted, s.get(wire.Overview+"?prefix=n"))
			}
		}
		time.Sleep(lookedBy)
		s.want(200, wire.Acquire, `{"name":"n","owner":"lost","ttl_ms":8000,"details":{"host":"h"}}`)
		s.want(200, wire.Acquire, `{"name":"n2","owner":"evicted","ttl_ms":60000}`)
		s.want(200, wire.Evict, `{"name":"n2","owner":"evicted","reason":"r"}`)
		time.Sleep(12 * time.Second) // a look after half the TTL has found that nobody else renews it
		check("at first", 1, 1, true)
		for i := range 20 {
			other.want(200, wire.Acquire, `{"name":"n","owner":"o%d","ttl_ms":60000}`, i)
			time.Sleep(10 * time.Second)
			other.want(200, wire.Release, `{"name":"n","owner":"o%d"}`, i)
			time.Sleep(10 * time.Second)
		}
		check("after twenty other ends", 1, 1, false)
		time.Sleep(2 * time.Hour)
		check("hours later", 0, 0, true)
	})
}

// A series has no points for the time between two instances. Entries from a clock that was ahead
// are not counted.
func TestSeriesWithoutTheTimeBetweenInstances(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		p := &paper{alive: now.Add(-30*time.Minute - 10*time.Second)}
		for i := range 10 {
			p.entries = append(p.entries, serve.HistoryEntry{Seq: int64(i + 1), Time: now.Add(time.Duration(i-40) * time.Minute), Kind: wire.EventGranted, Name: "n"})
		}
		p.entries = append(p.entries, serve.HistoryEntry{Seq: 11, Time: now.Add(48 * time.Hour), Kind: wire.EventGranted, Name: "n"})
		s := newBubble(t, memory.New(), &serve.Options{History: serve.HistoryOptions{File: p}})
		time.Sleep(time.Second)
		for _, prefix := range []string{"", "n"} {
			f := told[wire.Figures](s, wire.Overview+"?prefix="+prefix)
			grants := 0
			for _, point := range f.Series.Points {
				ago := time.Duration(point.Ago) * time.Millisecond
				if ago > time.Minute && ago < 29*time.Minute {
					t.Errorf("prefix %q: a point of %v ago: %+v", prefix, ago, point)
				}
				grants += point.Grants
			}
			if grants != 10 || f.GrantsMin == nil || *f.GrantsMin != 0 || f.P50 != nil || len(f.Series.Points) < 10 {
				t.Errorf("prefix %q: %d grants in %d points, %v lately", prefix, grants, len(f.Series.Points), f.GrantsMin)
			}
		}
	})
}

// The figures of many leases are counted once a second for all clients that may view the same.
func TestFiguresOfManyAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, &swollen{asked: asked{Driver: memory.New()}, many: 3000}, nil)
		time.Sleep(time.Second)
		first := s.figures()
		time.Sleep(500 * time.Millisecond)
		again, other := s.figures(), told[wire.Figures](s, wire.Overview+"?prefix=y")
		time.Sleep(600 * time.Millisecond)
		later := s.figures()
		if first.Held != 3000 || again.BeginsMS != first.BeginsMS || other.Held != 0 || later.BeginsMS == first.BeginsMS {
			t.Errorf("%d are held, since %d, %d and %d ms; others %d", first.Held, first.BeginsMS, again.BeginsMS, later.BeginsMS, other.Held)
		}
	})
}

// A client that may view nothing does not share the figures of one that may view everything.
func TestFiguresOfManyAreNotForThoseWhoMayViewNothing(t *testing.T) {
	t.Parallel()
	for _, nobodyFirst := range []bool{false, true} {
		t.Run(fmt.Sprint(nobodyFirst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &serve.Client{}
				s := newBubble(t, &swollen{asked: asked{Driver: memory.New()}, many: 3000}, &serve.Options{
					Client: func(*http.Request) (*serve.Client, error) { return client, nil },
				})
				time.Sleep(time.Second)
				for _, views := range []bool{!nobodyFirst, nobodyFirst} {
					right, want := serve.Lock, 0
					if views {
						right, want = serve.View, 3000
					}
					client = &serve.Client{Name: "c", Rules: []serve.Rule{{Rights: []serve.Right{right}}}}
					if f := s.figures(); f.Held != want {
						t.Errorf("a client with the right to %s is told that %d are held, want %d", right, f.Held, want)
					}
				}
			})
		})
	}
}
