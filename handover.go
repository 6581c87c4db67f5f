package leasehold

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// handOver returns the next waiter of this process if it can take the hold, whose last lease is
// being released, and the hold is handing then; or nil. With a call in flight nobody gets it:
// that may be one of that lease. Requires h.mu.
func (h *hold) handOver() *turnWaiter {
	if !h.fitToHandOver() || !h.calling.TryBegin() {
		return nil
	}
	h.calling.End()
	next := h.locker.queue.next(h.req.Resource, h.renewals.ttl, h.fixed())
	if next != nil {
		h.on(onHandOver)
	}
	return next
}

// fitToHandOver reports whether the hold may go to the next waiter without the engine:
// exclusive, renewed, with half of its length left, inside the window since the grant.
// Requires h.mu.
func (h *hold) fitToHandOver() bool {
	now := h.locker.clock.Now()
	return h.holders.hasTurn && !h.over() && !h.renewals.never && h.holders.keepUntil == 0 &&
		h.grant.handOvers < maxHandOvers &&
		now.Sub(h.grant.at) < h.locker.opts.HandOver &&
		h.deadline.at.Sub(now) > min(h.renewals.ttl, h.deadline.span)/2
}

// fixed is what the engine shows of the hold as long as that lasts; nil: it can be changed. Requires h.mu.
func (h *hold) fixed() *description {
	if h.locker.features.Notes {
		return nil
	}
	return h.shows
}

// take lets le have a hold that was handed over. It reports false when the hold was lost on the way, or is
// leaving because it is no longer fit, since that took long; the waiter then has the turn. who is what le says.
func (h *hold) take(le *Lease, who *description) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.fitToHandOver() {
		h.on(onRelease)
	}
	if !h.on(onTake) {
		h.holders.hasTurn = false
		return false
	}
	h.countHandOver(h.locker.clock.Now())
	h.who, h.untold = who, !who.same(h.shows)
	h.add(le, 0)
	return true
}

// countHandOver has the first hand-over since the grant followed by a renewal, as soon as the
// window is over: the lease that it goes to may begin after the engine lost it. Requires h.mu.
func (h *hold) countHandOver(now boottime.Instant) {
	if h.grant.handOvers++; h.grant.handOvers > 1 {
		return
	}
	soon := h.grant.at.Add(h.locker.opts.HandOver + h.shortSection(now))
	if from, _ := h.renewalTime(); soon < from {
		h.locker.keeper.add(h, soon, soon.Add(renewSoonest))
	}
}

// take makes a lease of what was handed over, or gives it up and has the turn.
func (a *acquisition) take(h *hold) *Lease {
	l, ctx := a.locker, a.ctx
	if le := a.newLease(h, l.clock.Now(), StepHandedOver); h.take(le, a.who) {
		return le
	}
	a.hasTurn = true
	l.queue.contendAgain(a.name)
	select { // who asks beside what is being given up would wait for itself
	case <-l.calls.clean(func() { h.release(ctx, nil) }):
	case <-ctx.Done():
	}
	return nil
}

// discard ends a hold that was handed over to a call that no longer wants it.
func (a *acquisition) discard(h *hold) {
	l, ctx := a.locker, context.Background()
	if le := a.newLease(h, l.clock.Now(), StepHandedOver); h.take(le, a.who) {
		l.calls.tidy(func() { le.Release(ctx) }) // its answer matters to nobody: it ends by itself
		return
	}
	l.calls.tidy(func() {
		h.release(ctx, nil)
		l.queue.pass(h.req.Resource)
	})
}
