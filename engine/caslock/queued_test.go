package caslock_test

import (
	"context"
	"errors"
	"iter"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A queueing is a counting store that keeps places beside its names.
type queueing struct{ counting }

func (s *queueing) List(_ context.Context, prefix, after string, limit int) ([]caslock.Listed, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := func(yield func(string) bool) {
		for name := range s.values {
			if !strings.Contains(name, "\x00") && !yield(name) {
				return
			}
		}
	}
	items, next := page(names, prefix, after, limit, s.item)
	return items, next, nil
}

func (s *queueing) Beside(ctx context.Context, first string) iter.Seq2[caslock.Item, error] {
	travel()
	return func(yield func(caslock.Item, error) bool) {
		items, _, err := s.counting.List(ctx, first+"\x00", "", math.MaxInt)
		for _, i := range items {
			if i.Value != nil && !yield(i.Item, err) {
				return
			}
		}
	}
}

// all is what the store has of names for which is holds.
func (s *counting) all(is func(name string) bool) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.values {
		if is(name) && s.item(name).Value != nil {
			names = append(names, name)
		}
	}
	return names
}

func isPlace(name string) bool {
	first, _, two := strings.Cut(name, "\x00")
	return two && first != ""
}

// places is how many places there are.
func (s *counting) places() int { return len(s.all(isPlace)) }

func (s *counting) written() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// eventually returns how long it took until is holds.
func eventually(t testing.TB, within time.Duration, what string, is func() bool) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		switch {
		case is():
			return time.Since(start)
		case time.Since(start) > within:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// A waiting is an Acquire that has begun.
type waiting struct {
	lease *leasehold.Lease
	err   error
	done  chan struct{}
}

func acquires(t testing.TB, d driver.Driver, opts ...leasehold.Option) *waiting {
	t.Helper()
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl, HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w := &waiting{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lease, w.err = l.Acquire(context.Background(), "r", opts...)
	}()
	return w
}

func (w *waiting) held(t testing.TB) *leasehold.Lease {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(time.Minute):
		t.Fatal("not granted within a minute")
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.lease
}

func gives(t testing.TB, l *leasehold.Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil {
		t.Error(err)
	}
}

// Waiters write nothing while they wait but the beats of their processes, are served in their order, and leave nothing.
func TestManyWaitersWriteLittle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const processes, each = 5, 40
		s := &queueing{}
		first, err := lockerOn(t, s).Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		var all []*waiting
		var drivers []driver.Driver
		for range processes {
			drivers = append(drivers, process(t, s))
		}
		for i := range processes * each {
			all = append(all, acquires(t, drivers[i%processes]))
			eventually(t, time.Minute, "a place", func() bool { return s.places() == i+1 })
		}
		const idle = 20 * time.Second
		before := s.written()
		time.Sleep(idle)
		if n := s.written() - before; n < processes*5 || n > processes*15+10 { // a beat every 2 s, and the holder's renewals
			t.Errorf("%d writes in %v of %d processes", n, idle, processes)
		}
		before = s.written()
		gives(t, first)
		for i, w := range all {
			lease := w.held(t)
			for _, later := range all[i+1:] {
				select {
				case <-later.done:
					t.Fatalf("waiter %d is passed", i)
				default:
				}
			}
			gives(t, lease)
		}
		if n := s.written() - before; n > 4*uint64(len(all)) { // a grant, the place, a release
			t.Errorf("%d writes for %d turns", n, len(all))
		}
		if s.places() > 0 || s.has("r") {
			t.Errorf("%d places, a record %v: want nothing", s.places(), s.has("r"))
		}
	})
}

