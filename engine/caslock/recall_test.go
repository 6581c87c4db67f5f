package caslock_test

import (
	"context"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A watched store is one that reports changes.
type watched interface {
	caslock.Store
	caslock.Watcher
	caslock.Counter
}

// A view is a store as one process sees it.
type view struct {
	watched
	requests, watches atomic.Int64
	muted             atomic.Bool   // its watches hear nothing
	down              atomic.Bool   // no request gets through
	denied            atomic.Int64  // watches that were refused, if it is not 0
	begin             time.Duration // how much longer a watch takes to begin
	answer            time.Duration // and the answer to a write
	mark              time.Duration // and a write of a record

	mu  sync.Mutex
	end chan struct{} // guarded by mu; closed when its watches are cut
}

func (v *view) ask() error {
	v.requests.Add(1)
	if v.down.Load() {
		return errCut
	}
	return nil
}

func (v *view) Read(ctx context.Context, name string) (caslock.Item, error) {
	if err := v.ask(); err != nil {
		return caslock.Item{}, err
	}
	return v.watched.Read(ctx, name)
}

func (v *view) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if err := v.ask(); err != nil {
		return "", err
	}
	if !strings.Contains(name, "\x00") {
		time.Sleep(v.mark)
	}
	version, err := v.watched.Write(ctx, name, value, was, life)
	time.Sleep(v.answer)
	return version, err
}

func (v *view) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	time.Sleep(v.begin)
	if v.down.Load() {
		return errCut
	}
	if v.denied.Load() > 0 {
		v.denied.Add(1)
		return driver.ErrDenied
	}
	v.watches.Add(1)
	defer v.watches.Add(-1)
	v.mu.Lock()
	v.end = make(chan struct{})
	end := v.end
	v.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-end:
			cancel()
		case <-ctx.Done():
		}
	}()
	return v.watched.Watch(ctx, begun, func(i caslock.Item) {
		if !v.muted.Load() {
			heard(i)
		}
	})
}

// cut cuts the watch.
func (v *view) cut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.end)
}

// A placed view is one of a Queuer.
type placed struct{ *view }

func (p placed) Beside(ctx context.Context, first string) iter.Seq2[caslock.Item, error] {
	return func(yield func(caslock.Item, error) bool) {
		if err := p.ask(); err != nil {
			yield(caslock.Item{}, err)
			return
		}
		p.watched.(caslock.Queuer).Beside(ctx, first)(yield)
	}
}

// sees opens a store as one more process, whose view it returns.
func sees(t *testing.T, s watched) (driver.Driver, *view) {
	t.Helper()
	v := &view{watched: s}
	if _, ok := s.(caslock.Queuer); ok {
		return process(t, placed{v}), v
	}
	return process(t, v), v
}

// onWatched runs f on each kind of store that reports changes.
func onWatched(t *testing.T, f func(t *testing.T, s watched)) {
	for name, store := range map[string]func() watched{
		"record": func() watched { return &counting{} },
		"places": func() watched { return &queueing{} },
	} {
		t.Run(name, func(t *testing.T) { bubble(t, func(t *testing.T) { f(t, store()) }) })
	}
}

// A called counts calls of Wanted.
type called struct{ n atomic.Int64 }

func (c *called) holder(owner string) driver.Request {
	return driver.Request{Owner: owner, Wanted: func() { c.n.Add(1) }}
}

// is fails the test unless a call comes within that time.
func (c *called) is(t *testing.T, within time.Duration, why string) {
	t.Helper()
	eventually(t, within, "Wanted called: "+why, func() bool { return c.n.Load() > 0 })
	c.n.Store(0)
}

func (c *called) isNot(t *testing.T, why string) {
	t.Helper()
	if n := c.n.Swap(0); n > 0 {
		t.Errorf("Wanted called %d times: %s", n, why)
	}
}

func renewed(t *testing.T, c driver.Claim) {
	t.Helper()
	if _, err := c.Renew(t.Context(), ttl); err != nil {
		t.Fatalf("Renew: %v", err)
	}
}

// queuesOn queues a claim of one more process.
func queuesOn(t *testing.T, s caslock.Store, owner string) driver.Claim {
	t.Helper()
	c := claimOf(t, process(t, s), driver.Request{Owner: owner, Queue: true})
	claimtest.Refused(t, c)
	return c
}

// soon is more than a push takes, and far less than it is until the next renewal.
const soon = 50 * time.Millisecond

// The watch goes on for as long as a holder wants to know of others, and ends after that.
func TestWatchGoesOnForHolders(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		var told called
		holder := told.holder("a")
		holder.TTL = 2 * time.Minute
		c := claimOf(t, d, holder)
		claimtest.Granted(t, c)
		time.Sleep(time.Minute) // without a call
		told.isNot(t, "nobody waits")
		w := queuesOn(t, s, "b")
		told.is(t, soon, "another has queued after a minute")
		claimtest.Released(t, w)
		claimtest.Released(t, c)
		time.Sleep(time.Minute)
		if n := v.watches.Load(); n != 0 {
			t.Errorf("%d watches a minute after the last holder released", n)
		}
	})
}

