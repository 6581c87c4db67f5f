package locktest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

var faultCases = []Case{
	{Name: "ReplyLostOnTry", Run: replyLostOnTry},
	{Name: "ReplyLostOnAcquire", Run: replyLostOnAcquire},
	{Name: "ReplyLostWhileWaiting", Run: replyLostWhileWaiting},
	{Name: "ReplyLostOnRenew", Run: replyLostOnRenew},
	{Name: "ReplyLostOnRelease", Run: replyLostOnRelease},
	{Name: "CauseOfAContextIsNoAnswer", Run: causeOfAContextIsNoAnswer},
	{Name: "WaiterOutlivesACutLink", Run: waiterOutlivesACutLink},
	{Name: "WaiterDoesNotSpin", Run: waiterDoesNotSpin},
	{Name: "CallsEndWithTheirContext", Needs: NeedPause, Alone: true, Run: callsEndWithTheirContext},
	{Name: "LateCallsHaveNoEffect", Needs: NeedPause, Alone: true, Run: lateCallsHaveNoEffect},
	{Name: "HolderEndsWhileTheEngineIsPaused", Needs: NeedPause, Alone: true, Run: holderEndsWhileTheEngineIsPaused},
	{Name: "RestartKeepsLeases", Needs: NeedRestart, Alone: true, Run: restartKeepsLeases},
	{Name: "FlushEndsLeases", Needs: NeedFlushState, Alone: true, Run: flushEndsLeases},
	{Name: "FenceGrowsAfterFlush", Needs: NeedFlushState | NeedFencing, Alone: true, Run: fenceGrowsAfterFlush},
}

// replyLostOnTry: the answer to a Try is lost. After the next Try the claim holds once, and after a
// Release not at all.
func replyLostOnTry(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	name := newName(t)
	c, other := contend(t, link, request(name)), contend(t, open(t, h), request(name))
	link.Next(OpTry, LoseReply, LoseReply)
	for range 2 {
		if _, err := c.try(); !errors.Is(err, ErrInjected) {
			t.Fatalf("Try: %v; want its reply lost", err)
		}
		other.busy("it was granted, though the reply was lost")
	}
	c.granted("held by itself is not busy, though it does not know")
	c.released()
	other.granted("one Release ends the grant, however often it was asked for")
	other.released()

	link.Next(OpTry, LoseReply)
	if _, err := c.try(); !errors.Is(err, ErrInjected) {
		t.Fatalf("Try: %v; want its reply lost", err)
	}
	c.released()
	other.granted("Release ends what may have been granted")
}

// replyLostOnAcquire: the caller gets a lease, or an error with an unknown outcome. After the error
// nothing stays held for longer than the TTL.
func replyLostOnAcquire(t testing.TB, h Harness) {
	for what, fault := range map[string]Fault{"request lost": LoseRequest, "reply lost": LoseReply, "reply hangs": HangReply} {
		link := openFaulty(t, h)
		ttl := renewableTTL(link)
		l := locker(t, link, leasehold.Options{TTL: ttl})
		name := newName(t)
		link.Next(OpTry, fault)
		ctx, cancel := context.WithTimeout(context.Background(), 2*ttl)
		lease, err := l.Acquire(ctx, name)
		cancel()
		switch {
		case (lease == nil) == (err == nil):
			t.Errorf("%s: Acquire: %s, %v", what, describe(lease), err)
		case errors.Is(err, leasehold.ErrBusy), errors.Is(err, leasehold.ErrLost):
			t.Errorf("%s: Acquire: %v; nobody else holds it, and nothing was lost", what, err)
		case err == nil:
			mustBeBusy(t, locker(t, open(t, h), leasehold.Options{}), name, "it is held")
			release(t, lease)
			mustBeFree(t, locker(t, open(t, h), leasehold.Options{}), name, what+", and then released")
		default:
			mustFollow(t, h, name, ttl)
		}
	}

	// If the clean-up fails too, the grant must expire.
	link := openFaulty(t, h)
	ttl := renewableTTL(link)
	name := newName(t)
	link.Always(OpTry, LoseReply)
	link.Always(OpRelease, LoseRequest)
	if lease, err := locker(t, link, leasehold.Options{TTL: ttl}).TryAcquire(bounded(t), name); lease != nil || err == nil {
		t.Fatalf("TryAcquire without any reply: %s, %v", describe(lease), err)
	}
	mustFollow(t, h, name, ttl)
}

