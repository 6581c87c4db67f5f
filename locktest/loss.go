package locktest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var lossCases = []Case{
	{Name: "HolderLearnsBeforeSuccessor", Run: holderLearnsBeforeSuccessor},
	{Name: "DeadlineCountsFromBeforeTheCall", Run: deadlineCountsFromBeforeTheCall},
	{Name: "PushedGrantCountsFromItsTry", Needs: NeedWakes, Run: pushedGrantCountsFromItsTry},
	{Name: "EvictionEndsTheContext", Needs: NeedOperator, Run: evictionEndsTheContext},
	{Name: "LostIsCalledOnce", Needs: NeedOperator | NeedLossNotice, Run: lostIsCalledOnce},
	{Name: "LostIsNotCalledOnRelease", Run: lostIsNotCalledOnRelease},
}

// holderLearnsBeforeSuccessor: the holder's link is a black hole. Its context ends by its own
// timer, before anybody else can be granted. The drift is large here because the timers of a busy
// machine are late. The clocks themselves agree: the engine runs on this machine.
func holderLearnsBeforeSuccessor(t testing.TB, h Harness) {
	d, sever := severable(t, h)
	name := newName(t)
	ttl := renewableTTL(d)
	holder := locker(t, d, leasehold.Options{TTL: ttl, Drift: 0.4})
	other := locker(t, open(t, h), leasehold.Options{})
	var lease *leasehold.Lease
	eventually(t, 5*ttl, "a renewal", func() bool { // on a busy machine, the lease may end before it
		lease = acquire(t, holder, name)
		for first := lease.Deadline(); lease.Context().Err() == nil; time.Sleep(pollEvery) {
			if lease.Deadline().After(first) {
				return true
			}
		}
		_ = lease.Release(bounded(t)) // it is lost
		return false
	})
	var history History
	done := history.Believe(lease)
	heal := sever()
	successor := acquire(t, other, name)
	if lease.Context().Err() == nil {
		t.Errorf("a successor was granted while the holder's context lived; its deadline was %v ago", time.Since(lease.Deadline()))
	}
	done()
	done = history.Believe(successor)
	heal()
	ended(t, lease, lease.Deadline())
	time.Sleep(ttl / 2) // whatever the cut has held back arrives now, and must do no harm
	if err := lease.Release(bounded(t)); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of a lost lease: %v; want ErrLost", err)
	}
	mustBeBusy(t, other, name, "the successor holds it")
	if err := successor.Context().Err(); err != nil {
		t.Errorf("the successor lost it: %v", context.Cause(successor.Context()))
	}
	done()
	release(t, successor)
	if err := history.Check(); err != nil {
		t.Error(err)
	}
}

// deadlineCountsFromBeforeTheCall: the answers to Try and Renew come late. The deadline counts from
// when the calls were sent, less the drift.
func deadlineCountsFromBeforeTheCall(t testing.TB, h Harness) {
	const drift = 0.01
	link := openFaulty(t, h)
	late := renewableTTL(link) / 5
	ttl := 15 * late // because Extend may take half of the time that is left
	l := locker(t, link, leasehold.Options{TTL: ttl, Drift: drift})
	var mu sync.Mutex
	var sent time.Time // when the last call reached the link
	slow := func(ctx context.Context, apply func() error) error {
		mu.Lock()
		sent = time.Now()
		mu.Unlock()
		return SlowReply(late)(ctx, apply)
	}
	check := func(what string, lease *leasehold.Lease) {
		mu.Lock()
		defer mu.Unlock()
		granted := roundUp(ttl, link.Features().Step) + time.Millisecond // engines may count in milliseconds
		latest := sent.Add(granted - granted/100 - 2*time.Millisecond)
		if late := lease.Deadline().Sub(latest); late > 0 {
			t.Errorf("%s: the deadline is %v later than the TTL less the drift allows", what, late)
		}
	}
	link.Always(OpTry, slow)
	link.Always(OpRenew, slow)
	lease := acquire(t, l, newName(t), leasehold.NoRenew())
	check("Try", lease)
	if err := lease.Extend(bounded(t), ttl); err != nil {
		t.Fatalf("Extend: %v", err)
	}
	check("Renew", lease)
	release(t, lease)
}

// pushedGrantCountsFromItsTry: a waiter is granted without another Try. The lease lasts for the
// TTL of its Grant, counted from before the Try that was refused. Engines that deliver no grant
// pass.
func pushedGrantCountsFromItsTry(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	holder := holding(t, d2, request(newName(t)))
	waiter := contend(t, d, queued(lasting(request(holder.req.Resource), renewableTTL(d))))
	before := time.Now()
	busy := waiter.busy("it is held")
	time.Sleep(aWhile / 2) // which the TTL of the grant counts
	holder.released()
	woken(t, busy, "it was released")
	var g driver.Grant
	select {
	case g = <-busy.Granted: // before Wake closed
	default:
		return
	}
	third := contend(t, d2, request(holder.req.Resource))
	for end := before.Add(g.TTL * 49 / 50); ; time.Sleep(tryEvery) { // clocks run at different rates
		_, err := third.try()
		switch now := time.Now(); {
		case now.After(end):
			return
		case err == nil:
			t.Fatalf("somebody else was granted %v after the Try of a grant for %v", now.Sub(before), g.TTL)
		}
	}
}

