package leasehold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/several"
)

// keeping is the part of a hold that concerns keeping it without a lease, see Options.Keep. All
// fields are guarded by the hold's mutex. A hold that may not be kept has none.
//
// A kept hold has the turn. Only one goroutine at a time may take it or give it back: the one that
// removed it from the localQueue, by take, enter or reclaim, or the Release that has not yet
// offered it there.
type keeping struct {
	able    bool             // the hold may still be kept
	word    boottime.Instant // when the call was sent that the engine last agreed to: its last confirmation
	asked   uint64           // number of hand-overs when the call in flight was sent
	known   uint64           // number of hand-overs at word
	planned boottime.Instant // when the keeper will check the hold at the latest; 0: it will not
	idle    bool             // the last check found the hold unused
	failed  bool             // the last renewal failed
	lease   *Lease           // the lease before, for its Trace; nil: keeping has not begun
	since   boottime.Instant
}

// leastBound is the least time limit of a renewal that confirms a kept hold, however short the
// window is.
const leastBound = 100 * time.Millisecond

// minKeep is the least of Options.Keep. Confirmations come twice in that time.
const minKeep = 10 * time.Millisecond

// keepable reports whether a lease that is acquired like this may be kept. Of one that is resumed,
// another process may know the owner.
func (r *request) keepable() bool {
	return r.mode == driver.Exclusive && !r.noRenew && r.atLeast == 0 && r.maxHold == 0 && !r.yields && !r.leads && !r.resumes
}

// window returns how long after the engine's last confirmation a call may take the hold. At least
// half of the TTL must be left. Requires h.mu.
func (h *hold) window() time.Duration { return min(h.locker.opts.Keep, h.deadline.span/2) }

// isFresh reports whether the hold may be kept. Requires h.mu.
func (h *hold) isFresh(now boottime.Instant) bool { return !h.recalled && h.isConfirmed(now) }

// isConfirmed reports whether the engine's last confirmation is recent enough for another call to
// take the hold. Requires h.mu.
func (h *hold) isConfirmed(now boottime.Instant) bool {
	return h.keep != nil && h.keep.able && !h.over() && h.holders.hasTurn &&
		h.grant.handOvers < maxHandOvers &&
		now.Sub(h.keep.word) < h.window()
}

// canTakeKept reports whether a call may take the kept hold. If the hold was recalled after the
// call removed it from the localQueue, it may still be taken within the limits of a hand-over.
// Requires h.mu.
func (h *hold) canTakeKept(now boottime.Instant, a *acquisition) bool {
	w := a.turnWaiter()
	return h.isConfirmed(now) && h.suits(&w) && (!h.recalled || h.canHandOver(now))
}

// canKeep reports whether the hold, whose last lease is being released, is to be kept. A call in
// flight is the keeper's: a call of a lease begins with neverKeep. Requires h.mu.
func (h *hold) canKeep(now boottime.Instant) bool {
	return h.isFresh(now) && !h.locker.calls.isClosing()
}

// neverKeep forbids keeping the hold, because others may act on the grant, or because it is not
// what the next call would be granted. A hold that is kept is given back.
func (h *hold) neverKeep() {
	if h.keep == nil {
		return
	}
	h.mu.Lock()
	h.keep.able = false
	gone := h.phase == kept && h.reclaim()
	h.mu.Unlock()
	if gone {
		h.giveBack()
	}
}

// offer offers a hold that is kept, and whose last lease was le, to the first waiter or the next
// call. If the Locker was closed meanwhile, it releases the hold.
func (h *hold) offer(le *Lease) error {
	h.mu.Lock()
	if h.locker.opts.Trace != nil {
		h.keep.lease, h.keep.since = le, h.locker.clock.Now()
		h.traceKeep(le, StepBegun, nil)
	}
	h.mu.Unlock()
	offered := h.locker.queue.offer(h.req.Resource, h)
	h.mu.Lock()
	// If the hold was lost or recalled before the offer, or its window ended, nobody could reclaim it then.
	gone := offered && !h.isFresh(h.locker.clock.Now()) && h.reclaim()
	if !offered {
		h.leave()
		le.ending = true
	}
	h.mu.Unlock()
	switch {
	case gone:
		h.giveBack()
	case !offered:
		return le.finishRelease(h.endKeeping())
	}
	return nil
}

// reclaim takes a kept hold out of the localQueue, to give it back. It reports false if a call has
// just taken it. Requires h.mu.
func (h *hold) reclaim() bool {
	if !h.locker.queue.reclaim(h.req.Resource, h) {
		return false
	}
	h.transition(onRelease)
	return true
}

// leave begins to give back a hold that has the turn. Calls that do not wait then wait for its end
// instead of being refused. Requires h.mu.
func (h *hold) leave() {
	h.transition(onRelease)
	h.locker.queue.leaving(h.req.Resource)
}

// giveBack releases a hold that was reclaimed, in the background, and passes the turn on.
func (h *hold) giveBack() {
	h.locker.calls.startCleanUp(func() { h.endKeeping() }) // its result is not needed: the grant expires
}

// endKeeping releases a hold that was kept at the engine, and passes the turn on.
func (h *hold) endKeeping() error {
	err := h.release(context.Background(), nil)
	h.passTurn()
	h.hasLeft(err)
	return err
}

// hasLeft traces that a hold which was kept has been given back. err is the result of its release.
func (h *hold) hasLeft(err error) {
	if h.keep == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s, cause := StepGivenBack, cmp.Or(h.cause, err)
	switch {
	case errors.Is(cause, ErrEvicted):
		s = StepEvicted
	case errors.Is(cause, ErrLost):
		s = StepLost
	case cause != nil:
		s = StepUnknown
	}
	h.stopKeeping(s, cause)
}