// A watch that goes on for a lease which nobody releases ends with it.
func TestWatchEndsWithTheLease(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		var told called
		claimtest.Granted(t, claimOf(t, d, told.holder("a")))
		time.Sleep(time.Minute)
		if n := v.watches.Load(); n != 0 {
			t.Errorf("%d watches long after the lease has ended", n)
		}
	})
}

// Claims without Wanted begin no watch, and ask for nothing more. One with Wanted does not either,
// once the watch goes on.
func TestHoldersWhoDoNotAskPayNothing(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		cycle := func(c driver.Claim) int64 {
			before := v.requests.Load()
			claimtest.Granted(t, c)
			renewed(t, c)
			renewed(t, c)
			claimtest.Released(t, c)
			time.Sleep(time.Second)
			return v.requests.Load() - before
		}
		plain := claimOf(t, d, driver.Request{Owner: "a"})
		cycle(plain)
		const calls = 4 // a grant, two renewals, a release
		if n := cycle(plain); n != calls {
			t.Errorf("%d requests of who does not ask; want %d", n, calls)
		}
		claimtest.Granted(t, plain)
		w := queuesOn(t, s, "b")
		renewed(t, plain)
		time.Sleep(time.Second)
		if n := v.watches.Load(); n != 0 {
			t.Errorf("%d watches of who does not ask", n)
		}
		claimtest.Released(t, w)
		claimtest.Released(t, plain)
		var told called
		asks := claimOf(t, d, told.holder("c"))
		for range 30 { // the mark that others wait is cleared, and heartbeats end
			cycle(asks)
		}
		if n := cycle(asks); n != calls {
			t.Errorf("%d requests of who asks, while the watch goes on; want %d", n, calls)
		}
		first := told.holder("d")
		first.Resource = "never seen"
		if n := cycle(claimOf(t, d, first)); n != calls+1 { // it is read first
			t.Errorf("%d requests of who asks for a new name, while the watch goes on; want %d", n, calls+1)
		}
	})
}

// A renewal tells of a place that the watch has not reported, though it seems to go on.
func TestRenewalHealsALostPush(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		var told called
		c := claimOf(t, d, told.holder("a"))
		claimtest.Granted(t, c)
		for _, owner := range []string{"b", "c"} {
			time.Sleep(time.Second)
			v.muted.Store(true)
			w := queuesOn(t, s, owner)
			time.Sleep(soon)
			told.isNot(t, "the watch is muted")
			renewed(t, c)
			told.is(t, soon, "it was renewed")
			v.muted.Store(false)
			claimtest.Released(t, w)
			time.Sleep(30 * time.Millisecond)
			for range 4 {
				time.Sleep(2 * time.Second)
				renewed(t, c)
			}
			told.n.Store(0)
			renewed(t, c)
			time.Sleep(soon)
			told.isNot(t, "nobody waits any more")
		}
	})
}

// Where the store refuses the user to watch, renewals tell, and the store is not asked all the time.
func TestRecallWithoutTheRightToWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &counting{}
		d, v := sees(t, s)
		v.denied.Store(1)
		var told called
		c := claimOf(t, d, told.holder("a"))
		claimtest.Granted(t, c)
		for range 20 {
			time.Sleep(3 * time.Second)
			renewed(t, c)
		}
		if n := v.denied.Load() - 1; n > 10 {
			t.Errorf("%d watches were tried in a minute", n)
		}
		queuesOn(t, s, "b")
		renewed(t, c)
		told.is(t, soon, "it was renewed")
	})
}

// A place that comes while the watch is off is told of when it begins again, without a renewal.
func TestPlaceComesWhileTheWatchIsOff(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		var told called
		c := claimOf(t, d, told.holder("a"))
		claimtest.Granted(t, c)
		time.Sleep(time.Second)
		v.down.Store(true)
		v.cut()
		queuesOn(t, s, "b")
		time.Sleep(time.Second)
		told.isNot(t, "its process is cut off")
		v.down.Store(false)
		told.is(t, time.Second, "the watch has begun again")
	})
}

// A place that comes before the first watch has begun is told of when it begins.
func TestPlaceComesBeforeTheWatch(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		v.begin = time.Second
		var told called
		claimtest.Granted(t, claimOf(t, d, told.holder("a")))
		queuesOn(t, s, "b")
		told.is(t, time.Second+soon, "the watch has begun")
	})
}