// evictionEndsTheContext: an eviction ends the holder's context. It does so at once if the engine
// notifies the holder, otherwise at the next renewal.
func evictionEndsTheContext(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := renewableTTL(d)
	limit := ttl/3 + Margin
	if !h.NoLossNotice {
		ttl, limit = longTTL, Margin
	}
	l, operator := locker(t, d, leasehold.Options{TTL: ttl}), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	lease := acquire(t, l, name)
	const reason = "so that it is seen"
	if err := operator.Evict(bounded(t), name, lease.Owner(), reason); err != nil {
		t.Fatalf("Evict: %v", err)
	}
	start := time.Now()
	if at := ended(t, lease, start.Add(limit)); at.Sub(start) > limit {
		t.Errorf("the evicted lease's context ended after %v, want within %v", at.Sub(start), limit)
	}
	err := lease.Release(bounded(t))
	if !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of an evicted lease: %v; want ErrLost", err)
	}
	if errors.Is(err, leasehold.ErrEvicted) && !strings.Contains(err.Error(), reason) {
		t.Errorf("Release of an evicted lease: %v; want ErrEvicted with its reason, or neither", err)
	}
	mustBeFree(t, operator, name, "its holder was evicted")
}

// notices counts calls of Request.Lost.
type notices struct {
	mu     sync.Mutex
	causes []error
}

func (n *notices) lost(cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.causes = append(n.causes, cause)
}

func (n *notices) all() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.causes
}

// lostIsCalledOnce: Lost is called once, with a cause, for an evicted holder, and not for others.
// The same is true of a holder that had to wait, of a sharer, and of one that only renewed.
func lostIsCalledOnce(t testing.TB, h Harness) {
	d, operator := open(t, h), open(t, h)
	told := func(req driver.Request) (*contender, *notices) {
		n := new(notices)
		req.Lost = n.lost
		return contend(t, d, req), n
	}
	evicted := func(c *contender, n *notices, what string) {
		t.Helper()
		if causes := n.all(); len(causes) > 0 {
			t.Errorf("Lost was called with %v before the eviction of %s", causes, what)
		}
		evict(t, operator, c.req.Resource, c.req.Owner)
		eventually(t, Margin, "Lost called on eviction of "+what, func() bool { return len(n.all()) > 0 })
		c.lost("it was evicted")
		c.nothingToRelease("it was evicted")
		time.Sleep(100 * time.Millisecond) // for calls that must not come
		if causes := n.all(); len(causes) != 1 || !errors.Is(causes[0], driver.ErrLost) {
			t.Errorf("Lost was called with %v on eviction of %s; want once, with a cause that wraps ErrLost", causes, what)
		}
	}
	name := newName(t)
	holder, ofHolder := told(request(name))
	bystander, ofBystander := told(request(newName(t)))
	waiter, ofWaiter := told(queued(request(name)))
	var resumed *contender
	var ofResumed *notices
	if d.Features().Resumes {
		resumed, ofResumed = told(holding(t, operator, request(newName(t))).req)
		resumed.renewed(longTTL)
	}
	known := time.Now().Add(3 * aWhile) // a service looks every second for leases that it has not granted
	holder.granted("the resource is free")
	holder.granted("held by itself is not busy") // a repeated Try must not arm Lost twice
	holder.renewed(longTTL)
	bystander.granted("the resource is free")
	busy := waiter.busy("it is held")
	evicted(holder, ofHolder, "a holder")
	select {
	case <-busy.Granted: // without another Try
	default:
		waiter.wins(Margin, "the holder was evicted")
	}
	evicted(waiter, ofWaiter, "a holder that had waited")
	if d.Features().Shared {
		one, ofOne := told(shared(name, 2))
		other, ofOther := told(shared(name, 2))
		one.granted("nobody holds it")
		other.granted("one of two slots is free")
		evicted(one, ofOne, "a sharer")
		evicted(other, ofOther, "another sharer")
	}
	if resumed != nil {
		time.Sleep(time.Until(known))
		evicted(resumed, ofResumed, "a holder that only renewed")
	}
	if causes := ofBystander.all(); len(causes) > 0 {
		t.Errorf("Lost was called with %v of a claim that was not evicted", causes)
	}
}

// lostIsNotCalledOnRelease: Lost is not called during or after a Release, whatever happens to the
// resource.
func lostIsNotCalledOnRelease(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	var released, left notices
	req := request(newName(t))
	waits := queued(request(req.Resource))
	req.Lost, waits.Lost = released.lost, left.lost
	holder, waiter, successor := holding(t, d, req), contend(t, d, waits), contend(t, d2, request(req.Resource))
	waiter.busy("it is held")
	waiter.leaves()
	holder.released()
	successor.granted("it was released")
	if _, ok := d2.(driver.Operator); ok {
		evict(t, d2, req.Resource, successor.req.Owner)
	} else {
		successor.released()
	}
	time.Sleep(200 * time.Millisecond) // for calls that must not come
	if causes := append(released.all(), left.all()...); len(causes) > 0 {
		t.Errorf("Lost was called with %v after Release", causes)
	}
}
