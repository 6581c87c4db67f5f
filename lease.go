package leasehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A Lease is the right to act on a resource until its deadline. It is safe for
// concurrent use.
type Lease struct {
	hold     *hold
	outer    *Lease           // the lease of the context it was acquired with, on any resource; or nil
	token    uint64           // set by hold.add, before the caller has the lease
	since    boottime.Instant // likewise
	maxHold  time.Duration    // the longest hold; 0: no limit
	atLeast  time.Duration    // the shortest hold of the resource
	longer   time.Duration    // the TTL that AcquireAll requests once it has all leases; 0: le has it
	ctx      context.Context
	cancel   context.CancelCauseFunc
	wanted   *wanted          // nil: without Yields
	released bool             // guarded by hold.mu
	ending   bool             // guarded by hold.mu; it is released, and the outcome is not known yet
	unused   bool             // guarded by hold.mu; AcquireAll gives it up: nobody has acted under it
	ended    chan struct{}    // guarded by hold.mu; closed when ending ends; nil: nobody waits for that
	until    boottime.Instant // guarded by hold.mu; the deadline when it was released
	traced   traced
}

// newLease returns a lease for the caller, which hold.add makes one of h. The caller's context may
// run the caller's code, which may hang, so newLease is called without h.mu.
func (a *acquisition) newLease(h *hold, by Step) *Lease {
	a.acquiredBy = by
	values := withoutCancel(a.ctx)
	le := &Lease{hold: h, maxHold: a.maxHold, atLeast: a.atLeast, traced: traced{values: values}}
	le.outer, _ = FromContext(a.ctx)
	// The lease has the values of the caller's context, but does not end with it.
	live, cancel := context.WithCancelCause(values)
	if a.yields && h.yields {
		le.wanted = &wanted{closes: make(chan struct{})}
		if a.preference != nil {
			le.wanted.recalls = make(chan struct{}, 1)
		}
	}
	le.ctx, le.cancel = leaseContext{live, le}, cancel
	return le
}

// A leaseContext is the context of a lease. Its Err checks the clock, because after a pause the
// holder may run before the deadline's timer does.
type leaseContext struct {
	context.Context
	lease *Lease
}

func (c leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	c.lease.hold.expire()
	if cause := c.lease.hold.lostCause(); cause != nil {
		c.lease.cancel(cause) // the hold is over, but this lease's context may not have ended yet
	}
	return c.Context.Err()
}

func (c leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c.lease
	}
	return c.Context.Value(key)
}

// Name returns the name of the resource.
func (le *Lease) Name() string { return le.hold.req.Resource }

// Token returns the fencing token, which never changes. It is greater than the token of every
// earlier lease of the resource; the engine's page lists the exceptions. It is 0 on an engine
// without fencing. Send it with each write, so that the resource can refuse smaller ones.
func (le *Lease) Token() uint64 { return le.token }

// Owner returns the secret that identifies the grant at the engine. Anyone who knows it can
// renew and release the lease. Leases that are handed over inside the process share it. A lease
// whose owner was read is not kept, see [Options.Keep].
func (le *Lease) Owner() string {
	le.hold.neverKeep()
	return le.hold.req.Owner
}

// Context returns a context that ends when the lease is released or lost, no later than the
// deadline. Its cause matches [ErrReleased] or [ErrLost] and says why. It has the values of the
// context that was passed to Acquire, but does not end with it. Its Err checks the clock: after a
// pause beyond the deadline it is not nil, even before the process's timers have run.
func (le *Lease) Context() context.Context { return le.ctx }

// Deadline returns the instant, with a monotonic reading, after which the holder must not act.
// Renewals move it until the lease is released.
func (le *Lease) Deadline() time.Time {
	h := le.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.deadline.at
	if le.released { // the hold may belong to another lease
		at = le.until
	}
	return h.locker.clock.Time(at)
}

// Extend renews the lease for d from now, and later renewals keep that TTL. Use it to prolong a
// lease with [NoRenew]. Extend returns nil if the engine agreed, and [ErrLost] or [ErrReleased]
// if the lease is over. After any other error the outcome is unknown, and the earlier of both
// deadlines stands until a renewal succeeds.
func (le *Lease) Extend(ctx context.Context, d time.Duration) error {
	return le.wrap("extend", le.extend(ctx, d))
}

func (le *Lease) extend(ctx context.Context, d time.Duration) error {
	h := le.hold
	ttl, err := h.locker.checkTTL(d)
	if err != nil {
		return err
	}
	return le.call(ctx, func() error {
		err := h.extend(ctx, ttl)
		h.plan(h.locker.clock.Now(), err) // the deadline has moved, maybe closer
		return err
	})
}

// call runs make, a call to the engine that changes the hold. During the call the hold is not
// handed over. If le was released, make is not called, because the hold may belong to another
// lease.
func (le *Lease) call(ctx context.Context, make func() error) error {
	if err := le.live(); err != nil {
		return err
	}
	le.hold.neverKeep()
	if err := le.hold.calling.Begin(ctx); err != nil {
		return err
	}
	defer le.hold.calling.End()
	err := le.live()
	if err == nil {
		err = make()
	}
	if err != nil && le.live() != nil { // Release may have cut it short
		return le.live()
	}
	return err
}

