package leasehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/onecall"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// A hold is one grant of the engine with its claim, deadline and renewals. Leases are views of a
// hold: the first one, those that it was handed over to, and nested ones. Its state is a phase; see
// phase.go.
type hold struct {
	locker *Locker
	req    driver.Request
	claim  driver.Claim

	// calling serialises the calls to claim once the hold is held.
	calling onecall.Gate
	unknown error // guarded by calling; the error of the last Release if its outcome is unknown

	mu       sync.Mutex
	phase    phase    // guarded by mu; only transition changes it
	cause    error    // guarded by mu; why the hold was lost, matches ErrLost
	grant    grant    // guarded by mu
	deadline deadline // guarded by mu
	renewals renewals
	holders  holders      // guarded by mu
	who      *description // guarded by mu; describes the current lease
	shows    *description // guarded by mu; what the engine shows, nil if unknown
	untold   bool         // guarded by mu; after a hand-over: the engine does not show who yet
	yields   bool         // its claim was made with Yields
	recalled bool         // guarded by mu; the engine has said that others wait
	keep     *keeping     // nil: the hold may not be kept
}

// A grant is the part of a hold that the tokens of its leases derive from.
type grant struct {
	fence     uint64
	at        boottime.Instant // when the answer came
	handOvers uint64           // since the grant, or the constant resumed
}

// token returns the token of the current lease.
func (g *grant) token() uint64 {
	if g.fence == 0 {
		return 0
	}
	return g.fence + g.handOvers
}

// holders are the leases of a hold that is held, or of one that was lost.
type holders struct {
	leases    []*Lease         // those that are not released yet
	hasTurn   bool             // the hold has the turn in the localQueue, or passes it with a hand-over
	keepUntil boottime.Instant // the latest AtLeast of the leases that were released
	only      [1]*Lease        // storage for leases, because most holds have one
}

// add makes le a lease of the hold, held from since on. Requires h.mu.
func (h *hold) add(le *Lease, since boottime.Instant) {
	le.token, le.since = h.grant.token(), since
	h.holders.leases = append(h.holders.leases, le)
	if h.yields && (h.recalled || h.waitedForLocally()) {
		le.want()
	}
	h.watch(since)
}

// lose ends the hold for cause. Renewals call it, and so does the driver, as Request.Lost.
func (h *hold) lose(cause error) {
	if !errors.Is(cause, ErrLost) {
		cause = fmt.Errorf("%w: %w", ErrLost, cause)
	}
	h.loseIf(func() error { return cause })
}

// loseIf ends the hold, once, if why returns a cause. After Release has begun it does nothing. It
// calls why with h.mu held.
func (h *hold) loseIf(why func() error) {
	h.mu.Lock()
	was, cause := h.phase, why()
	if cause == nil || !h.transition(onLoss) {
		h.mu.Unlock()
		return
	}
	h.cause = cause
	leases := slices.Clone(h.holders.leases)
	// The turn passes on at once, because the holder may never call Release. During a hand-over the
	// waiter keeps the turn, and will see the cause. So will the call that takes a kept hold.
	gone := was == kept && h.reclaim()
	passes := h.holders.hasTurn && was != handing && was != kept
	if passes {
		h.holders.hasTurn = false
	}
	h.mu.Unlock()

	for _, le := range leases {
		le.cancel(cause)
	}
	h.unschedule()
	if passes {
		h.locker.queue.pass(h.req.Resource)
	}
	for _, le := range leases {
		le.traceLost(cause)
	}
	if gone {
		h.giveBack()
	}
}

// unschedule cancels the timers of a hold that is over.
func (h *hold) unschedule() {
	h.locker.keeper.remove(h)
	h.locker.deadlines.remove(h)
}

// describe returns the holder, for refusals of other calls of this process.
func (h *hold) describe() Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.locker.clock.Now()
	left := h.deadline.at.Add(h.locker.opts.drift(h.deadline.span)).Sub(now) // as the engine counts
	return Holder{
		Owner: driver.OwnerOf(h.req.Owner), Mode: h.req.Mode, Limit: h.req.Limit, Token: h.grant.token(),
		Held: now.Sub(h.grant.at), Left: left, TTL: h.deadline.span,
		Note: details.Text(h.who.note), note: h.who.note,
	}.later(0)
}

// lostCause returns why the hold was lost, or nil.
func (h *hold) lostCause() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// endError returns why a lease of the hold is over: the cause of the loss, or else ErrReleased.
// Requires h.mu.
func (h *hold) endError() error {
	if h.cause != nil {
		return h.cause
	}
	return ErrReleased
}

// release ends the hold at the engine. It repeats the call until the outcome is known, within a
// time limit of its own: it runs even if ctx has ended.
//
// After an unknown outcome, ErrLost does not make the outcome known, because the first call may
// have ended the hold. tried is the error of Try, if any. An engine that denied both calls is not
// asked again: without the right to take a lock there is nothing to give back.
func (h *hold) release(ctx context.Context, tried error) error {
	how, call := h.beginRelease(ctx)
	defer h.calling.End()
	defer call.end()
	return h.endRelease(call, how, tried, h.claim.Release(call, how))
}

// beginRelease begins a release. It returns the context of its calls, and how to end the hold:
// AtLeast may let it linger.
func (h *hold) beginRelease(ctx context.Context) (how driver.End, call *bound) {
	until := h.stopRenewals()
	_ = h.calling.Begin(context.Background()) // the call in flight is bounded; stopRenewals has cancelled a renewal
	keep := until.Sub(h.locker.clock.Now())
	return driver.End{Linger: max(keep, 0)}, newBound(withoutCancel(ctx), time.Now().Add(h.releaseBound()))
}

// releaseBound returns how long the release may take: as long as a call for the longest TTL that the
// engine may have applied.
func (h *hold) releaseBound() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return callBoundOf(h.renewals.most)
}

// endRelease repeats a release whose first call returned err, until the outcome is known.
func (h *hold) endRelease(call *bound, how driver.End, tried, err error) error {
	for tries := 0; ; tries++ {
		switch {
		case err == nil, waiting.Final(err), h.unknown == nil && errors.Is(err, ErrLost),
			errors.Is(err, ErrDenied) && errors.Is(tried, ErrDenied):
			return err
		case errors.Is(err, ErrLost):
			return h.unknown
		}
		h.unknown = err
		if _, err := waiting.Sleep(call, nil, nil, waiting.Backoff(tries, 10*time.Millisecond, time.Second)); err != nil {
			return h.unknown
		}
		err = h.claim.Release(call, how)
	}
}

// stopRenewals prevents further renewals and cancels the one in flight. It returns until when
// AtLeast keeps the hold.
func (h *hold) stopRenewals() (until boottime.Instant) {
	h.mu.Lock()
	h.transition(onRelease)
	cancel := h.renewals.cancel
	until = h.holders.keepUntil
	if h.phase == lost { // AtLeast ends with the TTL
		until = min(until, h.deadline.at.Add(h.locker.opts.drift(h.deadline.span)))
	}
	h.mu.Unlock()
	if cancel != nil { // without h.mu: the call's context may derive from this hold
		cancel() // its outcome no longer matters, and it must not delay us
	}
	h.unschedule()
	return until
}

// withoutCancel returns a context with ctx's values that never ends, for clean-ups and leases.
func withoutCancel(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// passTurn passes the turn on if the hold still has it.
func (h *hold) passTurn() {
	h.mu.Lock()
	had := h.holders.hasTurn
	h.holders.hasTurn = false
	h.mu.Unlock()
	h.locker.queue.passIf(had, h.req.Resource)
}
