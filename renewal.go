package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// renewals are the state of a hold's renewals.
type renewals struct {
	never  bool          // NoRenew
	ttl    time.Duration // the TTL to request; guarded by calling and by mu: one suffices to read
	most   time.Duration // guarded by mu; the longest TTL that was requested, which an engine may keep after a shorter one
	failed bool          // guarded by calling; the last renewal in a batch failed
	cancel func()        // guarded by mu; cancels the renewal or the note in flight
	traced *Lease        // guarded by calling; the lease that the renewal in flight is traced for, or nil
	entry  entry         // guarded by keeper.mu
}

var errInUse = errors.New("another call to the engine is in flight")

// extend renews the hold for ttl and moves its deadline. After an unknown outcome the earlier of
// both deadlines stands. Requires h.calling.
func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	sent, now := h.locker.clock.Read()
	bound, err := h.startRenewal(sent, ttl)
	if err != nil {
		return err
	}
	h.traceRenews()
	call := h.newCall(ctx, now.Add(bound))
	defer call.end()
	grant, err := h.claim.Renew(call, ttl)
	return h.finishRenewal(ctx, sent, h.locker.clock.Now(), ttl, grant, err)
}

// newCall returns a context for a call to the claim. stopRenewals cancels it. Requires h.calling.
func (h *hold) newCall(ctx context.Context, deadline time.Time) *bound {
	call := newBound(ctx, deadline)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.renewals.cancel = call.end
	if h.over() { // stopRenewals ran just before
		call.end()
	}
	return call
}

// startRenewal returns how long a renewal for ttl may take, or why it must not begin.
func (h *hold) startRenewal(sent boottime.Instant, ttl time.Duration) (bound time.Duration, err error) {
	h.mu.Lock()
	if !h.over() && sent >= h.deadline.at { // the deadline has passed, but its timer has not fired yet
		h.mu.Unlock()
		h.expire()
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if h.over() {
		return 0, h.endError()
	}
	h.renewals.most = max(h.renewals.most, ttl)
	// The engine may apply a shorter TTL even if its answer is lost.
	if d := h.locker.deadlineOf(sent, ttl); d < h.deadline.at {
		h.deadline.span = ttl
		h.setDeadline(d, sent)
	}
	// Half of what is left: if this call hangs, there is time for another.
	bound = min(h.deadline.at.Sub(sent)/2, callBound)
	if h.keep != nil {
		h.keep.asked = h.grant.handOvers
		if h.phase == kept {
			bound = min(bound, max(h.window(), leastBound))
		}
	}
	return bound, nil
}

// finishRenewal applies the engine's answer to a call made with ctx.
func (h *hold) finishRenewal(ctx context.Context, sent, answered boottime.Instant, ttl time.Duration, grant driver.Grant, err error) error {
	ended := err != nil && isOver(ctx)
	if ended { // compare with ctx.Err: the cause belongs to the caller and may match anything
		err = fmt.Errorf("%w: %v", ctx.Err(), err)
	}
	h.mu.Lock()
	left, span, over := h.deadline.at.Sub(answered), h.deadline.span, h.over()
	if err == nil {
		err = h.renewed(sent, answered, ttl, grant)
	}
	h.mu.Unlock()
	h.traceRenewal(sent, answered, left, span, ended || over, err)
	if errors.Is(err, ErrLost) {
		h.lose(err)
	}
	return err
}

// renewed moves the deadline after a successful renewal. Requires h.mu.
func (h *hold) renewed(sent, answered boottime.Instant, ttl time.Duration, grant driver.Grant) error {
	h.renewals.cancel = nil
	switch {
	case h.over(): // the deadline passed, or Release began, before the answer arrived
		return h.endError()
	case grant.Fence != h.grant.fence:
		return fmt.Errorf("%w: the engine renewed another grant", ErrLost)
	}
	h.renewals.ttl, h.deadline.span = ttl, grant.TTL
	if h.keep != nil {
		h.keep.word, h.keep.known, h.keep.failed = sent, h.keep.asked, false
	}
	h.setDeadline(h.locker.deadlineOf(sent, grant.TTL), answered)
	return nil
}

// renewSoonest is the most that shortSection returns.
const renewSoonest = 20 * time.Millisecond

// plan schedules the next renewal, soon if the last one failed with err. If two plans are made
// concurrently, the later one stands, because it knows the current deadline.
func (h *hold) plan(now boottime.Instant, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over() || h.renewals.never {
		return
	}
	// A lease that was granted some time ago is renewed at once, but not if it is about to be
	// released.
	soonest := now.Add(h.shortSection(now))
	from, to := h.renewalTime()
	if err != nil {
		from, to = dueAfter(now, retryIn(h.deadline.at.Sub(now)))
	}
	if h.keep != nil && h.keep.able && (h.grant.handOvers > 0 || h.phase == kept) {
		h.planNextCheck(now, err)
		return
	}
	h.locker.keeper.add(h, max(from, soonest), max(to, soonest))
}

// shortSection returns how long a section may take without a renewal. Requires h.mu.
func (h *hold) shortSection(now boottime.Instant) time.Duration {
	return min(h.deadline.at.Sub(now)/8, renewSoonest)
}

// renewalTime returns when the next renewal is due: a third of the lease's length after the last
// one was sent. Requires h.mu.
func (h *hold) renewalTime() (from, to boottime.Instant) {
	return dueAfter(h.deadline.at.Add(h.locker.opts.drift(h.deadline.span)-h.deadline.span), h.deadline.span/3)
}

// dueAfter returns when a renewal is due a pause after last: at to, or as early as from, so that it
// can share a group.
func dueAfter(last boottime.Instant, pause time.Duration) (from, to boottime.Instant) {
	return last.Add(pause - pause/10), last.Add(pause)
}

// retryIn returns a pause that leaves enough of left for several more attempts.
func retryIn(left time.Duration) time.Duration {
	return max(left/8, time.Millisecond)
}
