package locktest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var resourceCases = []Case{
	{Name: "NothingIsLeftAtTheEngine", Needs: NeedOperator, Run: nothingIsLeftAtTheEngine},
	{Name: "CloseEndsWaiters", Run: closeEndsWaiters},
	{Name: "CallsAfterCloseAreRefused", Run: callsAfterCloseAreRefused},
	{Name: "NoGoroutineAfterClose", Alone: true, Run: noGoroutineAfterClose},
	{Name: "ManyLeasesFewGoroutines", Alone: true, Run: manyLeasesFewGoroutines},
}

// nothingIsLeftAtTheEngine: resources that were used and released show no traces.
func nothingIsLeftAtTheEngine(t testing.TB, h Harness) {
	d := open(t, h)
	l, other := locker(t, d, leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})
	prefix := newName(t) + "/"
	for i := range 3 {
		name := fmt.Sprint(prefix, i)
		lease := acquire(t, l, name)
		mustBeBusy(t, other, name, "it is held")
		waitsInVain(t, other, name)
		release(t, lease)
	}
	for _, l := range []*leasehold.Locker{l, other} {
		if err := l.Close(); err != nil { // this waits for the clean-ups of calls that gave up
			t.Errorf("Close: %v", err)
		}
	}
	for _, name := range rest(t, []driver.Driver{d}, prefix, "", onePage) {
		t.Errorf("%q is left", name)
	}
}

// closeEndsWaiters: Close of a Locker ends its waiting calls, refuses later ones, and leaves no
// place.
func closeEndsWaiters(t testing.TB, h Harness) {
	name := newName(t)
	holder := locker(t, open(t, h), leasehold.Options{})
	waiting := make(chan struct{}, 100)
	l := locker(t, open(t, h), leasehold.Options{Trace: queues(waiting)})
	lease := acquire(t, holder, name)
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() {
			_, err := l.Acquire(context.Background(), name)
			errs <- err
		}()
		queuedUp(t, waiting)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range cap(errs) {
		select {
		case err := <-errs:
			if !errors.Is(err, leasehold.ErrClosed) {
				t.Errorf("Acquire of a Locker that was closed: %v; want ErrClosed", err)
			}
		case <-time.After(Margin):
			t.Fatal("Close did not end a waiting Acquire")
		}
	}
	if _, err := l.TryAcquire(bounded(t), name); !errors.Is(err, leasehold.ErrClosed) {
		t.Errorf("TryAcquire after Close: %v; want ErrClosed", err)
	}
	release(t, lease)
	mustBeFree(t, holder, name, "it was released; waiters of a closed Locker have no place ahead")
}