// Nor is one whose place has not been heard of by the next waiter, which came later.
func TestWaiterKnowsThoseBeforeIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		q := &slowly{queueing: s}
		d := process(t, q)
		stays := claimOf(t, d, driver.Request{Owner: "stays", Queue: true})
		claimtest.Refused(t, stays)
		q.hold()
		first := claimOf(t, process(t, s), driver.Request{Owner: "first", Queue: true})
		claimtest.Refused(t, first)
		claimtest.Released(t, stays)
		second := claimOf(t, d, driver.Request{Owner: "second", Queue: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := second.Try(ctx); err == nil || errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try: %v; want no answer, as it may not be known yet who came before", err)
		}
		claimtest.Released(t, holder)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if g, err := second.Try(ctx); err == nil {
			t.Errorf("granted %v before who came first", g)
		}
		claimtest.Granted(t, first)
	})
}

// A waiter that continues in another process, such as another instance of the service, keeps its place. So it does when
// it returns to the first one.
func TestWaiterMovesWithItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		var first []driver.Claim
		for range 2 {
			first = append(first, claimOf(t, process(t, s), driver.Request{Owner: "first", Queue: true}))
		}
		second := claimOf(t, process(t, s), driver.Request{Owner: "second", Queue: true})
		claimtest.Refused(t, first[0])
		claimtest.Refused(t, second)
		before := s.written()
		for _, one := range []driver.Claim{first[1], first[0]} {
			for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(500 * time.Millisecond) {
				claimtest.Refused(t, one)
				claimtest.Refused(t, second)
			}
		}
		if n := s.written() - before; n > 40 { // a beat of each process every 2 s, and the moves
			t.Errorf("%d writes", n)
		}
		claimtest.Released(t, holder)
		claimtest.Refused(t, second)
		claimtest.Granted(t, first[0])
	})
}

// A movesAway store belongs to a process whose waiter continues in another process.
type movesAway struct {
	*queuedLink
	watch *slowly
}

func (s movesAway) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return s.watch.Watch(ctx, begun, heard)
}

// A waiter is granted the lease in another process, which has taken its place over. The first process releases that lease.
func TestReleaseOfAWaiterThatWasGrantedElsewhere(t *testing.T) {
	for what, place := range map[string]struct{ removed, anew bool }{
		"its place is there":     {},
		"its place is removed":   {removed: true}, // which the first process has not heard of
		"its place is made anew": {anew: true},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &queueing{}
				holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
				claimtest.Granted(t, holder)
				from, to := movesAway{&queuedLink{queueing: s}, &slowly{queueing: s}}, &held{queueing: s}
				here := claimOf(t, process(t, from), driver.Request{Owner: "moves", Queue: true, TTL: time.Hour})
				there := claimOf(t, process(t, to), driver.Request{Owner: "moves", Queue: true, TTL: time.Hour})
				claimtest.Refused(t, here)
				if place.removed {
					from.watch.hold()
				}
				claimtest.Refused(t, there)
				claimtest.Released(t, holder)
				to.closed.Store(!place.removed)
				claimtest.Granted(t, there)
				if place.removed {
					eventually(t, time.Minute, "the place is removed", func() bool { return s.places() == 0 })
				}
				if place.anew {
					from.losePlace.Store(true)
					if _, err := here.Try(t.Context()); !errors.Is(err, errCut) {
						t.Fatalf("Try: %v; want its outcome to be unknown", err)
					}
				}
				claimtest.Released(t, here)
				claimtest.Granted(t, claimOf(t, process(t, s), driver.Request{Owner: "next"}))
			})
		})
	}
}

// The removal of a waiter's place is sent again where its connection was lost before. The record, which all waiters write,
// is left alone.
func TestReleaseOfAWaiterAfterAReconnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &queuedLink{queueing: &queueing{}}
		claimtest.Granted(t, claimOf(t, process(t, l.queueing), driver.Request{Owner: "holder", TTL: time.Hour}))
		waiter := claimOf(t, process(t, l), driver.Request{Owner: "waits", Queue: true})
		claimtest.Refused(t, waiter)
		before, err := l.Read(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		l.unsent.Store(true)
		claimtest.Released(t, waiter)
		after, err := l.Read(t.Context(), "r")
		if err != nil || after.Version != before.Version || l.unsent.Load() || l.places() > 0 {
			t.Errorf("the record is at version %s, then at %s, %v; %d places are left", before.Version, after.Version, err, l.places())
		}
	})
}
