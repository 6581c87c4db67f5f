package locktest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var waitingCases = []Case{
	{Name: "RefusedTryLeavesNoPlace", Run: refusedTryLeavesNoPlace},
	{Name: "WaiterWhoGivesUpLeavesNoPlace", Run: waiterWhoGivesUpLeavesNoPlace},
	{Name: "CancelledBeforehandNeverAcquires", Run: cancelledBeforehandNeverAcquires},
	{Name: "CancelRacingWithGrantOrphansNothing", Alone: true, Run: cancelRacingWithGrantOrphansNothing},
	{Name: "WaitIsBounded", Run: waitIsBounded},
	{Name: "WaiterFollowsRelease", Run: waiterFollowsRelease},
	{Name: "WaiterFollowsExpiry", Run: waiterFollowsExpiry},
	{Name: "LostWakeUpOnlyDelays", Run: lostWakeUpOnlyDelays},
	{Name: "WaitersOfOneProcessInOrder", Run: waitersOfOneProcessInOrder},
	{Name: "EveryWaiterIsServed", Alone: true, Run: everyWaiterIsServed},
	{Name: "WakesOnRelease", Needs: NeedWakes, Run: wakesOnRelease},
	{Name: "WakeIsArmedBeforeTheAnswer", Needs: NeedWakes, Run: wakeIsArmedBeforeTheAnswer},
	{Name: "OneReleaseWakesOneWaiter", Needs: NeedWakes | NeedFair, Run: oneReleaseWakesOneWaiter},
	{Name: "HeadThatLeavesWakesTheNext", Needs: NeedWakes | NeedFair, Run: headThatLeavesWakesTheNext},
	{Name: "OrderOfFirstTry", Needs: NeedFair, Run: orderOfFirstTry},
	{Name: "LeavingTheMiddleKeepsTheOrder", Needs: NeedFair, Run: leavingTheMiddleKeepsTheOrder},
	{Name: "DeadWaiterOnlyDelays", Needs: NeedFair, Run: deadWaiterOnlyDelays},
}

// refusedTryLeavesNoPlace: a refused claim without Queue does not delay others.
func refusedTryLeavesNoPlace(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder, refused, third := holding(t, d1, request(name)), contend(t, d2, request(name)), contend(t, d1, request(name))
	refused.busy("it is held")
	holder.released()
	third.granted("it was released; who was refused without Queue has no place ahead")
	third.released()

	l1, l2 := locker(t, d1, leasehold.Options{}), locker(t, d2, leasehold.Options{})
	lease := acquire(t, l1, name)
	for range 3 {
		mustBeBusy(t, l2, name, "it is held")
	}
	release(t, lease)
	mustBeFree(t, l1, name, "it was released; who was refused has no place ahead")
}

// waiterWhoGivesUpLeavesNoPlace: a waiter leaves no place, whether its context, its Wait or a
// Release of the claim ended the wait.
func waiterWhoGivesUpLeavesNoPlace(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder, waiter, third := holding(t, d1, request(name)), contend(t, d2, queued(request(name))), contend(t, d1, request(name))
	waiter.busy("it is held")
	waiter.leaves()
	holder.released()
	third.granted("it was released; who left has no place ahead")
	third.released()
	waiter.nothingToRelease("it left the queue")

	l1, l2 := locker(t, d1, leasehold.Options{}), locker(t, d2, leasehold.Options{})
	lease := acquire(t, l1, name)
	errGone := errors.New("gone")
	for range 5 {
		ctx, cancel := context.WithCancelCause(context.Background())
		timer := time.AfterFunc(rand.N(100*time.Millisecond), func() { cancel(errGone) })
		got, err := l2.Acquire(ctx, name)
		timer.Stop()
		if got != nil || !errors.Is(err, errGone) {
			t.Fatalf("Acquire with a context that ended: %s, %v; want its cause", describe(got), err)
		}
	}
	waitsInVain(t, l2, name)
	if err := l2.Close(); err != nil { // this waits for the clean-ups of calls that gave up
		t.Errorf("Close: %v", err)
	}
	release(t, lease)
	mustBeFree(t, l1, name, "it was released; who gave up waiting has no place ahead")
}

