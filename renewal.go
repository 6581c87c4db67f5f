package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// renewAll renews holds that are due, in few calls where the driver can, and plans what
// comes next for each.
func (l *Locker) renewAll(due []*entry) {
	d, ok := l.driver.(driver.BatchRenewer)
	if ok {
		l.renewBatches(d, due)
		return
	}
	for _, e := range due {
		h := e.Value
		if !h.lockForRenewal(time.Now()) {
			continue
		}
		err := h.extend(l.renewing, h.ttl)
		h.afterRenewal(time.Now(), err)
	}
}

// afterRenewal plans what comes next and unlocks h.calling.
func (h *hold) afterRenewal(answered time.Time, err error) {
	h.plan(answered, err)
	h.calling.Unlock()
	h.locker.traceRenewFailed(h, answered, err)
}

// A batch is holds that are renewed in one call. Those whose last renewal failed are apart
// from the others, and those that can wait for an answer from those that cannot wait half as
// long: a call lasts as long as its slowest, and no longer than its most urgent.
type batch struct {
	kind
	holds    []*hold
	renewals []driver.Renewal
	sent     time.Time
	least    time.Duration // how long the call may take
}

type kind struct {
	failed  bool
	urgency int
}

// maxApart bounds the calls in flight that renew what failed the last time.
const maxApart = maxWorkers

// renewBatches renews holds in one call for each kind, all at once. It does not wait for what
// failed the last time, which may hang again.
func (l *Locker) renewBatches(d driver.BatchRenewer, due []*entry) {
	var calls sync.WaitGroup
	batches := batchesOf(due)
	for i, b := range batches {
		switch {
		case b.failed:
			l.renewApart(d, b)
		case i < len(batches)-1:
			calls.Go(func() { b.renew(l.renewing, d) })
		default:
			b.renew(l.renewing, d)
		}
	}
	calls.Wait()
}

// renewApart renews b beside the workers, or puts it off when that is done too often at once.
func (l *Locker) renewApart(d driver.BatchRenewer, b *batch) {
	select {
	case l.keeper.apart <- struct{}{}:
	default:
		for _, h := range b.holds {
			h.plan(time.Now(), errInUse)
			h.calling.Unlock()
		}
		return
	}
	l.keeper.running.Go(func() { // under a worker, which close waits for
		b.renew(l.renewing, d)
		<-l.keeper.apart
	})
}

// batchesOf starts the renewals of what is due.
func batchesOf(due []*entry) (all []*batch) {
	sent := time.Now()
	for _, e := range due {
		h := e.Value
		if !h.lockForRenewal(sent) {
			continue
		}
		bound, err := h.startRenewal(sent, h.ttl)
		if err != nil {
			h.calling.Unlock()
			continue
		}
		k := kind{h.failed, bits.Len64(uint64(bound))}
		i := slices.IndexFunc(all, func(b *batch) bool { return b.kind == k })
		if i < 0 {
			i, all = len(all), append(all, &batch{kind: k, sent: sent, least: bound})
		}
		b := all[i]
		b.least = min(b.least, bound)
		b.holds = append(b.holds, h)
		b.renewals = append(b.renewals, driver.Renewal{Claim: h.claim, TTL: h.ttl})
	}
	return all
}

func (b *batch) renew(ctx context.Context, d driver.BatchRenewer) {
	least := b.least
	if !b.failed && len(b.holds) > 1 { // if it hangs, most of it may not next time
		least /= 2
	}
	if by := b.sent.Add(least); len(b.holds) == 1 {
		h, r := b.holds[0], &b.renewals[0]
		call := h.newCall(ctx, by)
		r.Grant, r.Err = h.claim.Renew(call, r.TTL)
		call.end()
	} else {
		call := newBound(ctx, by)
		d.RenewAll(call, b.renewals)
		call.end()
	}
	answered := time.Now()
	for i, h := range b.holds {
		r := &b.renewals[i]
		err := h.finishRenewal(ctx, b.sent, answered, r.TTL, r.Grant, r.Err)
		h.failed = err != nil
		h.afterRenewal(answered, err)
	}
}

// lockForRenewal locks h.calling. While Extend or SetNote has it, for as long as the engine
// takes, no worker waits: the renewal is put off a little.
func (h *hold) lockForRenewal(now time.Time) bool {
	if h.calling.TryLock() {
		return true
	}
	h.plan(now, errInUse)
	return false
}

