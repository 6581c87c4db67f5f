package leasehold

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Entries that come, go and are put off at random come up once each, in their time, and
// never more at once than are allowed.
func TestAgendaKeepsAppointments(t *testing.T) {
	for _, most := range []int{1, 7, 1000} {
		synctest.Test(t, func(t *testing.T) {
			type window struct{ from, to time.Time }
			wants := make(map[*entry]window)
			a := &agenda{most: most}
			var mu sync.Mutex
			var takes, took int
			a.fire = func() {
				mu.Lock()
				defer mu.Unlock()
				a.armed = time.Time{}
				for now := time.Now(); ; {
					due := a.take(now)
					if due == nil {
						break
					}
					takes, took = takes+1, took+len(due)
					if len(due) > most {
						t.Errorf("%d entries at once, want at most %d", len(due), most)
					}
					for _, e := range due {
						w, ok := wants[e]
						if !ok || now.Before(w.from) || now.After(w.to) || e.group != nil {
							t.Errorf("came up %v, at %v, want from %v to %v", ok, now, w.from, w.to)
						}
						delete(wants, e)
					}
				}
				a.arm()
			}
			entries := make([]entry, 200)
			for range 20_000 {
				mu.Lock()
				e := &entries[rand.N(len(entries))]
				if rand.N(10) < 7 {
					from := time.Now().Add(rand.N(time.Second))
					to := from.Add(rand.N(200 * time.Millisecond))
					wants[e] = window{from, to}
					a.add(e, from, to.Add(-jitter(to.Sub(from))), to)
					a.arm()
				} else {
					delete(wants, e)
					a.remove(e)
				}
				if !slices.IsSortedFunc(a.groups, func(g, o *group) int { return g.due.Compare(o.due) }) {
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
			t.Logf("at most %d: %d entries at %d times", most, took, takes)
			if most == 1000 && takes > took/2 {
				t.Errorf("%d entries at %d times, want them together", took, takes)
			}
		})
	}
}
