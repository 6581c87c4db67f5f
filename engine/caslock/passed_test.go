package caslock_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// An away store is one that its process does not get to, nor hears of, while it is paused: as one that stands still.
type away struct {
	*queueing
	mu     sync.Mutex
	paused chan struct{} // guarded by mu; nil: it is not
}

func (s *away) pause(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := make(chan struct{})
	s.paused = ch
	time.AfterFunc(d, func() { close(ch) })
}

func (s *away) wait() {
	s.mu.Lock()
	ch := s.paused
	s.mu.Unlock()
	if ch != nil {
		<-ch
	}
}

func (s *away) Read(ctx context.Context, name string) (caslock.Item, error) {
	s.wait()
	return s.queueing.Read(ctx, name)
}

func (s *away) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	s.wait()
	return s.queueing.Write(ctx, name, value, was, life)
}

func (s *away) Beside(ctx context.Context, first string) iter.Seq2[caslock.Item, error] {
	s.wait()
	return s.queueing.Beside(ctx, first)
}

func (s *away) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return s.queueing.Watch(ctx, begun, func(i caslock.Item) {
		s.wait()
		heard(i)
	})
}

// for ever, as far as a test sees.
const ever = 5 * time.Minute

// Of processes that died all places are passed at once, however many, and are removed. Leases stay to their end.
func TestCrowdThatDiesIsPassedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		first, err := lockerOn(t, s).Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		const processes, each = 3, 30
		var dead []*away
		for range processes {
			one := &away{queueing: s}
			dead = append(dead, one)
			d := process(t, one)
			for range each {
				acquires(t, d, leasehold.Wait(ever/2))
			}
		}
		eventually(t, time.Minute, "all have places", func() bool { return s.places() == processes*each })
		last := acquires(t, process(t, s))
		eventually(t, time.Minute, "the last has one", func() bool { return s.places() == processes*each+1 })
		for _, one := range dead {
			one.pause(ever)
		}
		gives(t, first)
		start := time.Now()
		lease := last.held(t)
		if took := time.Since(start); took < 5*time.Second || took > 12*time.Second {
			t.Errorf("served after %v, want some 8 to 10 s", took)
		}
		eventually(t, 20*time.Second, "the places of the dead are removed", func() bool { return s.places() == 0 })
		gives(t, lease)
	})
}

// A revives store has the process whose place is removed next make it anew just before, and write a beat.
type revives struct {
	*queueing
	armed atomic.Bool
}

func (s *revives) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if isPlace(name) && value == nil && s.armed.CompareAndSwap(true, false) {
		again := func(name string) caslock.Item {
			i, _ := s.queueing.Read(ctx, name)
			_, _ = s.queueing.Write(ctx, name, i.Value, i.Version, time.Hour)
			return i
		}
		var p struct{ Process string }
		_ = json.Unmarshal(again(name).Value, &p)
		again("\x00" + p.Process)
	}
	return s.queueing.Write(ctx, name, value, was, life)
}

// A place that its process has made anew, as it is alive after all, is not removed with the former one.
func TestPlaceMadeAnewIsNotRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		dead := &away{queueing: s}
		claimtest.Refused(t, claimOf(t, process(t, dead), driver.Request{Owner: "dies", Queue: true}))
		l := &revives{queueing: s}
		waits := claimOf(t, process(t, l), driver.Request{Owner: "waits", Queue: true})
		claimtest.Refused(t, waits)
		dead.pause(ever)
		l.armed.Store(true)
		eventually(t, time.Minute, "a dead place is to be removed", func() bool {
			claimtest.Refused(t, waits)
			return !l.armed.Load()
		})
		for range 3 {
			time.Sleep(time.Second)
			claimtest.Refused(t, waits)
		}
		if n := s.places(); n != 2 {
			t.Errorf("%d places, want that of the process that is alive too", n)
		}
	})
}