// stopKeeping traces how keeping ended, if it had begun. Requires h.mu.
func (h *hold) stopKeeping(s Step, err error) {
	le := h.keep.lease
	h.keep.lease = nil
	h.traceKeep(le, s, err)
}

// check is called when the keeper's schedule reaches h. It reports whether to renew it now. A hold
// that was used since the engine's last confirmation is renewed, so that it can be used further. A
// hold that was not used is given back at the end of the window: check adds it to unused.
func (h *hold) check(now boottime.Instant, unused *[]*hold) bool {
	if h.keep == nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keep.planned == 0 {
		return true
	}
	h.keep.planned = 0
	used, end := h.grant.handOvers != h.keep.known, h.keep.word.Add(h.window())
	switch {
	case h.phase == kept && now >= end && (!used || h.keep.failed):
		if h.reclaim() {
			*unused = append(*unused, h)
		}
		return false
	case used || !h.keep.able || h.over():
		return true
	case h.phase == kept:
		h.keep.idle = true
		h.planCheck(end)
		return false
	}
	from, to := h.renewalTime()
	if from > now {
		h.locker.keeper.add(h, from, to)
	}
	return from <= now
}

// planCheck schedules a check of the hold at the given time. Requires h.mu.
func (h *hold) planCheck(at boottime.Instant) {
	h.keep.planned = at.Add(h.window() / 20)
	h.locker.keeper.add(h, at, h.keep.planned)
}

// planUse plans the next check of a hold that is about to be kept, or was taken. Requires h.mu.
func (h *hold) planUse(now boottime.Instant) {
	end := h.keep.word.Add(h.window())
	switch {
	case h.keep.planned == 0:
		h.planCheck(max(now, h.keep.word.Add(h.window()/2)))
	case h.phase == kept && h.keep.planned > end.Add(h.window()/20): // a renewal failed while the hold was used
		h.planCheck(end)
	case h.keep.idle && h.phase != kept:
		h.planCheck(now)
	default:
		return
	}
	h.keep.idle = false
}

// planNextCheck plans the next check after a renewal that returned err. If the hold is not
// confirmed in time, the check gives it back or, if it is in use, renews it as any other. Only a
// kept hold is in a hurry to be confirmed. Requires h.mu.
func (h *hold) planNextCheck(now boottime.Instant, err error) {
	at := h.keep.word.Add(h.window() / 2)
	if err != nil {
		h.keep.failed = true
		pause := retryIn(h.deadline.at.Sub(now))
		if h.phase == kept {
			pause = min(pause, h.window()/4)
		}
		at = now.Add(pause)
	}
	h.keep.idle = false
	h.planCheck(max(at, now))
}

// giveBack releases the unused holds in the background.
func (k *keeper) giveBack(unused []*hold) {
	if len(unused) > 0 {
		unused[0].locker.calls.startCleanUp(func() { giveBackAll(unused) })
	}
}

// giveBackAll releases kept holds, a few at a time, and returns when all calls have ended. Those
// that hang delay no others.
func giveBackAll(holds []*hold) {
	several.Each(context.Background(), len(holds), maxWorkers, several.Slow, func(i int) { holds[i].endKeeping() })
}

// keptElsewhere returns the refusal of a call that does not wait, if another process may merely
// keep the lease.
func (a *acquisition) keptElsewhere(err error) *BusyError {
	if err == nil || a.waits || !a.locker.features.Tells {
		return nil
	}
	refusal, _ := errors.AsType[*BusyError](err)
	if refusal == nil || refusal.Holder.Details().Kind != HolderKeeps {
		return nil
	}
	return refusal
}

// patience returns how long to wait for another process to give back a lease that it keeps: about
// two round trips.
func (a *acquisition) patience() time.Duration {
	patience := min(max(4*a.locker.clock.Now().Sub(a.sent), 10*time.Millisecond), time.Second)
	if !a.locker.features.Recalls { // the other process learns of us with its next renewal
		patience += 250 * time.Millisecond
	}
	return patience
}

// recallKeeper contends once more, with a place in the queue, so that another process gives back
// the lease if it merely keeps it. If the lease is in use, recallKeeper returns the refusal.
func (a *acquisition) recallKeeper(refusal *BusyError) error {
	a.waits, a.recalls = true, true
	if err := a.newHold(a.locker.owners.next()); err != nil {
		return err
	}
	a.contending = contending{}
	a.waitState.refused(refusal)
	return a.contend()
}

// giveBackKept releases all kept holds. From then on, no hold can be kept.
func (l *Locker) giveBackKept() {
	var all []*hold
	for _, h := range l.queue.close() {
		h.mu.Lock()
		if h.reclaim() {
			all = append(all, h)
		}
		h.mu.Unlock()
	}
	giveBackAll(all)
}

// keepsKind sets the kind that tells other processes that the lease may be kept. It reports false
// if the details have another kind, or no room.
func keepsKind(said *details.Details) bool {
	keeps := *said
	keeps.Kind = HolderKeeps
	if said.Kind != "" || len(keeps.Note()) > driver.MaxNote {
		return false
	}
	*said = keeps
	return true
}

// prepareKeep checks Options.Keep.
func (l *Locker) prepareKeep() (err error) {
	switch d := l.opts.Keep; {
	case d == 0:
		return nil
	case d < minKeep:
		return fmt.Errorf("%w: Keep %v is below %v", ErrInvalidOption, d, minKeep)
	case l.opts.HandOver < 0:
		return fmt.Errorf("%w: Keep without HandOver", ErrInvalidOption)
	case !l.features.Keeps:
		return fmt.Errorf("option Keep is %w", ErrUnsupported)
	}
	if said := l.who.said; keepsKind(&said) {
		l.whoKeeps, err = newDescription(said, l.who.filled)
	}
	return err
}
