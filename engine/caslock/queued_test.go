package caslock_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"regexp"
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

// A queuedLink holds up the next place, or does to the next record what it is told to.
type queuedLink struct {
	*queueing
	holdUp atomic.Bool
	late   func()
	drop   atomic.Bool // is not written
	lose   atomic.Bool // is written, and its answer is lost
}

func (l *queuedLink) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if isPlace(name) && l.holdUp.CompareAndSwap(true, false) {
		l.late = func() { _, _ = l.queueing.Write(context.Background(), name, value, was, life) }
		return "", errCut
	}
	if name == "r" && l.drop.CompareAndSwap(true, false) {
		return "", errCut
	}
	version, err := l.queueing.Write(ctx, name, value, was, life)
	if name == "r" && l.lose.CompareAndSwap(true, false) {
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

// What a waiter was granted without hearing of it is given up with its place.
func TestReleaseAfterAGrantWithoutAnswer(t *testing.T) {
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
		claimtest.Released(t, waiter)
		claimtest.Granted(t, claimOf(t, process(t, s), driver.Request{Owner: "next"}))
	})
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

// A former version, which has places in the record, excludes and is excluded, and nobody waits for ever.
func TestFormerVersionBeside(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		former := formerly{&s.counting}
		inside := make(chan struct{}, 1)
		var all []*waiting
		first, err := lockerOn(t, s).Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if i%2 == 0 {
				all = append(all, acquires(t, process(t, s)))
			} else {
				all = append(all, acquires(t, process(t, former)))
			}
		}
		time.Sleep(5 * time.Second)
		gives(t, first)
		var served sync.WaitGroup
		for _, w := range all {
			served.Go(func() {
				lease := w.held(t)
				select {
				case inside <- struct{}{}:
				default:
					t.Error("two hold")
				}
				time.Sleep(time.Millisecond)
				<-inside
				gives(t, lease)
			})
		}
		served.Wait()
	})
}

// A formerly is a store of which a former version knew no places, nor what the record says of them.
type formerly struct{ *counting }

func (s formerly) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	return s.counting.Write(ctx, name, regexp.MustCompile(`,"beside":\d`).ReplaceAll(value, nil), was, life)
}

func (s formerly) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return s.counting.Watch(ctx, begun, func(i caslock.Item) {
		if !strings.Contains(i.Name, "\x00") {
			heard(i)
		}
	})
}

// A plainly store refuses places.
type plainly struct{ *queueing }

func (s plainly) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if isPlace(name) {
		return "", driver.ErrUnsupported
	}
	return s.queueing.Write(ctx, name, value, was, life)
}

// Where a store keeps no places, they are in the record.
func TestPlacesInTheRecordWhereThereAreNoOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := plainly{&queueing{}}
		d := process(t, s)
		holder := claimOf(t, d, driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		waiter := claimOf(t, process(t, s), driver.Request{Owner: "waits", Queue: true})
		claimtest.Refused(t, waiter)
		if st, err := d.(driver.Operator).Inspect(t.Context(), "r"); err != nil || len(st.Waiters) != 1 {
			t.Errorf("%v, %v; want a waiter", st, err)
		}
		claimtest.Released(t, holder)
		claimtest.Refused(t, claimOf(t, d, driver.Request{Owner: "passes by"}))
		claimtest.Granted(t, waiter)
		claimtest.Released(t, waiter)
		if s.places() > 0 || s.has("r") {
			t.Error("something is left")
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
