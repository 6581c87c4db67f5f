package caslock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A record has a bounded number of places. Who finds none waits all the same, and is served.
func TestPlacesInARecordAreBounded(t *testing.T) {
	for name, store := range map[string]caslock.Store{"hashed": &hashed{}, "counting": &counting{}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const processes, waiters, bound = 4, 90, 64
				first, err := lockerOn(t, store).Acquire(t.Context(), "r")
				if err != nil {
					t.Fatal(err)
				}
				var drivers []driver.Driver
				for range processes {
					drivers = append(drivers, process(t, store))
				}
				var all []*waiting
				for i := range waiters {
					all = append(all, acquires(t, drivers[i%processes]))
				}
				most := 0
				for range 200 {
					time.Sleep(100 * time.Millisecond)
					most = max(most, waitersIn(t, store))
				}
				if most != bound {
					t.Errorf("%d wait in the record, want %d", most, bound)
				}
				inside := make(chan struct{}, 1)
				gives(t, first)
				var served sync.WaitGroup
				for _, w := range all {
					served.Go(func() {
						select {
						case <-w.done:
						case <-time.After(10 * time.Minute):
							t.Error("a waiter is not served")
							return
						}
						if w.err != nil {
							t.Error(w.err)
							return
						}
						select {
						case inside <- struct{}{}:
						default:
							t.Error("two hold")
						}
						<-inside
						gives(t, w.lease)
					})
				}
				served.Wait()
			})
		})
	}
}

// A waiter whose grant was not answered finds it, though the record has no place left.
func TestFullRecordHidesNoGrant(t *testing.T) {
	for name, store := range map[string]caslock.Store{"hashed": &hashed{}, "counting": &counting{}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const bound, long = 64, time.Hour
				l := &link{Store: store}
				waits := func(i int) {
					claimtest.Refused(t, claimOf(t, process(t, store), driver.Request{Owner: fmt.Sprint("waits ", i), Queue: true, TTL: long}))
				}
				holder := claimOf(t, process(t, store), driver.Request{Owner: "holder", TTL: long})
				claimtest.Granted(t, holder)
				c := claimOf(t, process(t, l), driver.Request{Owner: "a", Queue: true, TTL: long})
				claimtest.Refused(t, c)
				for i := range bound - 1 {
					waits(i)
				}
				claimtest.Released(t, holder)
				l.next = "lose answer"
				if _, err := c.Try(t.Context()); !errors.Is(err, errCut) {
					t.Fatalf("Try: %v; want its outcome to be unknown", err)
				}
				waits(bound) // takes the place that got free
				if n := waitersIn(t, store); n != bound {
					t.Fatalf("%d places, want %d", n, bound)
				}
				claimtest.Granted(t, c)
			})
		})
	}
}

// waitersIn is how many places the record has.
func waitersIn(t testing.TB, store caslock.Store) (n int) {
	t.Helper()
	i, err := store.Read(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Claims []struct{ Status int } }
	if err := json.Unmarshal(i.Value, &r); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Claims {
		if c.Status == 0 {
			n++
		}
	}
	return n
}

// A process keeps all its places by one write.
func TestOneWriteKeepsThePlacesOfAProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &counting{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		d := process(t, s)
		var all []driver.Claim
		for i := range 20 {
			all = append(all, claimOf(t, d, driver.Request{Owner: fmt.Sprint("waits ", i), Queue: true}))
			claimtest.Refused(t, all[i])
		}
		before := s.written()
		const seconds = 20
		for range seconds {
			time.Sleep(time.Second)
			for _, c := range all {
				claimtest.Refused(t, c)
			}
		}
		if n := s.written() - before; n > 2*seconds {
			t.Errorf("%d writes in %d s", n, seconds)
		}
		claimtest.Released(t, holder)
		for _, c := range all {
			claimtest.Granted(t, c)
			claimtest.Released(t, c)
		}
	})
}

// A sticking store has the next write take long.
type sticking struct {
	caslock.Store
	sticks atomic.Bool
}

func (s *sticking) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if s.sticks.CompareAndSwap(true, false) {
		time.Sleep(time.Minute)
	}
	return s.Store.Write(ctx, name, value, was, life)
}

// While a call of one waiter hangs, the others of its process keep their places.
func TestHungCallCostsNoOthersTheirPlaces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &sticking{Store: &hashed{}}
		holder := claimOf(t, process(t, s.Store), driver.Request{Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		d := process(t, s)
		first, second := claimOf(t, d, driver.Request{Owner: "first", Queue: true}), claimOf(t, d, driver.Request{Owner: "second", Queue: true})
		claimtest.Refused(t, first)
		claimtest.Refused(t, second)
		later := claimOf(t, process(t, s.Store), driver.Request{Owner: "later", Queue: true})
		claimtest.Refused(t, later)
		time.Sleep(2 * time.Second)
		s.sticks.Store(true)
		var hung sync.WaitGroup
		defer hung.Wait()
		hung.Go(func() { _, _ = first.Try(context.Background()) })
		for range 10 { // longer than a place lasts
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if _, err := second.Try(ctx); !errors.Is(err, driver.ErrBusy) {
				t.Errorf("Try beside a call that hangs: %v; want busy", err)
			}
			cancel()
			claimtest.Refused(t, later)
		}
		claimtest.Released(t, holder)
		claimtest.Refused(t, later)
		claimtest.Granted(t, second)
	})
}