// callsAfterCloseAreRefused: claims of a closed driver send nothing to the engine. So they cannot
// be granted or released. What they hold stays held, or Lost was called for it.
func callsAfterCloseAreRefused(t testing.TB, h Harness) {
	d, other := h.Open(t), open(t, h)
	closeNow := sync.OnceValue(d.Close)
	t.Cleanup(func() { _ = closeNow() })
	name := newName(t)
	lost := make(chan error, 1)
	req := request(newName(t)) // a driver may know when a short lease is over
	req.Lost = func(cause error) { lost <- cause }
	held := holding(t, d, req)
	contend(t, other, request(name)).granted("it is free")
	waiting, fresh := contend(t, d, queued(request(name))), contend(t, d, request(newName(t)))
	waiting.busy("it is held")
	if err := closeNow(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	ended := driver.ErrClosed
	select {
	case <-lost: // closed with the session
		ended = driver.ErrLost
	default:
		if d.Features().SessionTTL > 0 {
			t.Error("Close, which ends the session of all leases, did not call Lost")
		}
		contend(t, other, request(held.req.Resource)).busy("its holder was closed and has lost nothing")
	}
	refused := func(what string, call func(ctx context.Context) error, also ...error) {
		var err error
		if took := atBest(aWhile, func() time.Duration {
			start := time.Now()
			err = within(t, what, callLimit, call)
			return time.Since(start)
		}); took > aWhile {
			t.Errorf("%s after Close took %v, at best", what, took)
		}
		for _, want := range append(also, driver.ErrClosed) {
			if errors.Is(err, want) {
				return
			}
		}
		t.Errorf("%s after Close: %v; want ErrClosed", what, err)
	}
	refused("Try of a holder", held.tryOnce)
	refused("Renew", func(ctx context.Context) error { _, err := held.claim.Renew(ctx, longTTL); return err }, ended)
	if d.Features().Notes {
		refused("Note", func(ctx context.Context) error { return held.claim.Note(ctx, "more") }, ended)
	}
	if b, ok := d.(driver.BatchRenewer); ok {
		refused("RenewAll", func(ctx context.Context) error {
			all := []driver.Renewal{{Claim: held.claim, TTL: longTTL}}
			b.RenewAll(ctx, all)
			return all[0].Err
		}, ended)
	}
	if b, ok := d.(driver.BatchTrier); ok {
		refused("TryAll", func(ctx context.Context) error {
			all := []driver.Trial{{Claim: held.claim}}
			b.TryAll(ctx, all)
			return all[0].Err
		})
		refused("ReleaseAll", func(ctx context.Context) error {
			all := []driver.Ending{{Claim: held.claim}}
			b.ReleaseAll(ctx, all)
			return all[0].Err
		}, ended)
	}
	if d.Features().Lingers {
		refused("Linger", held.lingerOnce(longTTL), ended)
	}
	for range 2 { // a repetition has the same result
		refused("Release of a holder", held.releaseOnce, ended)
	}
	refused("Try of a waiter", waiting.tryOnce)
	refused("Release of a waiter", waiting.releaseOnce, driver.ErrLost)
	refused("the first Try of a claim", fresh.tryOnce)
	refused("Release of a claim that never tried", fresh.releaseOnce, driver.ErrLost)
}

// noGoroutineAfterClose: a driver that was used in every way, and then closed, leaves no goroutine.
func noGoroutineAfterClose(t testing.TB, h Harness) {
	useAndClose(t, h) // once before, because a client may start some goroutines only once
	before := runtime.NumGoroutine()
	for range 3 {
		useAndClose(t, h)
	}
	limit := time.Now().Add(2 * Margin)
	for runtime.NumGoroutine() > before {
		if time.Now().After(limit) {
			t.Fatalf("%d goroutines before, %d after Close:\n%s", before, runtime.NumGoroutine(), goroutines())
		}
		time.Sleep(pollEvery)
	}
}

// goroutines lists the stacks of all goroutines except the test runner's.
func goroutines() string {
	buf := make([]byte, 1<<20)
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	stacks = slices.DeleteFunc(stacks, func(s string) bool { return strings.Contains(s, "testing.(*T).Run") })
	return strings.Join(stacks, "\n\n")
}

// useAndClose uses two drivers within a test of their own, so that the harness closes its clients
// too.
func useAndClose(t testing.TB, h Harness) {
	scope := &scope{TB: t}
	defer scope.end()
	d1, d2 := open(scope, h), open(scope, h)
	name := newName(t)
	l1, l2 := locker(scope, d1, leasehold.Options{}), locker(scope, d2, leasehold.Options{})
	lease := acquire(scope, l1, name)
	mustBeBusy(scope, l2, name, "it is held") // so that l2 has connected
	waitsInVain(scope, l2, name)
	waiter := contend(scope, d2, queued(request(name)))
	waiter.busy("it is held")
	release(scope, lease)
	waiter.wins(Margin, "it was released")
	waiter.released()
	// A process may die while it waits or holds.
	orphan := contend(scope, d1, lasting(request(name), renewableTTL(d1)))
	orphan.granted("it was released")
	contend(scope, d2, queued(request(name))).busy("it is held")
	if i, ok := d1.(driver.Operator); ok {
		if _, err := i.Inspect(bounded(scope), name); err != nil {
			t.Errorf("Inspect: %v", err)
		}
	}
}

// A scope is a part of a test with its own clean-ups.
type scope struct {
	testing.TB
	cleanups []func()
}

// Cleanup registers f to be called when the scope ends.
func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for len(s.cleanups) > 0 {
		last := len(s.cleanups) - 1
		f := s.cleanups[last]
		s.cleanups = s.cleanups[:last]
		f()
	}
}

// manyLeasesFewGoroutines: the number of goroutines does not grow with the number of leases.
func manyLeasesFewGoroutines(t testing.TB, h Harness) {
	const leases = 200
	allowed := 16*max(1, h.CallGoroutines) + 24 // the Locker's renewals in flight, and a reserve
	const most = leases / 2                     // new connections may have goroutines for a moment
	link := openFaulty(t, h)
	name := newName(t)
	var renewed atomic.Int32
	// Each lease is a call, and a busy disk may take seconds for all of them.
	l := locker(t, link, leasehold.Options{
		TTL: 4 * renewableTTL(link), Trace: On(leasehold.StepRenewed, func(leasehold.Event) { renewed.Add(1) }),
	})
	before := runtime.NumGoroutine()
	held := make([]*leasehold.Lease, leases)
	for i := range held {
		held[i] = acquire(t, l, fmt.Sprint(name, "/", i))
	}
	least := math.MaxInt
	eventually(t, 10*Margin, "renewals of all", func() bool {
		n := runtime.NumGoroutine() - before
		if least = min(least, n); n > most && h.CallGoroutines <= 1 { // else one server of several that is slow for a moment has many calls to answer
			t.Fatalf("%d goroutines while %d leases are renewed", n, leases)
		}
		return renewed.Load() >= leases
	})
	if least > allowed {
		t.Errorf("never fewer than %d goroutines while %d leases are renewed", least, leases)
	}
	for _, lease := range held {
		deadline := lease.Deadline()
		if err := lease.Release(bounded(t)); err != nil && time.Now().Before(deadline) { // else a busy machine was late
			t.Errorf("Release: %v", err)
		}
	}
}