// lockFor locks h.calling for a call made with ctx. It does not wait longer than that: the
// renewal in flight may be one of many in a call that hangs.
func (h *hold) lockFor(ctx context.Context) error {
	if h.calling.TryLock() {
		return nil
	}
	locked := make(chan struct{})
	go func() {
		h.calling.Lock()
		select {
		case locked <- struct{}{}:
		case <-ctx.Done():
			h.calling.Unlock()
		}
	}()
	select {
	case <-locked:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errInUse = errors.New("another call to the engine is in flight")

// extend renews the hold for ttl and moves its deadline. After an unknown outcome the
// earlier of both deadlines stands. Requires h.calling.
func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	sent := time.Now()
	bound, err := h.startRenewal(sent, ttl)
	if err != nil {
		return err
	}
	call := h.newCall(ctx, sent.Add(bound))
	defer call.end()
	grant, err := h.claim.Renew(call, ttl)
	return h.finishRenewal(ctx, sent, time.Now(), ttl, grant, err)
}

// newCall is a call's context that giveUp ends. Requires h.calling.
func (h *hold) newCall(ctx context.Context, deadline time.Time) *bound {
	call := newBound(ctx, deadline)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancelCall = call.end
	if h.over() { // giveUp has just looked
		call.end()
	}
	return call
}

// startRenewal returns how long a renewal for ttl may take, or why there is to be none.
func (h *hold) startRenewal(sent time.Time, ttl time.Duration) (bound time.Duration, err error) {
	h.mu.Lock()
	if !h.over() && !sent.Before(h.deadline) { // and nobody has come to tell yet
		h.mu.Unlock()
		h.expire()
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if h.over() {
		return 0, h.ended()
	}
	// A shorter TTL may count at the engine although its answer gets lost.
	if d := sent.Add(ttl - h.locker.drift(ttl)); d.Before(h.deadline) {
		h.setDeadline(d, sent)
	}
	// Half of what is left: a call that hangs leaves time for another.
	return min(h.deadline.Sub(sent)/2, callBound), nil
}

// finishRenewal acts on the engine's answer to a call made with ctx.
func (h *hold) finishRenewal(ctx context.Context, sent, answered time.Time, ttl time.Duration, grant driver.Grant, err error) error {
	switch {
	case err == nil:
		return h.renewed(sent, answered, ttl, grant)
	case ctx.Err() != nil: // its cause is the caller's and may match anything
		return fmt.Errorf("%w: %v", ctx.Err(), err)
	case errors.Is(err, ErrLost):
		h.lose(err)
	}
	return err
}

// renewed moves the deadline after the engine's yes.
func (h *hold) renewed(sent, answered time.Time, ttl time.Duration, grant driver.Grant) error {
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
	slack := h.deadline.Sub(answered)
	h.ttl, h.span = ttl, grant.TTL
	h.setDeadline(sent.Add(grant.TTL-h.locker.drift(grant.TTL)), answered)
	token := h.token()
	h.mu.Unlock()
	h.locker.traceRenewed(h.req.Resource, token, slack)
	return nil
}

// renewSoonest is what short sections are shorter than: they end without a renewal.
const renewSoonest = 20 * time.Millisecond

// plan plans the next renewal of a hold that goes on, soon after an error. The last of two
// plans that are made at once holds, and knows the deadline that then counts.
func (h *hold) plan(now time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over() || h.noRenew {
		return
	}
	// One that was granted some time before is renewed at once, but not when it is given up
	// at once.
	soonest := now.Add(h.shortSection(now))
	from, to := h.renewalTime()
	if err != nil {
		from, to = dueAfter(now, retryIn(h.deadline.Sub(now)))
	}
	h.locker.keeper.add(h, later(from, soonest), later(to, soonest))
}

// shortSection is what one that ends without a renewal is shorter than. Requires h.mu.
func (h *hold) shortSection(now time.Time) time.Duration {
	return min(h.deadline.Sub(now)/8, renewSoonest)
}

// renewalTime is when the next renewal is due: a third of the hold's length after the last one
// was sent. Requires h.mu.
func (h *hold) renewalTime() (from, to time.Time) {
	return dueAfter(h.deadline.Add(h.locker.drift(h.span)-h.span), h.span/3)
}

// dueAfter is pause after last, or a little earlier together with others.
func dueAfter(last time.Time, pause time.Duration) (from, to time.Time) {
	return last.Add(pause - pause/10), last.Add(pause)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// retryIn leaves time for several more tries in what is left.
func retryIn(left time.Duration) time.Duration {
	return max(left/8, time.Millisecond)
}