// A brittle store has watches that end after a few seconds.
type brittle struct{ *queueing }

func (s brittle) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second) // a beat or two
	defer cancel()
	return s.queueing.Watch(ctx, begun, heard)
}

// The dead are passed also where the watch ends again and again, and who is alive is not.
func TestCrowdThatDiesIsPassedBesideAWatchThatEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		first, err := lockerOn(t, s).Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		alive := acquires(t, process(t, s))
		eventually(t, time.Minute, "a place", func() bool { return s.places() == 1 })
		dead := &away{queueing: s}
		acquires(t, process(t, dead), leasehold.Wait(ever/2))
		eventually(t, time.Minute, "two places", func() bool { return s.places() == 2 })
		last := acquires(t, process(t, brittle{s}))
		eventually(t, time.Minute, "three places", func() bool { return s.places() == 3 })
		time.Sleep(time.Minute)
		dead.pause(ever)
		gives(t, first)
		lease := alive.held(t)
		select {
		case <-last.done:
			t.Fatal("who is alive is passed")
		default:
		}
		gives(t, lease)
		gives(t, last.held(t))
	})
}

// The expiry of a dead process's heartbeat does not look like a new heartbeat to a waiter that came since.
func TestForgottenHeartbeatIsNoSignOfLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		first, err := lockerOn(t, s).Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		dead := &away{queueing: s}
		acquires(t, process(t, dead), leasehold.Wait(ever/2))
		time.Sleep(time.Minute)
		beats := s.all(func(name string) bool { return strings.HasPrefix(name, "\x00") })
		dead.pause(ever)
		time.Sleep(5 * time.Second)
		start, next := time.Now(), acquires(t, process(t, s))
		eventually(t, time.Minute, "two places", func() bool { return s.places() == 2 })
		gives(t, first)
		time.Sleep(5 * time.Second)
		for _, name := range beats {
			i, err := s.Read(t.Context(), name)
			if err == nil {
				_, err = s.Write(t.Context(), name, nil, i.Version, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		next.held(t)
		if took := time.Since(start); len(beats) != 1 || took > 10*time.Second {
			t.Errorf("%d heartbeats are forgotten, and the next waits for %v; want one, and 2 lives of a place", len(beats), took)
		}
	})
}

// A deafened store has no watches, if its process is deaf.
type deafened struct {
	*queueing
	deaf atomic.Bool
	cut  chan struct{} // ends a watch
}

func (s *deafened) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	if s.deaf.Load() {
		return errCut
	}
	return watchUntil(ctx, s.cut, s.queueing, begun, heard)
}

// A waiter at the head of the queue is passed over if its process hears nothing, because it cannot ask then. It queues
// again once its process hears.
func TestProcessThatHearsNothingIsPassed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &deafened{queueing: &queueing{}, cut: make(chan struct{})}
		holder := claimOf(t, process(t, s.queueing), driver.Request{Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		first := claimOf(t, process(t, s), driver.Request{Owner: "first", Queue: true})
		claimtest.Refused(t, first)
		second := claimOf(t, process(t, s.queueing), driver.Request{Owner: "second", Queue: true, TTL: time.Hour})
		claimtest.Refused(t, second)
		s.deaf.Store(true)
		s.cut <- struct{}{}
		claimtest.Released(t, holder)
		for start := time.Now(); ; time.Sleep(500 * time.Millisecond) {
			if _, err := first.Try(t.Context()); !errors.Is(err, driver.ErrNotYet) {
				t.Fatalf("Try of a process that hears nothing: %v", err)
			}
			_, err := second.Try(t.Context())
			if err == nil {
				break
			}
			if !errors.Is(err, driver.ErrBusy) || time.Since(start) > 20*time.Second {
				t.Fatalf("Try of the next: %v after %v", err, time.Since(start))
			}
		}
		s.deaf.Store(false)
		claimtest.Refused(t, first)
		claimtest.Released(t, second)
		claimtest.Granted(t, first)
	})
}