// A place that comes before the watch has begun, and whose mark in the record comes after it, is
// told of with the mark.
func TestMarkComesAfterTheWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		d, v := sees(t, s)
		v.begin = 200 * time.Millisecond
		var told called
		claimtest.Granted(t, claimOf(t, d, told.holder("a")))
		other, slow := sees(t, s)
		slow.mark = time.Second
		w := claimOf(t, other, driver.Request{Owner: "b", Queue: true})
		go w.Try(context.Background())
		eventually(t, 100*time.Millisecond, "a place", func() bool { return s.places() == 1 })
		time.Sleep(v.begin)
		told.isNot(t, "the watch began after the place")
		told.is(t, slow.mark, "the record was marked")
	})
}

// A place that comes before the answer to the grant is told of with it.
func TestPlaceComesBeforeTheAnswer(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		var other, told called
		keeps := other.holder("a") // it keeps the watch going
		keeps.Resource = "other"
		claimtest.Granted(t, claimOf(t, d, keeps))
		before := claimOf(t, d, driver.Request{Owner: "b"})
		claimtest.Granted(t, before)
		claimtest.Released(t, before)
		time.Sleep(soon)
		v.answer = time.Second
		c := claimOf(t, d, told.holder("c"))
		granted := make(chan error)
		go func() {
			_, err := c.Try(t.Context())
			granted <- err
		}()
		time.Sleep(soon)
		queuesOn(t, s, "d")
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		told.is(t, soon, "a place had come before the answer")
	})
}

// Who waits and dies is told of for as long as its place lasts, and not for longer.
func TestDeadWaiterIsForgotten(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		var told called
		c := claimOf(t, d, told.holder("a"))
		claimtest.Granted(t, c)
		other, _ := sees(t, s)
		claimtest.Refused(t, claimOf(t, other, driver.Request{Owner: "b", Queue: true}))
		told.is(t, soon, "another has queued")
		other.Close()
		renewed(t, c)
		told.is(t, soon, "its place is there")
		for range 20 {
			time.Sleep(3 * time.Second)
			renewed(t, c)
		}
		told.n.Store(0)
		before := v.requests.Load()
		for range 20 {
			time.Sleep(3 * time.Second)
			renewed(t, c)
		}
		told.isNot(t, "it is dead")
		if n := v.requests.Load() - before; n > 20 {
			t.Errorf("%d requests for 20 renewals while nobody waits", n)
		}
	})
}

// Once a release has begun no call comes, though the lease lasts until the store has served it.
func TestNoCallOnceReleaseHasBegun(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, v := sees(t, s)
		var told called
		c := claimOf(t, d, told.holder("a"))
		claimtest.Granted(t, c)
		time.Sleep(soon)
		v.mark = time.Second
		released := make(chan error)
		go func() { released <- c.Release(t.Context(), driver.End{}) }()
		time.Sleep(soon)
		queuesOn(t, s, "b")
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		told.isNot(t, "its release had begun")
	})
}

// A holder hears of a waiter in its own process, and of those behind one that was granted.
func TestWantedInOneProcess(t *testing.T) {
	onWatched(t, func(t *testing.T, s watched) {
		d, _ := sees(t, s)
		var told, next called
		c := claimOf(t, d, told.holder("a"))
		claimtest.Granted(t, c)
		time.Sleep(time.Second)
		waits := next.holder("b")
		waits.Queue = true
		b := claimOf(t, d, waits)
		claimtest.Refused(t, b)
		told.is(t, soon, "another of its process has queued")
		behind := queuesOn(t, s, "c")
		told.is(t, soon, "and one of another process")
		next.isNot(t, "it only waits")
		claimtest.Released(t, c)
		eventually(t, time.Second, "granted", func() bool { _, err := b.Try(t.Context()); return err == nil })
		next.is(t, soon, "another waits behind")
		told.isNot(t, "its lease was released")
		claimtest.Released(t, behind)
	})
}

// A later store tells of a change after it has answered.
type later struct{ *queueing }

func (s later) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return s.queueing.Watch(ctx, begun, func(i caslock.Item) {
		time.Sleep(10 * time.Millisecond)
		heard(i)
	})
}

// Forget leaves nothing of a waiter in memory. Otherwise its process would keep the resource for ever.
func TestForgottenWaiterLeavesNothing(t *testing.T) {
	for name, store := range map[string]watched{"counting": &counting{}, "queueing": later{&queueing{}}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				claimtest.Granted(t, claimOf(t, process(t, store), driver.Request{Owner: "holder", TTL: time.Hour}))
				d := process(t, store)
				c := claimOf(t, d, driver.Request{Owner: "goes", Queue: true})
				claimtest.Refused(t, c)
				c.(driver.Forgetter).Forget()
				time.Sleep(30 * time.Second)
				if n := d.(*caslock.Driver).Waiting("r"); n > 0 {
					t.Errorf("%d waiters are remembered", n)
				}
			})
		})
	}
}
