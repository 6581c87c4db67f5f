package leasehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A hold is one grant of the engine and what keeps it: the claim, the deadline, the
// renewals. Leases are views of a hold: the first one, those it was handed over to, and
// nested ones.
//
// It goes from asking (no lease yet) to held, and from there once to released or lost.
type hold struct {
	locker  *Locker
	req     driver.Request
	claim   driver.Claim
	noRenew bool

	fence   uint64    // set by begin
	granted time.Time // set by begin

	// calling serialises the calls to claim once the hold is held.
	calling sync.Mutex
	unknown error // guarded by calling; of a release whose outcome is not known yet
	failed  bool  // guarded by calling; the last renewal in a batch did

	mu         sync.Mutex
	ttl        time.Duration // of renewals; guarded by calling and by mu: one suffices to read
	span       time.Duration // guarded by mu; of the last grant or renewal, may be less than ttl
	deadline   time.Time     // guarded by mu; nobody acts on the hold after it
	watched    bool          // guarded by mu; comeUp will be called, at the deadline or before
	leases     []*Lease      // guarded by mu; not released yet
	handOvers  uint64        // guarded by mu; since the grant, or resumed
	inTransit  bool          // guarded by mu; being handed over, no lease has it
	hasTurn    bool          // guarded by mu; it keeps the turn in the localQueue
	keepUntil  time.Time     // guarded by mu; AtLeast of its leases
	releasing  bool          // guarded by mu; no renewal may begin, none counts
	cause      error         // guarded by mu; why it was lost, matches ErrLost
	cancelCall func()        // guarded by mu; of the renewal or note in flight
	only       [1]*Lease     // room for leases: most holds have one

	renewal entry // guarded by keeper.mu
	watch   entry // guarded by deadlines.mu
}

// drift is what is kept back of a lease of length ttl.
func (l *Locker) drift(ttl time.Duration) time.Duration {
	return time.Duration(float64(ttl)*l.opts.Drift) + driftFloor
}

// begin makes the hold held by a grant whose call was sent at sent; keeps says that it
// keeps the turn in the localQueue.
func (h *hold) begin(sent time.Time, g driver.Grant, keeps bool) error {
	if g.Fence%driver.FenceStep != 0 {
		return fmt.Errorf("the engine's fence %d is no multiple of %d: %w", g.Fence, driver.FenceStep, driver.ErrCorrupt)
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil { // told through Request.Lost before the answer came
		return h.cause
	}
	h.fence, h.granted, h.hasTurn = g.Fence, now, keeps
	h.span = g.TTL
	h.setDeadline(sent.Add(g.TTL-h.locker.drift(g.TTL)), now)
	return nil
}

// setDeadline moves the deadline. Moved away, it needs no watch: the hold comes up at the
// former one, and is watched anew. Requires h.mu.
func (h *hold) setDeadline(deadline, now time.Time) {
	sooner := deadline.Before(h.deadline)
	h.deadline = deadline
	if sooner || !h.watched {
		h.watched = true
		h.locker.deadlines.watch(h, now)
	}
}

// comeUp is called by deadlines at a deadline that the hold had, or a little earlier, for one
// hold after the other: nothing that may hang is done with h.mu.
func (h *hold) comeUp(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watched = false
	switch {
	case h.over():
	case now.Before(h.deadline):
		h.setDeadline(h.deadline, now)
	default:
		go h.expire() // it runs hooks of traces
	}
}

// expire ends the hold if its deadline has passed.
func (h *hold) expire() {
	h.loseIf(func() bool { return time.Until(h.deadline) <= 0 }, errDeadline)
}

var errDeadline = fmt.Errorf("%w: deadline passed without a renewal", ErrLost)

// lose ends the hold for cause. The driver calls it as Request.Lost, the renewals as well.
func (h *hold) lose(cause error) {
	if !errors.Is(cause, ErrLost) {
		cause = fmt.Errorf("%w: %w", ErrLost, cause)
	}
	h.loseIf(func() bool { return true }, cause)
}

// loseIf ends the hold for cause, once, if it is still so; after Release has begun it does
// nothing. still is called with h.mu.
func (h *hold) loseIf(still func() bool, cause error) {
	h.mu.Lock()
	if h.cause != nil || h.releasing || !still() {
		h.mu.Unlock()
		return
	}
	h.cause = cause
	leases := slices.Clone(h.leases)
	// In transit, the waiter it was handed to keeps the turn and will see the cause.
	passes := h.hasTurn && !h.inTransit
	if passes {
		h.hasTurn = false
	}
	h.mu.Unlock()

	for _, le := range leases {
		le.cancel(cause)
	}
	h.locker.forget(h)
	if passes {
		h.locker.queue.pass(h.req.Resource)
	}
	for _, le := range leases {
		h.locker.traceLost(le, cause)
	}
}

// forget ends what is planned for a hold that is over.
func (l *Locker) forget(h *hold) {
	l.keeper.remove(h)
	l.deadlines.remove(h)
}

// token is the present lease's. Requires h.mu.
func (h *hold) token() uint64 {
	if h.fence == 0 {
		return 0
	}
	return h.fence + h.handOvers
}

// describe tells who holds it, for waiters of this process.
func (h *hold) describe() Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Holder{
		Owner: Owner(h.req.Owner), Mode: h.req.Mode, Limit: h.req.Limit, Token: h.token(), Note: h.req.Note,
		Held: time.Since(h.granted), Left: time.Until(h.deadline),
	}
}