// replyLostWhileWaiting: a waiter that was granted, but got no answer, must not wait for itself.
func replyLostWhileWaiting(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	link.loseGrants() // so that it has to ask for its grant
	name := newName(t)
	holder := holding(t, open(t, h), request(name))
	waiting := make(chan struct{}, 100)
	l := locker(t, link, leasehold.Options{Trace: queues(waiting)})
	released := make(chan struct{})
	var lost atomic.Int32
	lose := func(ctx context.Context, apply func() error) error { lost.Add(1); return LoseReply(ctx, apply) }
	go func() {
		defer close(released)
		queuedUp(t, waiting)
		link.Next(OpTry, lose, lose)
		_ = holder.claim.Release(context.Background(), driver.End{}) // if it fails, the waiter is not granted, which the case reports
	}()
	start := time.Now()
	release(t, acquire(t, l, name, leasehold.Wait(3*followWithin)))
	<-released // because calls on one claim do not overlap
	if n := lost.Load(); n != 2 {
		t.Errorf("%d replies were lost, want 2", n)
	}
	if took := time.Since(start); took > 2*followWithin {
		t.Errorf("granted %v after it was released", took)
	}
	mustBeFree(t, locker(t, open(t, h), leasehold.Options{}), name, "it was released")
}

// replyLostOnRenew: a renewal whose answer was lost does no harm, and the next one counts.
func replyLostOnRenew(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	c := contend(t, link, request(newName(t)))
	g := c.granted("the resource is free")
	link.Next(OpRenew, LoseReply, LoseRequest)
	for range 2 {
		if _, err := c.renew(longTTL); !errors.Is(err, ErrInjected) {
			t.Fatalf("Renew: %v; want its reply lost", err)
		}
	}
	sameGrant(t, g, c.renewed(longTTL), "its renewal")
	c.released()
}

// replyLostOnRelease: after a lost answer, Release reports an unknown outcome or finds it out. The
// resource is free at once.
func replyLostOnRelease(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	other := locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	lease := acquire(t, locker(t, link, leasehold.Options{}), name)
	link.Next(OpRelease, LoseReply)
	err := lease.Release(bounded(t))
	if errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release whose first reply was lost: %v; the lease was not lost", err)
	}
	mustBeFree(t, other, name, "it was released, though the reply was lost")

	lease = acquire(t, locker(t, link, leasehold.Options{}), name)
	link.Next(OpRelease, LoseRequest)
	if err := lease.Release(bounded(t)); err != nil {
		t.Errorf("Release whose first request was lost: %v", err)
	}
	mustBeFree(t, other, name, "it was released at the second request")
}

// causeOfAContextIsNoAnswer: the context of a call ends, and its cause is the refusal or the loss
// of something else. The error then says nothing about the claim, which keeps what it had.
func causeOfAContextIsNoAnswer(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	name := newName(t)
	other := contend(t, d2, request(name))
	unknown := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errElsewhere)
		if err := call(ctx); errors.Is(err, driver.ErrBusy) || errors.Is(err, driver.ErrLost) {
			t.Errorf("%s with a context that had ended: %v; want an error of unknown outcome", what, err)
		}
	}
	for range 2 { // the second one meets what the first has left
		holder, waiter := contend(t, d, request(name)), contend(t, d, queued(request(name)))
		unknown("Try", holder.tryOnce)
		g := holder.granted("the resource is free, or held by itself")
		unknown("Try of the holder", holder.tryOnce)
		unknown("Renew", func(ctx context.Context) error { _, err := holder.claim.Renew(ctx, holder.req.TTL); return err })
		sameGrant(t, g, holder.renewed(longTTL), "its renewal")
		waiter.busy("it is held")
		if d.Features().Fair { // otherwise there is no place, which a driver may know
			unknown("Release of a place", waiter.releaseOnce)
		}
		waiter.leaves()
		unknown("Release", holder.releaseOnce)
		if err := holder.release(); err != nil && !errors.Is(err, driver.ErrLost) { // ErrLost: the first call has released it
			t.Fatalf("Release: %v", err)
		}
		other.wins(Margin, "the holder and the waiter have left")
		other.released()
	}
}

