package schedule

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// Entries that are added, removed and moved at random come due once each, in their time. Take never
// returns more than its limit.
func TestAppointmentsAreKept(t *testing.T) {
	for _, allowed := range []struct{ room, most int }{{64, 1}, {7, 7}, {50, 8}, {1000, 1000}} {
		synctest.Test(t, func(t *testing.T) {
			type window struct{ from, to boottime.Instant }
			var clock boottime.Clock
			wants := make(map[*Entry[int]]window)
			var mu sync.Mutex
			var takes, took int
			var a Schedule[int]
			a = New[int](&clock, allowed.room, allowed.most, func() {
				mu.Lock()
				defer mu.Unlock()
				a.Fired()
				for now := clock.Now(); ; {
					due := a.Take(now)
					if due == nil {
						break
					}
					takes, took = takes+1, took+len(due)
					if len(due) > allowed.most {
						t.Errorf("%d entries at once, want at most %d", len(due), allowed.most)
					}
					for _, e := range due {
						w, ok := wants[e]
						if !ok || now < w.from || now > w.to || e.group != nil {
							t.Errorf("came up %v, at %v, want from %v to %v", ok, now, w.from, w.to)
						}
						delete(wants, e)
					}
				}
				a.Arm()
			})
			entries := make([]Entry[int], 200)
			for range 20_000 {
				mu.Lock()
				e := &entries[rand.N(len(entries))]
				if rand.N(10) < 7 {
					from := clock.Now().Add(rand.N(time.Second))
					to := from.Add(rand.N(200 * time.Millisecond))
					wants[e] = window{from, to}
					a.Add(e, from, from.Add(rand.N(to.Sub(from)+1)), to)
					a.Arm()
				} else {
					delete(wants, e)
					a.Remove(e)
				}
				if slices.ContainsFunc(a.groups, func(g *group[int]) bool { return len(g.entries) == 0 || len(g.entries) > allowed.room }) {
					t.Fatal("a group is empty, or too full")
				}
				if !slices.IsSortedFunc(a.groups, func(g, o *group[int]) int { return cmp.Compare(g.due, o.due) }) {
					t.Fatal("not in order")
				}
				mu.Unlock()
				time.Sleep(rand.N(5 * time.Millisecond))
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if len(wants) > 0 || len(a.groups) > 0 {
				t.Errorf("%d entries in %d groups never came up", len(wants), len(a.groups))
			}
			t.Logf("%+v: %d entries at %d times", allowed, took, takes)
			if allowed.most == 1000 && takes > took/2 {
				t.Errorf("%d entries at %d times, want them together", took, takes)
			}
		})
	}
}
