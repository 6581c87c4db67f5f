package caslock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A place that is made late, after its claim was released, is removed by its process.
func TestLatePlaceIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		l := &queuedLink{queueing: s}
		d := process(t, l)
		stays := claimOf(t, d, driver.Request{Owner: "stays", Queue: true})
		claimtest.Refused(t, stays)
		goes := claimOf(t, d, driver.Request{Owner: "goes", Queue: true})
		l.holdUp.Store(true)
		if _, err := goes.Try(t.Context()); !errors.Is(err, errCut) {
			t.Fatalf("Try: %v; want its outcome to be unknown", err)
		}
		if err := goes.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release: %v", err)
		}
		l.late()
		if n := s.places(); n != 2 {
			t.Fatalf("%d places, want the late one too", n)
		}
		start := time.Now()
		for s.places() != 1 {
			claimtest.Refused(t, stays)
			if time.Sleep(500 * time.Millisecond); time.Since(start) > 5*time.Second {
				t.Fatal("a late place stays")
			}
		}
	})
}

// So is one that comes long after, while its process has waiters elsewhere alone.
func TestLatePlaceIsRemovedThoughItComesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		other := process(t, s)
		holder, elsewhere := claimOf(t, other, driver.Request{Owner: "holder", TTL: time.Hour}), claimOf(t, other, driver.Request{Resource: "elsewhere", Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		claimtest.Granted(t, elsewhere)
		l := &queuedLink{queueing: s}
		d := process(t, l)
		stays := claimOf(t, d, driver.Request{Resource: "elsewhere", Owner: "stays", Queue: true})
		waits := func(d time.Duration) {
			for start := time.Now(); time.Since(start) < d; time.Sleep(500 * time.Millisecond) {
				claimtest.Refused(t, stays)
			}
		}
		waits(time.Second)
		goes := claimOf(t, d, driver.Request{Owner: "goes", Queue: true})
		l.holdUp.Store(true)
		if _, err := goes.Try(t.Context()); !errors.Is(err, errCut) {
			t.Fatalf("Try: %v; want its outcome to be unknown", err)
		}
		if err := goes.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release: %v", err)
		}
		waits(time.Minute)
		l.late()
		if n := s.places(); n != 2 {
			t.Fatalf("%d places, want the late one too", n)
		}
		waits(5 * time.Second)
		if n := s.places(); n != 1 {
			t.Errorf("%d places, want the late one removed", n)
		}
	})
}

// A queuedLink delays the next write of a place, loses its answer or does not send it. It drops or refuses the next write
// of a record, or loses its answer.
type queuedLink struct {
	*queueing
	holdUp    atomic.Bool
	late      func()
	losePlace atomic.Bool
	unsent    atomic.Bool // the next write of a place is not sent
	drop      atomic.Bool // is not written
	refuse    atomic.Bool // is not written, which is certain
	lose      atomic.Bool // is written, and its answer is lost
}

func (l *queuedLink) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if isPlace(name) && l.holdUp.CompareAndSwap(true, false) {
		l.late = func() { _, _ = l.queueing.Write(context.Background(), name, value, was, life) }
		return "", errCut
	}
	if isPlace(name) && l.unsent.CompareAndSwap(true, false) {
		return "", caslock.ErrUnsent
	}
	if name == "r" && l.drop.CompareAndSwap(true, false) {
		return "", errCut
	}
	if name == "r" && l.refuse.CompareAndSwap(true, false) {
		return "", caslock.ErrRefused
	}
	version, err := l.queueing.Write(ctx, name, value, was, life)
	if name == "r" && l.lose.CompareAndSwap(true, false) || isPlace(name) && l.losePlace.CompareAndSwap(true, false) {
		return "", errCut
	}
	return version, err
}

// A waiter is refused only when the record says that there are places, though its first attempt has made one.
func TestPlaceWithoutAMarkIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		l := &queuedLink{queueing: s}
		d := process(t, l)
		first, waiter := claimOf(t, d, driver.Request{Owner: "first", Queue: true}), claimOf(t, d, driver.Request{Owner: "waits", Queue: true})
		for _, c := range []driver.Claim{first, waiter} {
			l.drop.Store(true)
			if _, err := c.Try(t.Context()); !errors.Is(err, errCut) {
				t.Fatalf("Try: %v; want its outcome to be unknown", err)
			}
		}
		claimtest.Refused(t, waiter)
		claimtest.Released(t, holder)
		claimtest.Refused(t, claimOf(t, process(t, s), driver.Request{Owner: "passes by"}))
		claimtest.Granted(t, first)
	})
}

// A release gives up the place together with a grant whose answer was lost, though another Try has failed since.
func TestReleaseAfterAGrantWithoutAnswer(t *testing.T) {
	for what, refused := range map[string]bool{"released at once": false, "tried again": true} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &queueing{}
				holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
				claimtest.Granted(t, holder)
				l := &queuedLink{queueing: s}
				waiter := claimOf(t, process(t, l), driver.Request{Owner: "waits", Queue: true})
				claimtest.Refused(t, waiter)
				claimtest.Released(t, holder)
				l.lose.Store(true)
				if _, err := waiter.Try(t.Context()); !errors.Is(err, errCut) {
					t.Fatalf("Try: %v; want its outcome to be unknown", err)
				}
				if l.refuse.Store(refused); refused {
					if _, err := waiter.Try(t.Context()); !errors.Is(err, caslock.ErrRefused) {
						t.Fatalf("Try: %v; want it refused", err)
					}
				}
				claimtest.Released(t, waiter)
				claimtest.Granted(t, claimOf(t, process(t, s), driver.Request{Owner: "next"}))
			})
		})
	}
}

// A shared grant that was not answered is found, though another waits by now.
func TestSharedGrantWithoutAnswerBesideAWaiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		l := &queuedLink{queueing: s}
		c := claimOf(t, process(t, l), driver.Request{Owner: "reads", Mode: driver.Shared, Queue: true})
		l.lose.Store(true)
		if _, err := c.Try(t.Context()); !errors.Is(err, errCut) {
			t.Fatalf("Try: %v; want its outcome to be unknown", err)
		}
		claimtest.Refused(t, claimOf(t, process(t, s), driver.Request{Owner: "writes", Queue: true}))
		claimtest.Granted(t, c)
	})
}

// A held store takes no removal of a place while it is closed.
type held struct {
	*queueing
	closed atomic.Bool
}

func (s *held) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if isPlace(name) && value == nil && s.closed.Load() {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return s.queueing.Write(ctx, name, value, was, life)
}

// A lease is released though the place that it came from cannot be removed, which is done later.
func TestReleaseBeforeThePlaceIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &held{queueing: &queueing{}}
		other := process(t, s.queueing)
		holder := claimOf(t, other, driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		c := claimOf(t, process(t, s), driver.Request{Owner: "waits", Queue: true, TTL: time.Hour})
		claimtest.Refused(t, c)
		claimtest.Released(t, holder)
		s.closed.Store(true)
		claimtest.Granted(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Release(ctx, driver.End{}); err != nil {
			t.Errorf("Release: %v", err)
		}
		s.closed.Store(false)
		eventually(t, 20*time.Second, "the place is removed", func() bool { return s.places() == 0 })
		claimtest.Granted(t, claimOf(t, other, driver.Request{Owner: "next"}))
	})
}