// waiterOutlivesACutLink: a waiter's link is cut for a while. The waiter continues, keeps or
// regains a place, and is granted.
func waiterOutlivesACutLink(t testing.TB, h Harness) {
	d, sever := severable(t, h)
	name := newName(t)
	holder := locker(t, open(t, h), leasehold.Options{})
	waiting := make(chan struct{}, 100)
	l := locker(t, d, leasehold.Options{TTL: renewableTTL(d), Trace: queues(waiting)})
	lease := acquire(t, holder, name)
	got := acquiring(bounded(t), l, name)
	queuedUp(t, waiting)
	heal := sever()
	release(t, lease)
	select {
	case r := <-got:
		t.Errorf("Acquire over a cut link: %s, %v; want it to wait on", describe(r.lease), r.err)
		heal()
		return
	case <-time.After(aWhile / 2):
	}
	heal()
	select {
	case r := <-got:
		if r.err != nil {
			t.Fatalf("Acquire over a link that was cut for a while: %v", r.err)
		}
		release(t, r.lease)
	case <-time.After(callLimit - Margin):
		t.Fatal("not granted after the link was healed")
	}
	mustBeFree(t, holder, name, "it was released")
}

// waiterDoesNotSpin: while the resource is held, a waiter calls only to keep its place, or to poll.
// While the engine is away, each call fails at once. The waiter calls again soon, but not in a
// tight loop.
func waiterDoesNotSpin(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	link.loseGrants() // so that it has to ask for its grant
	name := newName(t)
	holder := holding(t, open(t, h), request(name))
	waits := make(chan struct{}, 1000)
	l := locker(t, link, leasehold.Options{Trace: queues(waits)})
	got := acquiring(bounded(t), l, name)
	queuedUp(t, waits)
	eventually(t, callLimit, "a Try", func() bool { return link.Calls(OpTry) > 0 })
	before := link.Calls(OpTry)
	time.Sleep(aWhile)
	most := 10
	if !link.Features().Wakes {
		most += int(aWhile / (waiting.PollLast * 3 / 4))
	}
	if n := link.Calls(OpTry) - before; n > most {
		t.Errorf("%d tries in %v while another holds it, want at most %d", n, aWhile, most)
	}
	link.Always(OpTry, LoseRequest)
	before = link.Calls(OpTry)
	holder.released() // if the engine has wake-ups, the waiter now calls an engine that is away
	eventually(t, callLimit, "a Try of an engine that is away", func() bool { return link.Calls(OpTry) > before })
	before = link.Calls(OpTry)
	time.Sleep(aWhile)
	if n := link.Calls(OpTry) - before; n > 50 {
		t.Errorf("%d tries in %v of an engine that is away", n, aWhile)
	}
	link.Always(OpTry, nil)
	if err := (<-got).release(); err != nil {
		t.Errorf("a waiter whose engine was away for a while: %v", err)
	}
}