// over reports whether nobody may act on the hold any more. Requires h.mu.
func (h *hold) over() bool { return h.cause != nil || h.releasing }

// lostFor returns the cause of a hold that was lost.
func (h *hold) lostFor() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// ended says why the hold is over. Requires h.mu.
func (h *hold) ended() error {
	if h.cause != nil {
		return h.cause
	}
	return ErrReleased
}

// fitToHandOver reports whether the hold may go to the next waiter without the engine:
// exclusive, renewed, with half of its length left, inside the window since the grant.
// Requires h.mu.
func (h *hold) fitToHandOver() bool {
	return h.hasTurn && !h.over() && !h.noRenew && h.keepUntil.IsZero() &&
		h.handOvers < maxHandOvers &&
		time.Since(h.granted) < h.locker.opts.HandOver &&
		time.Until(h.deadline) > min(h.ttl, h.span)/2
}

// countHandOver has the first hand-over since the grant followed by a renewal, as soon as the
// window is over: who has the lease then may have begun after the engine lost it. Requires h.mu.
func (h *hold) countHandOver(now time.Time) {
	if h.handOvers++; h.handOvers > 1 {
		return
	}
	soon := h.granted.Add(h.locker.opts.HandOver + h.shortSection(now))
	if from, _ := h.renewalTime(); soon.Before(from) {
		h.locker.keeper.add(h, soon, soon.Add(renewSoonest))
	}
}

// discard ends a hold that was handed over to a waiter who no longer wants it.
func (h *hold) discard() {
	ctx, now := context.Background(), time.Now()
	if lease := h.adopt(ctx, &request{}, now); lease != nil {
		h.locker.traceHandedOver(lease, now)
		h.locker.tidy(func() { lease.Release(ctx) }) // its answer matters to nobody: it ends by itself
		return
	}
	h.locker.abandon(context.Background(), h, func() { h.locker.queue.pass(h.req.Resource) })
}

// giveUp ends the hold at the engine: by Release, or by Linger while AtLeast keeps it.
func (h *hold) giveUp(ctx context.Context) error {
	h.mu.Lock()
	h.releasing = true
	cancel := h.cancelCall
	keep := time.Until(h.keepUntil)
	h.mu.Unlock()
	if cancel != nil { // without h.mu: a context that the call was given may be of this hold
		cancel() // its outcome no longer matters, and it must not delay us
	}
	h.locker.forget(h)

	h.calling.Lock()
	defer h.calling.Unlock()
	return h.end(ctx, keep)
}

// end asks the engine to end the grant until it has said yes or no, within a bound of
// its own: it runs although ctx has ended. A no after an unknown outcome stays unknown:
// the first call may have been the one that ended it.
func (h *hold) end(ctx context.Context, keep time.Duration) error {
	call := newBound(unending(ctx), time.Now().Add(min(h.req.TTL, callBound)))
	defer call.end()
	unknown := h.unknown
	defer func() { h.unknown = unknown }()
	for tries := 0; ; tries++ {
		err := h.endOnce(call, keep)
		switch {
		case err == nil, final(err), unknown == nil && errors.Is(err, ErrLost):
			return err
		case errors.Is(err, ErrLost):
			return unknown
		}
		unknown = err
		if _, err := sleep(call, nil, nil, backoff(tries, 10*time.Millisecond, time.Second)); err != nil {
			return unknown
		}
	}
}

func (h *hold) endOnce(ctx context.Context, keep time.Duration) error {
	if keep > 0 {
		return h.claim.(driver.Lingerer).Linger(ctx, keep)
	}
	return h.claim.Release(ctx)
}

// unending is ctx without its end, for clean-ups and leases.
func unending(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// giveTurn passes the turn on if the hold still keeps it.
func (h *hold) giveTurn() {
	h.mu.Lock()
	had := h.hasTurn
	h.hasTurn = false
	h.mu.Unlock()
	if had {
		h.locker.queue.pass(h.req.Resource)
	}
}