// live returns nil while the lease is held, or why it is over.
func (le *Lease) live() error {
	le.hold.mu.Lock()
	defer le.hold.mu.Unlock()
	if le.released || le.hold.over() {
		return le.hold.endError()
	}
	return nil
}

// Release releases the lease and ends its context. It works even if ctx has ended: the call to
// the engine is limited by the TTL and by 5 seconds.
//
// Release returns nil if the lease was released. It also returns nil, without asking the engine, if
// the lease was handed over or kept inside the process. A lease is handed over only within
// [Options.HandOver] of its grant, and kept only within [Options.Keep] of the engine's last
// confirmation.
//
// Release returns [ErrLost] if the lease had ended before, so that another process may have held
// the resource meanwhile: roll back. It returns [ErrReleased] if an earlier call has returned nil
// or ErrLost. After any other error the outcome is unknown: the resource is free no later than a
// TTL from now, and Release may be called again. A call first waits for those that have not returned.
func (le *Lease) Release(ctx context.Context) error {
	return le.wrap("release", le.release(ctx))
}

func (le *Lease) release(ctx context.Context) error {
	last, err := le.let(ctx)
	if last {
		return le.end(ctx, err)
	}
	return err
}

// end ends the hold at the engine, after let said so and returned lost.
func (le *Lease) end(ctx context.Context, lost error) error {
	h := le.hold
	if lost == nil {
		return le.finishRelease(h.release(ctx, nil))
	}
	h.locker.calls.cleanUp(func() { h.release(ctx, nil) }) // its answer matters to nobody
	return lost
}

// let releases le as far as possible without an answer of the engine. If last is true, the hold
// must be ended at the engine: by end, or by a release and finishRelease if the error is nil.
func (le *Lease) let(ctx context.Context) (last bool, err error) {
	h := le.hold
	h.expire() // after a pause its timer may not have run yet
	h.mu.Lock()
	for le.ending {
		if le.ended == nil {
			le.ended = make(chan struct{})
		}
		ended := le.ended
		h.mu.Unlock()
		<-ended // soon, because the calls to the engine are bounded
		h.mu.Lock()
	}
	if le.released {
		h.mu.Unlock()
		return false, ErrReleased
	}
	next, last := h.drop(le)
	err, keeps := h.cause, h.phase == kept
	le.ending = last && err == nil
	h.mu.Unlock()
	if err != nil {
		le.cancel(err)
	}
	le.cancel(ErrReleased) // does nothing after the first
	switch {
	case keeps:
		le.traceEnd(StepReleased, nil)
		return false, h.offer(le)
	case err == nil && !last:
		next.take(h)
		le.traceEnd(StepReleased, nil)
	}
	return last, err
}

// drop removes le from the hold. If that was its last lease, there are three outcomes: the hold is
// kept, next takes it over, or last is true and the hold must be ended at the engine. Requires
// h.mu.
func (h *hold) drop(le *Lease) (next *turnWaiter, last bool) {
	le.released, le.until = true, h.deadline.at
	if le.atLeast > 0 && !le.unused {
		h.holders.keepUntil = max(h.holders.keepUntil, le.since.Add(le.atLeast))
	}
	h.holders.leases = slices.DeleteFunc(h.holders.leases, func(o *Lease) bool { return o == le })
	if len(h.holders.leases) > 0 {
		return nil, false
	}
	now := h.locker.clock.Now()
	if h.canKeep(now) {
		h.transition(onKeep)
		h.planUse(now)
		return nil, false
	}
	if next = h.handOver(now); next != nil {
		return next, false
	}
	h.transition(onRelease)
	if le.unused && h.holders.hasTurn {
		h.locker.queue.leaving(h.req.Resource)
	}
	return nil, true
}

// finishRelease applies the engine's answer to the release of the last lease, and returns it. After
// an unknown outcome it allows another Release.
func (le *Lease) finishRelease(err error) error {
	le.hold.passTurn()
	switch {
	case err == nil:
		le.traceEnd(StepReleased, nil)
	case errors.Is(err, ErrLost):
		le.traceLost(err)
	default:
		le.traceEnd(StepUnknown, err)
	}
	le.hold.mu.Lock()
	defer le.hold.mu.Unlock()
	le.released, le.ending = err == nil || errors.Is(err, ErrLost), false
	if le.ended != nil {
		close(le.ended)
		le.ended = nil
	}
	return err
}

func (le *Lease) wrap(call string, err error) error { return wrap(call, le.Name(), err) }

// wrap adds the package's name to an error, once.
func wrap(call, name string, err error) error {
	if err == nil {
		return nil
	}
	if _, named := errors.AsType[*BusyError](err); named {
		return fmt.Errorf("leasehold: %s: %w", call, err)
	}
	return fmt.Errorf("leasehold: %s %q: %w", call, name, err)
}