// callsEndWithTheirContext: while the engine does not answer, no call takes longer than its context
// allows.
func callsEndWithTheirContext(t testing.TB, h Harness) {
	d := open(t, h)
	holder, c := holding(t, d, request(newName(t))), contend(t, d, request(newName(t)))
	type call struct {
		what    string
		changes bool // false: some engines still answer
		do      func(context.Context) error
	}
	calls := []call{
		{"Try", true, c.tryOnce},
		{"Renew", true, func(ctx context.Context) error { _, err := holder.claim.Renew(ctx, longTTL); return err }},
	}
	if op, ok := d.(driver.Operator); ok {
		calls = append(calls,
			call{"Inspect", false, func(ctx context.Context) error { _, err := op.Inspect(ctx, holder.req.Resource); return err }},
			call{"List", false, func(ctx context.Context) error { _, _, err := op.List(ctx, "", "", 100); return err }},
			call{"Evict", false, func(ctx context.Context) error {
				return op.Evict(ctx, holder.req.Resource, newOwner(), "")
			}})
	}
	// Last, because a driver may refuse to renew after a Release has begun.
	calls = append(calls, call{"Release", true, holder.releaseOnce})
	resume := sync.OnceFunc(h.Pause(t))
	defer resume()
	for _, call := range calls {
		const limit = 200 * time.Millisecond
		late := atBest(aWhile, func() time.Duration {
			start := time.Now()
			err := within(t, call.what, limit, call.do)
			if call.changes && (err == nil || errors.Is(err, driver.ErrBusy) || errors.Is(err, driver.ErrLost)) {
				t.Errorf("%s while the engine is paused: %v; want an error of unknown outcome", call.what, err)
			}
			return time.Since(start) - limit
		})
		if late > aWhile {
			t.Errorf("%s returned %v after its context had ended, at best", call.what, late)
		}
	}
}

// lateCallsHaveNoEffect: the contexts of calls end while the engine is paused. Once it has answered
// later calls of the same claims, the earlier ones grant nothing, and shorten no lease.
func lateCallsHaveNoEffect(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	ttl := renewableTTL(d)
	holder := holding(t, d, request(newName(t)))
	fresh := []*contender{contend(t, d, request(newName(t))), contend(t, d, queued(request(newName(t))))}
	other := contend(t, d2, request(holder.req.Resource))
	resume := sync.OnceFunc(h.Pause(t))
	defer resume()
	for _, call := range []func(context.Context) error{
		fresh[0].tryOnce, fresh[1].tryOnce,
		func(ctx context.Context) error { _, err := holder.claim.Renew(ctx, ttl); return err },
	} {
		_ = within(t, "a call while the engine is paused", 200*time.Millisecond, call) // its outcome is unknown
	}
	resume()
	eventually(t, callLimit, "an answer to the holder", func() bool {
		_, err := holder.renew(longTTL)
		if errors.Is(err, driver.ErrLost) {
			t.Fatalf("Renew by the holder, after a pause: %v", err)
		}
		return err == nil
	})
	shorter := time.Now().Add(h.over(ttl)) // when a lease that is shortened from now on is over
	for _, c := range fresh {
		c.ends()
		next := contend(t, d2, request(c.req.Resource)) // an engine may keep the name taken until late calls are over
		eventually(t, h.over(followWithin), "a grant after a Release", func() bool { return next.tryOnce(bounded(t)) == nil })
		next.ends()
	}
	end := time.Now().Add(max(0, time.Until(shorter)) + aWhile)
	for time.Now().Before(end) {
		for _, c := range fresh {
			next := contend(t, d2, request(c.req.Resource))
			if _, err := next.try(); errors.Is(err, driver.ErrBusy) {
				t.Fatal("busy, though all that a claim asked for before its Release was given up")
			}
			next.ends()
		}
		if _, err := other.try(); err == nil {
			t.Fatal("granted, though the holder has renewed for long after it had renewed for less")
		}
		time.Sleep(aWhile / 10)
	}
}

// ends releases the claim, which may hold, until it is known to hold nothing.
func (c *contender) ends() {
	c.t.Helper()
	eventually(c.t, callLimit, "an answer to Release", func() bool {
		err := c.release()
		return err == nil || errors.Is(err, driver.ErrLost)
	})
}