func cancelledBeforehandNeverAcquires(t testing.TB, h Harness) {
	d := open(t, h)
	l := locker(t, d, leasehold.Options{})
	name := newName(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 10 {
		if lease, err := l.Acquire(ctx, name); lease != nil || !errors.Is(err, context.Canceled) {
			t.Fatalf("Acquire on a cancelled context: %s, %v", describe(lease), err)
		}
		if lease, err := l.TryAcquire(ctx, name); lease != nil || !errors.Is(err, context.Canceled) {
			t.Fatalf("TryAcquire on a cancelled context: %s, %v", describe(lease), err)
		}
	}
	mustBeFree(t, locker(t, open(t, h), leasehold.Options{}), name, "no call had a live context")
	// Whether the engine has served the call or not, nothing may be granted to a waiter that left.
	c := contend(t, d, request(name))
	if err := c.tryOnce(ctx); err == nil {
		t.Error("Try on a cancelled context was granted")
	}
	c.leaves()
	contend(t, d, request(name)).granted("who has gone has released")
}

// cancelRacingWithGrantOrphansNothing: a waiter is cancelled while it is granted, again and again.
// It gets either the lease or an error. After the error no lease is left.
func cancelRacingWithGrantOrphansNothing(t testing.TB, h Harness) {
	l1, l2 := locker(t, open(t, h), leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	gap := 2 * time.Millisecond // between release and cancel; adapted to the speed of the engine
	end := time.Now().Add(time.Second)
	for round := 0; round < 40 || time.Now().Before(end); round++ {
		lease := acquire(t, l1, name)
		ctx, cancel := context.WithCancel(context.Background())
		var got *leasehold.Lease
		var err error
		var waiter sync.WaitGroup
		waiter.Go(func() { got, err = l2.Acquire(ctx, name) })
		time.Sleep(rand.N(gap))
		release(t, lease)
		time.Sleep(rand.N(gap))
		cancel()
		waiter.Wait()
		if (got == nil) == (err == nil) {
			t.Fatalf("Acquire: %s, error %v", describe(got), err)
		}
		if got != nil {
			gap = max(gap*9/10, 100*time.Microsecond)
			release(t, got)
		} else {
			gap = min(gap*11/10, 500*time.Millisecond)
		}
		start := time.Now()
		release(t, acquire(t, l1, name))
		if took := time.Since(start); took > followWithin {
			t.Fatalf("free again only %v after the cancelled Acquire had returned", took)
		}
	}
}

// waitIsBounded: no wait ends early or lasts past its bound.
func waitIsBounded(t testing.TB, h Harness) {
	l1, l2 := locker(t, open(t, h), leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	lease := acquire(t, l1, name)
	for _, wait := range []time.Duration{0, 300 * time.Millisecond, time.Second} {
		givesUpAfter(t, l1, name, wait)
		givesUpAfter(t, l2, name, wait)
	}
	release(t, lease)
}

// givesUpAfter fails unless Acquire is refused after wait. One of a few calls must be in time. An
// engine that did not answer within wait is asked for longer: the machine may be busy.
func givesUpAfter(t testing.TB, l *leasehold.Locker, name string, wait time.Duration) {
	const most = 5
	for try := 1; ; try++ {
		start := time.Now()
		got, err := l.Acquire(context.Background(), name, leasehold.Wait(wait))
		took := time.Since(start)
		switch isBusy := errors.Is(err, leasehold.ErrBusy); {
		case got == nil && !isBusy && wait > 0 && try < most && errors.Is(err, context.DeadlineExceeded):
			wait *= 2
		case got != nil || !isBusy:
			t.Fatalf("Acquire with Wait(%v): %s, %v; want ErrBusy", wait, describe(got), err)
		case took < wait-wait/10:
			t.Errorf("Acquire with Wait(%v) gave up after %v", wait, took)
			return
		case took <= wait+wait/10+aWhile/2:
			return
		case try == most:
			t.Errorf("Acquire with Wait(%v) gave up after %v, and no sooner in %d calls", wait, took, most)
			return
		}
	}
}

// over returns how long the engine may keep a lease that has ttl and is not renewed.
func (h Harness) over(ttl time.Duration) time.Duration { return ttl + h.Late }

// followWithin is how soon after a release a waiter must be granted on any engine, by a wake-up or
// by polling.
const followWithin = Margin

// promptly is how soon a waiter is granted if nothing delays it, by a wake-up or the next poll.
const promptly = 2 * aWhile

func waiterFollowsRelease(t testing.TB, h Harness) {
	least := time.Duration(math.MaxInt64)
	for round := 0; round < 3 || round < 6 && least > promptly; round++ {
		queued := make(chan struct{}, 100)
		l1 := locker(t, open(t, h), leasehold.Options{})
		l2 := locker(t, open(t, h), leasehold.Options{Trace: queues(queued)})
		name := newName(t)
		lease := acquire(t, l1, name)
		granted := acquiring(bounded(t), l2, name)
		<-queued
		time.Sleep(rand.N(100 * time.Millisecond)) // a random point of the waiter's sleep
		start := time.Now()
		release(t, lease)
		select {
		case got := <-granted:
			least = min(least, time.Since(start))
			if err := got.release(); err != nil {
				t.Errorf("Acquire or Release of a waiter: %v", err)
			}
		case <-time.After(followWithin):
			t.Fatalf("not granted %v after the release", followWithin)
		}
	}
	if least > promptly {
		t.Errorf("granted %v after the release, at best", least)
	}
}

// waiterFollowsExpiry: the holder has died, so nobody releases the resource or wakes the waiter.
func waiterFollowsExpiry(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	dead := contend(t, d, lasting(request(name), shortTTL(d)))
	g := dead.granted("the resource is free")
	start := time.Now()
	lease := acquire(t, locker(t, open(t, h), leasehold.Options{}), name, leasehold.Wait(h.over(g.TTL)+2*followWithin))
	if took := time.Since(start); took > h.over(g.TTL)+followWithin {
		t.Errorf("granted %v after a lease of %v, want within %v of its end", took, g.TTL, followWithin)
	}
	release(t, lease)
}

// lostWakeUpOnlyDelays: no wake-up arrives. The waiter must try again by itself, no later than
// Busy.Retry or the core's own bound.
func lostWakeUpOnlyDelays(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	holder := holding(t, d, request(name))
	sleepy := openFaulty(t, h)
	sleepy.LoseWakes()
	waiting := make(chan struct{}, 100)
	l := locker(t, sleepy, leasehold.Options{Trace: queues(waiting)})
	released := make(chan struct{})
	go func() {
		defer close(released)
		queuedUp(t, waiting)
		_ = holder.claim.Release(context.Background(), driver.End{}) // if it fails, the waiter is not granted, which the case reports
	}()
	start := time.Now()
	lease := acquire(t, l, name)
	if took := time.Since(start); took > callLimit-Margin {
		t.Errorf("granted after %v", took)
	}
	<-released
	release(t, lease)
}

// waitersOfOneProcessInOrder: one Locker serves its callers in the order of their calls, each with
// a larger token.
func waitersOfOneProcessInOrder(t testing.TB, h Harness) {
	const waiters = 20
	queued := make(chan struct{}, waiters)
	d := open(t, h)
	l := locker(t, d, leasehold.Options{Trace: queues(queued)})
	name := newName(t)
	first := acquire(t, l, name)
	var history History
	order, errs := make(chan int, waiters), make(chan error, waiters)
	for i := range waiters {
		go func() {
			lease, err := l.Acquire(bounded(t), name)
			if err == nil {
				done := history.Believe(lease)
				order <- i
				done()
				err = lease.Release(context.Background())
			}
			errs <- err
		}()
		<-queued // the next call starts when this one waits
	}
	release(t, first)
	for range waiters {
		if err := <-errs; err != nil {
			t.Fatalf("a waiter: %v", err)
		}
	}
	for want := range waiters {
		if got := <-order; got != want {
			t.Fatalf("waiter %d was served when it was the turn of %d", got, want)
		}
	}
	if err := history.Check(); err != nil {
		t.Error(err)
	}
}

// everyWaiterIsServed: 60 callers in four processes are served, one at a time.
func everyWaiterIsServed(t testing.TB, h Harness) {
	const processes, callers = 4, 15
	name := newName(t)
	inside, shared := make(chan struct{}, 1), 0
	var lockers []*leasehold.Locker
	for range processes {
		lockers = append(lockers, locker(t, open(t, h), leasehold.Options{}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*callLimit)
	defer cancel()
	atOnce(t, processes*callers, func(i int) error {
		return lockers[i%processes].Do(ctx, name, func(ctx context.Context) error {
			select {
			case inside <- struct{}{}:
			default:
				return errors.New("two holders at once")
			}
			time.Sleep(rand.N(time.Millisecond))
			shared++ // if the lock does not order holders, the race detector reports this
			<-inside
			return nil
		})
	})
	if shared != processes*callers {
		t.Errorf("%d of %d were served", shared, processes*callers)
	}
}

// wakesOnRelease: the head of the queue is woken soon after a release, even if the release comes
// before it begins to wait.
func wakesOnRelease(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	took := atBest(aWhile, func() time.Duration {
		name := newName(t)
		holder, waiter := holding(t, d1, request(name)), contend(t, d2, queued(request(name)))
		busy := waiter.busy("it is held")
		holder.released()
		start := time.Now()
		woken(t, busy, "the holder released")
		took := time.Since(start)
		waiter.wins(Margin, "it was released")
		waiter.released()
		return took
	})
	if took > aWhile {
		t.Errorf("woken %v after the release, at best", took)
	}
}

func woken(t testing.TB, busy *driver.Busy, why string) {
	t.Helper()
	if busy.Wake == nil {
		t.Fatal("Busy.Wake is nil, but Features.Wakes is declared")
	}
	select {
	case <-busy.Wake:
	case <-time.After(Margin):
		t.Fatalf("not woken within %v: %s", Margin, why)
	}
}

// wakeIsArmedBeforeTheAnswer: a Release races with a Try. If the Try is refused, its Wake must
// cover the Release, whichever came first.
func wakeIsArmedBeforeTheAnswer(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	end := time.Now().Add(aWhile / 2)
	for i := 0; i < 500 && time.Now().Before(end); i++ {
		name := newName(t)
		holder, waiter := holding(t, d1, request(name)), contend(t, d2, queued(request(name)))
		var released error
		var race sync.WaitGroup
		race.Go(func() { released = holder.claim.Release(bounded(t), driver.End{}) })
		_, err := waiter.try()
		race.Wait()
		if released != nil {
			t.Fatalf("Release: %v", released)
		}
		if busy, ok := errors.AsType[*driver.Busy](err); ok {
			woken(t, busy, "the holder released while the Try was on its way")
			waiter.wins(Margin, "it was released")
		} else if err != nil {
			t.Fatalf("Try: %v", err)
		}
		waiter.released()
	}
}

// oneReleaseWakesOneWaiter: six waiters are served, and their wake-ups are counted. If each release
// woke all, there would be 21. A few more than six are allowed, because Wake may close early.
func oneReleaseWakesOneWaiter(t testing.TB, h Harness) {
	const waiters = 6
	for range 5 {
		wakeUps, inTime := wakeUpsInTurn(t, h, waiters)
		switch {
		case !inTime: // this run proves nothing about the engine
		case wakeUps > 2*waiters:
			t.Fatalf("%d wake-ups for %d turns", wakeUps, waiters)
		default:
			return
		}
	}
	t.Skipf("the machine is too busy for %d waiters to keep their places", waiters)
}

// wakeUpsInTurn serves waiters one after another and counts the wake-ups. inTime reports whether
// each of them called often enough to keep its place.
func wakeUpsInTurn(t testing.TB, h Harness, waiters int) (wakeUps int, inTime bool) {
	t.Helper()
	name := newName(t)
	holder := holding(t, open(t, h), request(name))
	queue := make([]*contender, waiters)
	for i := range queue {
		queue[i] = contend(t, open(t, h), queued(request(name)))
	}
	busy := make([]*driver.Busy, waiters)
	start := time.Now()
	judged := func() bool { return punctual(queue) && time.Since(start) < longTTL/2 }
	for turn := range waiters {
		for i := turn; i < waiters; i++ {
			g, err := queue[i].try()
			if !judged() {
				return 0, false
			}
			if err == nil {
				t.Fatalf("granted with fence %d; want busy: it is not its turn", g.Fence)
			}
			if !errors.As(err, &busy[i]) {
				t.Fatalf("Try: %v; want a *driver.Busy", err)
			}
		}
		holder.released()
		if !judged() {
			return 0, false
		}
		woken(t, busy[turn], "it was its turn")
		time.Sleep(20 * time.Millisecond) // for wake-ups that must not come
		if !judged() {
			return 0, false
		}
		for _, b := range busy[turn:] {
			select {
			case <-b.Wake:
				wakeUps++
			default:
			}
		}
		holder = queue[turn]
		holder.granted("it was its turn")
	}
	return wakeUps, true
}

// headThatLeavesWakesTheNext: the head of the queue leaves after its turn has come, without another
// Try. The next waiter is woken.
func headThatLeavesWakesTheNext(t testing.TB, h Harness) {
	name := newName(t)
	holder := holding(t, open(t, h), request(name))
	queue := line(t, h, name, 2)
	holder.released()
	queue[0].inTime()
	woken(t, queue[0].refusal, "the holder released")
	queue[0].leaves()
	queue[1].follows(Margin, "the one before it left")
}

// line queues claims of several processes, one after another.
func line(t testing.TB, h Harness, name string, n int) []*contender {
	t.Helper()
	queue := make([]*contender, n)
	for i := range queue {
		req := queued(request(name))
		req.Note = fmt.Sprint("place ", i)
		queue[i] = contend(t, open(t, h), req)
	}
	for i := range queue {
		for _, c := range queue[:i+1] {
			c.busy("it is held") // so that earlier waiters keep their places
		}
	}
	inLine(queue...)
	return queue
}

// inLine says that the order of these waiters matters.
func inLine(queue ...*contender) {
	for _, c := range queue {
		c.line = slices.Clone(queue)
	}
}

// served checks that each claim of queue is granted in its turn, within limit, and refused before.
func served(t testing.TB, holder *contender, queue []*contender, limit time.Duration) {
	t.Helper()
	for len(queue) > 0 {
		holder.released()
		for i := len(queue) - 1; i > 0; i-- {
			queue[i].busy("others queued before it")
		}
		holder, queue = queue[0], queue[1:]
		holder.wins(limit, "it queued first")
	}
	holder.released()
}

func orderOfFirstTry(t testing.TB, h Harness) {
	name := newName(t)
	holder := holding(t, open(t, h), request(name))
	queue := line(t, h, name, 5)
	for i := range queue {
		queue[len(queue)-1-i].busy("it is held") // another Try does not change the order
	}
	// A later caller without Queue does not overtake the queue.
	holder.released()
	contend(t, open(t, h), request(name)).busy("others wait")
	queue[0].wins(Margin, "it queued first")
	served(t, queue[0], queue[1:], Margin)
}

func leavingTheMiddleKeepsTheOrder(t testing.TB, h Harness) {
	name := newName(t)
	holder := holding(t, open(t, h), request(name))
	queue := line(t, h, name, 5)
	queue[2].leaves()
	served(t, holder, append(queue[:2:2], queue[3:]...), 2*aWhile) // a dead waiter delays the others
}

// deadWaiterLimit bounds how long an engine may keep the place of a dead waiter.
const deadWaiterLimit = 6 * time.Second

// deadWaiterOnlyDelays: the first waiter never calls again. After a while the others are served, in
// order.
func deadWaiterOnlyDelays(t testing.TB, h Harness) {
	name := newName(t)
	d := open(t, h)
	holder := holding(t, d, request(name))
	dead := queued(request(name))
	dead.TTL = shortTTL(d)
	contend(t, d, dead).busy("it is held")
	queue := line(t, h, name, 3)
	holder.released()
	start := time.Now()
	for {
		for i := len(queue) - 1; i > 0; i-- {
			queue[i].busy("others queued before it")
		}
		if _, err := queue[0].try(); err == nil {
			break
		}
		if time.Since(start) > deadWaiterLimit+Margin {
			t.Fatalf("a waiter that died is still in the way after %v", deadWaiterLimit)
		}
		time.Sleep(5 * tryEvery)
	}
	served(t, queue[0], queue[1:], Margin)
}
