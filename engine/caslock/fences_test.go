package caslock_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// Fences grow although records are removed, and the floor that somebody raised stays.
func TestFencesGrowOverRemoval(t *testing.T) {
	for name, store := range map[string]caslock.Store{"marks": &counting{}, "forgets": &counting{forgets: true}, "hashed": &hashed{}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var last uint64
				round := func() {
					t.Helper()
					for _, owner := range []string{"a", "b", "c"} {
						c := claimOf(t, process(t, store), driver.Request{Owner: owner})
						g := claimtest.Granted(t, c)
						if g.Fence <= last {
							t.Fatalf("fence %d after %d", g.Fence, last)
						}
						if again := claimtest.Granted(t, c); again.Fence != g.Fence {
							t.Fatalf("fence %d, at the next Try %d", g.Fence, again.Fence)
						}
						last = g.Fence
						claimtest.Released(t, c)
					}
				}
				round()
				c, ok := store.(*counting)
				if ok && c.has("r") {
					t.Error("a record without claims was not removed")
				}
				floor := driver.FenceOf(uint64(1000))
				if err := process(t, store).(driver.Operator).RaiseFence(t.Context(), "r", floor); err != nil {
					t.Fatal(err)
				}
				last = floor
				round()
				if ok && !c.has("r") {
					t.Error("a record was removed whose floor is above the store's numbers")
				}
				if ok {
					c.last += 2000 // of other names
				}
				round()
				round()
				if ok && c.has("r") {
					t.Error("a record was not removed although the store's numbers are above its floor")
				}
			})
		})
	}
}

// A store that was rolled back gives no fence again that this process has seen.
func TestFencesGrowOverARolledBackStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &counting{forgets: true}
		d := process(t, store)
		var last uint64
		for range 3 {
			for range 5 {
				c := claimOf(t, d, driver.Request{Owner: "a"})
				g := claimtest.Granted(t, c)
				if g.Fence <= last {
					t.Fatalf("fence %d after %d", g.Fence, last)
				}
				last = g.Fence
				claimtest.Released(t, c)
			}
			store.flush()
		}
	})
}

// What nobody renews is forgotten at its end, also where the grant was not the first of its name.
func TestEachGrantEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &counting{}
		for _, owner := range []string{"a", "b", "c"} {
			c := claimOf(t, process(t, store), driver.Request{Owner: owner, TTL: time.Hour})
			claimtest.Granted(t, c)
			if owner != "c" {
				claimtest.Released(t, c)
			}
		}
		time.Sleep(time.Hour + time.Hour/50)
		if store.has("r") {
			t.Error("a lease that is over is still there")
		}
	})
}