// holderEndsWhileTheEngineIsPaused: a holder that cannot renew ends by its deadline. Everything
// works when the engine is back.
func holderEndsWhileTheEngineIsPaused(t testing.TB, h Harness) {
	d := open(t, h)
	l, other := locker(t, d, leasehold.Options{TTL: renewableTTL(d)}), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	lease := acquire(t, l, name)
	resume := sync.OnceFunc(h.Pause(t))
	defer resume()
	ended(t, lease, lease.Deadline())
	resume()
	release(t, acquire(t, other, name, leasehold.Wait(h.over(renewableTTL(d))+followWithin)))
	release(t, acquire(t, l, name))
}

// restartKeepsLeases: if the engine restarts with its state, holders still hold, waiters wait, and
// fences grow.
func restartKeepsLeases(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	name := newName(t)
	waiting := make(chan struct{}, 1000)
	l := locker(t, d2, leasehold.Options{Trace: queues(waiting)})
	holder := contend(t, d, request(name))
	g := holder.granted("the resource is free")
	ctx, cancel := context.WithTimeout(context.Background(), 3*callLimit)
	defer cancel()
	got := acquiring(ctx, l, name)
	queuedUp(t, waiting)
	h.Restart(t)
	eventually(t, callLimit, "the holder's renewal after the restart", func() bool {
		again, err := holder.renew(longTTL)
		if errors.Is(err, driver.ErrLost) || err == nil && again.Fence != g.Fence {
			t.Fatalf("Renew after a restart that kept the state: %v, fence %d, was %d", err, again.Fence, g.Fence)
		}
		return err == nil
	})
	contend(t, open(t, h), request(name)).busy("it is held over the restart")
	holder.released()
	select {
	case r := <-got:
		if err := r.release(); err != nil {
			t.Fatalf("a waiter, over the restart: %v", err)
		}
		if token := r.lease.Token(); g.Fence != 0 && token < g.Fence+driver.FenceStep {
			t.Errorf("token %d after the restart, fence %d before", token, g.Fence)
		}
	case <-time.After(2 * callLimit):
		t.Fatal("a waiter was not granted after the restart")
	}
}

// flushEndsLeases: the engine has lost its state. The holder learns of that by its next renewal at
// the latest, and nothing revives its lease.
func flushEndsLeases(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := renewableTTL(d)
	if !h.NoLossNotice {
		ttl = longTTL // a notice comes before any renewal
	}
	name := newName(t)
	other := locker(t, open(t, h), leasehold.Options{})
	lease := acquire(t, locker(t, d, leasehold.Options{TTL: ttl}), name)
	bare := holding(t, d, request(newName(t)))
	h.FlushState(t)
	start := time.Now()
	limit := ttl
	if !h.NoLossNotice {
		limit = Margin
	}
	if at := ended(t, lease, start.Add(limit)); at.Sub(start) > limit {
		t.Errorf("the holder's context ended %v after the engine had lost its state", at.Sub(start))
	}
	bare.lost("the engine has forgotten it")
	bare.nothingToRelease("the engine has forgotten it")
	release(t, acquire(t, other, name))
}

// fenceGrowsAfterFlush: fences grow after a flush, or the engine refuses with an error because it
// cannot promise that.
func fenceGrowsAfterFlush(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	fence := rises{t: t}
	for i := range 15 {
		c := contend(t, d, request(name))
		g, err := c.try()
		unknown := func() bool { return err != nil && !errors.Is(err, driver.ErrBusy) && !errors.Is(err, driver.ErrLost) }
		// The connection from before the flush may fail once, so one error is no refusal.
		for end := time.Now().Add(Margin); unknown() && fence.last > 0; g, err = c.try() {
			if time.Now().After(end) {
				return // it refuses with an error that says why
			}
			time.Sleep(tryEvery)
		}
		if err != nil {
			t.Fatalf("Try: %v", err)
		}
		fence.to(g.Fence, "a flush")
		if i%5 == 4 { // after several grants the last fence may be ahead of a coarse clock
			h.FlushState(t)
			continue
		}
		c.released()
	}
}
