package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// renewals are how a hold is renewed.
type renewals struct {
	never  bool          // NoRenew
	ttl    time.Duration // that they ask for; guarded by calling and by mu: one suffices to read
	failed bool          // guarded by calling; the last one in a batch did
	cancel func()        // guarded by mu; ends the renewal or note in flight
	told   *Lease        // guarded by calling; that the one in flight is for, if a Trace is told
	entry  entry         // guarded by keeper.mu
}

// callForRenewal begins a call to the claim. While one by Extend or SetNote is in flight, for as
// long as the engine takes, no worker waits: the renewal is put off a little.
func (h *hold) callForRenewal(now boottime.Instant) bool {
	if h.calling.TryBegin() {
		return true
	}
	h.plan(now, errInUse)
	return false
}

var errInUse = errors.New("another call to the engine is in flight")

// extend renews the hold for ttl and moves its deadline. After an unknown outcome the
// earlier of both deadlines stands. Requires h.calling.
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

// newCall is a call's context that leave ends. Requires h.calling.
func (h *hold) newCall(ctx context.Context, deadline time.Time) *bound {
	call := newBound(ctx, deadline)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.renewals.cancel = call.end
	if h.over() { // leave has just looked
		call.end()
	}
	return call
}

// startRenewal returns how long a renewal for ttl may take, or why there is to be none.
func (h *hold) startRenewal(sent boottime.Instant, ttl time.Duration) (bound time.Duration, err error) {
	h.mu.Lock()
	if !h.over() && sent >= h.deadline.at { // and nobody has come to tell yet
		h.mu.Unlock()
		h.expire()
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if h.over() {
		return 0, h.ended()
	}
	// A shorter TTL may count at the engine although its answer gets lost.
	if d := h.locker.deadlineOf(sent, ttl); d < h.deadline.at {
		h.setDeadline(d, sent)
	}
	// Half of what is left: a call that hangs leaves time for another.
	return min(h.deadline.at.Sub(sent)/2, callBound), nil
}

// finishRenewal acts on the engine's answer to a call made with ctx.
func (h *hold) finishRenewal(ctx context.Context, sent, answered boottime.Instant, ttl time.Duration, grant driver.Grant, err error) error {
	ended := err != nil && ctx.Err() != nil
	if ended { // its cause is the caller's and may match anything
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

// renewed moves the deadline after the engine's yes. Requires h.mu.
func (h *hold) renewed(sent, answered boottime.Instant, ttl time.Duration, grant driver.Grant) error {
	h.renewals.cancel = nil
	switch {
	case h.over(): // the deadline passed, or Release began, while the answer was on its way
		return h.ended()
	case grant.Fence != h.grant.fence:
		return fmt.Errorf("%w: the engine renewed another grant", ErrLost)
	}
	h.renewals.ttl, h.deadline.span = ttl, grant.TTL
	h.setDeadline(h.locker.deadlineOf(sent, grant.TTL), answered)
	return nil
}

// renewSoonest is what short sections are shorter than: they end without a renewal.
const renewSoonest = 20 * time.Millisecond

// plan plans the next renewal of a hold that goes on, soon after an error. The last of two
// plans that are made at once holds, and knows the deadline that then counts.
func (h *hold) plan(now boottime.Instant, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over() || h.renewals.never {
		return
	}
	// One that was granted some time before is renewed at once, but not when it is given up
	// at once.
	soonest := now.Add(h.shortSection(now))
	from, to := h.renewalTime()
	if err != nil {
		from, to = dueAfter(now, retryIn(h.deadline.at.Sub(now)))
	}
	h.locker.keeper.add(h, max(from, soonest), max(to, soonest))
}

// shortSection is what one that ends without a renewal is shorter than. Requires h.mu.
func (h *hold) shortSection(now boottime.Instant) time.Duration {
	return min(h.deadline.at.Sub(now)/8, renewSoonest)
}

// renewalTime is when the next renewal is due: a third of the hold's length after the last one
// was sent. Requires h.mu.
func (h *hold) renewalTime() (from, to boottime.Instant) {
	return dueAfter(h.deadline.at.Add(h.locker.opts.drift(h.deadline.span)-h.deadline.span), h.deadline.span/3)
}

// dueAfter is pause after last, or a little earlier together with others.
func dueAfter(last boottime.Instant, pause time.Duration) (from, to boottime.Instant) {
	return last.Add(pause - pause/10), last.Add(pause)
}

// retryIn leaves time for several more tries in what is left.
func retryIn(left time.Duration) time.Duration {
	return max(left/8, time.Millisecond)
}
