package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// renewAll renews holds that are due, in one call where the driver can, and plans what
// comes next for each.
func (l *Locker) renewAll(holds []*hold) {
	batch, ok := l.driver.(driver.BatchRenewer)
	if ok && len(holds) > 1 {
		l.renewBatch(batch, holds)
		return
	}
	for _, h := range holds {
		h.calling.Lock()
		h.plan(h.extend(l.renewing, h.presentTTL()))
		h.calling.Unlock()
	}
}

// renewBatch renews holds in one call. It is bounded by the hold that has the least left.
func (l *Locker) renewBatch(batch driver.BatchRenewer, holds []*hold) {
	started := make([]*hold, 0, len(holds))
	renewals := make([]driver.Renewal, 0, len(holds))
	least := callBound
	sent := time.Now()
	for _, h := range holds {
		if !h.calling.TryLock() { // Extend is renewing it, and plans, or Release ends it
			continue
		}
		ttl := h.presentTTL()
		bound, err := h.startRenewal(sent, ttl)
		if err != nil {
			h.calling.Unlock()
			continue
		}
		least = min(least, bound)
		started = append(started, h)
		renewals = append(renewals, driver.Renewal{Claim: h.claim, TTL: ttl})
	}
	call := newBound(l.renewing, least)
	batch.RenewAll(call, renewals)
	call.end()
	for i, h := range started {
		r := renewals[i]
		h.plan(h.finishRenewal(l.renewing, sent, r.TTL, r.Grant, r.Err))
		h.calling.Unlock()
	}
}

// extend renews the hold for ttl and moves its deadline. After an unknown outcome the
// earlier of both deadlines stands. Requires h.calling.
func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	sent := time.Now()
	bound, err := h.startRenewal(sent, ttl)
	if err != nil {
		return err
	}
	call := newBound(ctx, bound)
	defer call.end()
	h.mu.Lock()
	h.cancelCall = call.end
	h.mu.Unlock()
	grant, err := h.claim.Renew(call, ttl)
	return h.finishRenewal(ctx, sent, ttl, grant, err)
}

// startRenewal returns how long a renewal for ttl may take, or why there is to be none.
func (h *hold) startRenewal(sent time.Time, ttl time.Duration) (bound time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over() {
		return 0, h.ended()
	}
	// A shorter TTL may count at the engine although its answer gets lost.
	if d := sent.Add(ttl - h.locker.drift(ttl)); d.Before(h.deadline) {
		h.deadline = d
		h.timer.Reset(time.Until(d))
	}
	// Half of what is left: a call that hangs leaves time for another.
	return min(time.Until(h.deadline)/2, callBound), nil
}

// finishRenewal acts on the engine's answer to a call made with ctx.
func (h *hold) finishRenewal(ctx context.Context, sent time.Time, ttl time.Duration, grant driver.Grant, err error) error {
	switch {
	case err != nil && ctx.Err() != nil: // its cause is the caller's and may match anything
		return fmt.Errorf("%w: %v", ctx.Err(), err)
	case errors.Is(err, ErrLost):
		h.lose(err)
		return err
	case err != nil:
		return err
	}
	return h.renewed(sent, ttl, grant)
}

// renewed moves the deadline after the engine's yes.
func (h *hold) renewed(sent time.Time, ttl time.Duration, grant driver.Grant) error {
	h.mu.Lock()
	h.cancelCall = nil
	if h.over() { // the deadline passed, or Release began, while the answer was on its way
		defer h.mu.Unlock()
		return h.ended()
	}
	if grant.Fence != h.fence {
		h.mu.Unlock()
		err := fmt.Errorf("%w: the engine renewed another grant", ErrLost)
		h.lose(err)
		return err
	}
	slack := time.Until(h.deadline)
	h.ttl, h.span, h.deadline = ttl, grant.TTL, sent.Add(grant.TTL-h.locker.drift(grant.TTL))
	h.timer.Reset(time.Until(h.deadline))
	token := h.token()
	h.mu.Unlock()
	h.locker.traceRenewed(h.req.Resource, token, slack)
	return nil
}

// renewSoonest is what short sections are shorter than: they end without a renewal.
const renewSoonest = 20 * time.Millisecond

// plan plans the next renewal of a hold that goes on, soon after an error.
func (h *hold) plan(err error) {
	h.mu.Lock()
	// A third of its length after the last one was sent, a little earlier at random so that
	// leases taken together do not stay together.
	sent := h.deadline.Add(h.locker.drift(h.span) - h.span)
	due := sent.Add(h.span/3 - jitter(h.span/30))
	// One that was granted some time before is renewed at once, but not when it is given up
	// at once.
	if soonest := time.Now().Add(min(time.Until(h.deadline)/8, renewSoonest)); due.Before(soonest) {
		due = soonest
	}
	if err != nil {
		due = time.Now().Add(retryIn(time.Until(h.deadline)))
	}
	goesOn := !h.over() && !h.noRenew
	h.mu.Unlock()
	if goesOn {
		h.locker.keeper.add(h, due)
	}
}

// retryIn leaves time for several more tries in what is left.
func retryIn(left time.Duration) time.Duration {
	return max(left/8, time.Millisecond)
}

func (h *hold) presentTTL() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ttl
}