// A process that stood still while its places were passed queues anew, and is served.
func TestPausedProcessQueuesAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		first, err := lockerOn(t, s).Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		paused := &away{queueing: s}
		early := acquires(t, process(t, paused))
		eventually(t, time.Minute, "a place", func() bool { return s.places() == 1 })
		d := process(t, s)
		next, last := acquires(t, d), acquires(t, d)
		eventually(t, time.Minute, "three places", func() bool { return s.places() == 3 })
		paused.pause(15 * time.Second)
		time.Sleep(12 * time.Second)
		gives(t, first)
		var served *waiting
		select {
		case <-next.done:
			served = next
		case <-last.done:
			served, last = last, next
		case <-time.After(5 * time.Second):
			t.Fatal("those behind are not served while it stands still")
		}
		time.Sleep(5 * time.Second)
		gives(t, served.held(t))
		gives(t, last.held(t))
		gives(t, early.held(t))
	})
}

// Who does not try any more loses its place, though its process goes on.
func TestWaiterThatStopsTryingIsPassed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		d := process(t, s)
		claimtest.Refused(t, claimOf(t, d, driver.Request{Owner: "stops", Queue: true}))
		goesOn := claimOf(t, d, driver.Request{Owner: "goes on", Queue: true})
		claimtest.Refused(t, goesOn)
		claimtest.Released(t, holder)
		if took := until(t, goesOn, 500*time.Millisecond); took < 3*time.Second || took > 6*time.Second {
			t.Errorf("granted after %v, want some 4 s", took)
		}
	})
}

// Nobody who asks but once passes a crowd, until the store has forgotten the beats of a crowd that died.
func TestNobodyPassesACrowd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		crowd := &away{queueing: s}
		claimtest.Refused(t, claimOf(t, process(t, crowd), driver.Request{Owner: "waits", Queue: true}))
		crowd.pause(ever)
		claimtest.Released(t, holder)
		passer := claimOf(t, process(t, s), driver.Request{Owner: "passes by"})
		claimtest.Refused(t, passer)
		time.Sleep(8 * time.Second)
		claimtest.Refused(t, passer)
		time.Sleep(6 * time.Second)
		for range 2 { // the mark goes by two writes
			claimtest.Granted(t, passer)
			claimtest.Released(t, passer)
		}
		if s.has("r") {
			t.Error("the record still says that somebody may wait")
		}
	})
}

// A slowly store tells of changes when it is let.
type slowly struct {
	*queueing
	mu   sync.Mutex
	held bool          // guarded by mu
	let  chan struct{} // guarded by mu
}

func (s *slowly) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.let = true, make(chan struct{})
}

func (s *slowly) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return s.queueing.Watch(ctx, begun, func(i caslock.Item) {
		s.mu.Lock()
		held, let := s.held, s.let
		s.mu.Unlock()
		if held {
			select {
			case <-let:
			case <-ctx.Done():
			}
			return
		}
		heard(i)
	})
}

// A process that has not heard of a waiter yet leaves it to others to look for one: who comes later passes nobody.
func TestWaiterThatIsNotHeardOfIsNotPassed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		q := &slowly{queueing: s}
		first := claimOf(t, process(t, q), driver.Request{Owner: "first", Queue: true})
		claimtest.Refused(t, first)
		q.hold()
		second := claimOf(t, process(t, s), driver.Request{Owner: "second", Queue: true})
		claimtest.Refused(t, second)
		claimtest.Released(t, holder)
		claimtest.Granted(t, first)
		claimtest.Released(t, first)
		claimtest.Refused(t, claimOf(t, process(t, s), driver.Request{Owner: "third"}))
		claimtest.Granted(t, second)
		claimtest.Released(t, second)
		if s.places() > 0 || s.has("r") {
			t.Error("something is left")
		}
	})
}
