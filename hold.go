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

// A hold is one grant of the engine and what keeps it: the claim, the deadline, the
// renewals. Leases are views of a hold: the first one, those it was handed over to, and
// nested ones. It is in one phase (phase.go).
type hold struct {
	locker *Locker
	req    driver.Request
	claim  driver.Claim

	// calling serialises the calls to claim once the hold is held.
	calling onecall.Gate
	unknown error // guarded by calling; of a hold that is leaving: the outcome is not known yet

	mu       sync.Mutex
	phase    phase    // guarded by mu; changed by on
	cause    error    // guarded by mu; why it is lost, matches ErrLost
	grant    grant    // guarded by mu
	deadline deadline // guarded by mu
	renewals renewals
	holders  holders      // guarded by mu
	who      *description // guarded by mu; of the present lease
	shows    *description // guarded by mu; what the engine shows; nil: unknown
	untold   bool         // guarded by mu; who is of a lease that the hold was handed over to, and not what the engine shows
}

// A grant is what a hold's token is made of.
type grant struct {
	fence     uint64
	at        boottime.Instant // when the answer came
	handOvers uint64           // since then, or resumed
}

// token is the present lease's.
func (g *grant) token() uint64 {
	if g.fence == 0 {
		return 0
	}
	return g.fence + g.handOvers
}

// holders are who has a hold that is held, or had one that is lost.
type holders struct {
	leases    []*Lease         // not released yet
	hasTurn   bool             // the hold keeps the turn in the localQueue, also while it is handed over
	keepUntil boottime.Instant // AtLeast of its leases
	only      [1]*Lease        // room for leases: most holds have one
}

// add lets le have the hold, for atLeast. Requires h.mu.
func (h *hold) add(le *Lease, atLeast time.Duration) {
	le.token = h.grant.token()
	if keep := le.since.Add(atLeast); atLeast > 0 && keep > h.holders.keepUntil {
		h.holders.keepUntil = keep
	}
	h.holders.leases = append(h.holders.leases, le)
	h.watch(le.since)
}

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
	was := h.phase
	if !still() || !h.on(onLoss) {
		h.mu.Unlock()
		return
	}
	h.cause = cause
	leases := slices.Clone(h.holders.leases)
	// The waiter that it is handed to keeps the turn, and will see the cause.
	passes := h.holders.hasTurn && was != handing
	if passes {
		h.holders.hasTurn = false
	}
	h.mu.Unlock()

	for _, le := range leases {
		le.cancel(cause)
	}
	h.forget()
	if passes {
		h.locker.queue.pass(h.req.Resource)
	}
	for _, le := range leases {
		le.traceLost(cause)
	}
}

// forget ends what is planned for a hold that is over.
func (h *hold) forget() {
	h.locker.keeper.remove(h)
	h.locker.deadlines.remove(h)
}

// describe tells who holds it, for waiters of this process.
func (h *hold) describe() Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.locker.clock.Now()
	return Holder{
		Owner: driver.OwnerOf(h.req.Owner), Mode: h.req.Mode, Limit: h.req.Limit, Token: h.grant.token(),
		Held: now.Sub(h.grant.at), Left: h.deadline.at.Sub(now),
		Note: details.Text(h.who.note), note: h.who.note,
	}
}

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

// release ends the hold at the engine. It asks until the engine has said yes or no, within a
// bound of its own: it runs although ctx has ended. A no after an unknown outcome stays
// unknown: the first call may have been the one that ended it. tried is what Try came to, if that was an error: an
// engine that denies both is not asked again. Without the right to take a lock there is nothing to give back.
func (h *hold) release(ctx context.Context, tried error) error {
	keep := h.leave()
	_ = h.calling.Begin(context.Background()) // the call in flight is bounded, and leave has cut it short where it is ours alone
	defer h.calling.End()
	call := newBound(unending(ctx), time.Now().Add(min(h.req.TTL, callBound)))
	defer call.end()
	for tries := 0; ; tries++ {
		err := h.claim.Release(call, driver.End{Linger: max(keep, 0)}) // it is left to nobody
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
	}
}

// leave has no renewal begin any more, and ends the call in flight. It returns how long AtLeast
// keeps the hold.
func (h *hold) leave() (keep time.Duration) {
	h.mu.Lock()
	h.on(onRelease)
	cancel := h.renewals.cancel
	keep = h.holders.keepUntil.Sub(h.locker.clock.Now())
	h.mu.Unlock()
	if cancel != nil { // without h.mu: a context that the call was given may be of this hold
		cancel() // its outcome no longer matters, and it must not delay us
	}
	h.forget()
	return keep
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
	had := h.holders.hasTurn
	h.holders.hasTurn = false
	h.mu.Unlock()
	h.locker.queue.passIf(had, h.req.Resource)
}
