package leasehold

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// handOver returns the next waiter of this process if it can take over the hold, whose last
// lease is being released. The hold is then handing. Otherwise it returns nil, also while a call
// is in flight, which may be the released lease's. Requires h.mu.
func (h *hold) handOver(now boottime.Instant) *turnWaiter {
	if !h.canHandOver(now) || !h.calling.TryBegin() {
		return nil
	}
	h.calling.End()
	next := h.locker.queue.next(h.req.Resource, h.suits)
	if next != nil {
		h.transition(onHandOver)
	}
	return next
}

// canHandOver reports whether the hold may go to the next waiter without a call to the engine.
// It must be exclusive and renewed, have half of its length left, and be within Options.HandOver
// of its grant. Requires h.mu.
func (h *hold) canHandOver(now boottime.Instant) bool {
	return h.holders.hasTurn && !h.over() && !h.renewals.never && h.holders.keepUntil == 0 &&
		h.grant.handOvers < maxHandOvers &&
		now.Sub(h.grant.at) < h.locker.opts.HandOver &&
		h.deadline.at.Sub(now) > min(h.renewals.ttl, h.deadline.span)/2
}

// suits reports whether the hold is what w would be granted. The description must be the same if the
// engine cannot change the one that it shows. Requires h.mu.
func (h *hold) suits(w *turnWaiter) bool {
	return w.acceptsHandOver && w.ttl == h.renewals.ttl && (h.yields || !w.yields) && (!h.req.WantedOnce || !w.ranks) &&
		(h.locker.features.Notes || w.who.same(h.shows))
}

// take makes le, the lease of a, the lease of a hold that was handed over or kept. It reports false
// if the hold was lost meanwhile, too much time has passed, or a kept hold is not what a would be
// granted. In the last two cases the hold is then leaving. In all cases a has the turn.
func (h *hold) take(le *Lease, a *acquisition) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.locker.clock.Now()
	fit := h.phase != kept && h.canHandOver(now) || h.phase == kept && h.canTakeKept(now, a)
	if !fit || !h.transition(onTake) {
		h.leave()
		h.holders.hasTurn = false
		return false
	}
	h.countHandOver(now)
	if h.keep != nil {
		h.stopKeeping(StepTaken, nil)
		h.keep.able = h.keep.able && a.keeps
		h.planUse(now)
	}
	h.who = h.descriptionOf(a)
	h.untold = !h.who.same(h.shows)
	h.add(le, now)
	return true
}

// descriptionOf returns the description of a lease of a, which takes the hold over. A hold that may
// not be kept must not show that it may, because others would wait for its recall. Requires h.mu.
func (h *hold) descriptionOf(a *acquisition) *description {
	if !a.keeps || h.keep != nil && h.keep.able || !h.locker.features.Notes {
		return a.who
	}
	return a.who.withoutKind()
}

// countHandOver counts a hand-over. The first one since the grant schedules a renewal for the
// end of the window, because the engine may have lost the grant. Requires h.mu.
func (h *hold) countHandOver(now boottime.Instant) {
	if h.grant.handOvers++; h.grant.handOvers > 1 || h.keep != nil {
		return
	}
	soon := h.grant.at.Add(h.locker.opts.HandOver).Add(h.shortSection(now))
	if from, _ := h.renewalTime(); soon < from {
		h.locker.keeper.add(h, soon, soon.Add(renewSoonest))
	}
}

// take returns a lease of a hold that was handed over or kept. If the hold cannot be used, take
// gives it up, keeps the turn and returns nil.
func (a *acquisition) take(h *hold, by Step) (*Lease, error) {
	l, ctx, name := a.locker, a.ctx, a.name // not a itself, which stays on the stack
	if le := a.newLease(h, by); h.take(le, a) {
		return le, nil
	}
	given := l.calls.startCleanUp(func() {
		err := h.release(ctx, nil)
		l.queue.clearHolder(name)
		h.hasLeft(err)
	})
	select { // otherwise a Try during the release would wait for this call's own hold
	case <-given:
		a.hasTurn = true
		return nil, nil
	case <-ctx.Done():
	}
	l.calls.startCleanUp(func() {
		<-given
		l.queue.pass(name)
	})
	return nil, a.waitState.waitError(name, context.Cause(ctx))
}

// takeKept is take for a call that found a kept hold.
func (a *acquisition) takeKept(h *hold) (*Lease, error) {
	if a.locker.calls.isClosing() {
		a.discard(h)
		return nil, ErrClosed
	}
	return a.take(h, StepTaken)
}

// discard ends a hold that was handed over to a call that no longer wants it.
func (a *acquisition) discard(h *hold) {
	l, ctx := a.locker, context.Background()
	if le := a.newLease(h, StepHandedOver); h.take(le, a) {
		l.calls.cleanUp(func() { le.Release(ctx) }) // its result is not needed: the lease expires
		return
	}
	l.calls.cleanUp(func() {
		err := h.release(ctx, nil)
		l.queue.pass(h.req.Resource)
		h.hasLeft(err)
	})
}
