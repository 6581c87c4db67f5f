package leasehold

import (
	"context"
	"errors"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// errWaited is the cause of a context that ended because Wait ran out.
var errWaited = errors.New("wait ran out")

// An attempt is one call of Acquire or TryAcquire on its way.
type attempt struct {
	*request
	locker  *Locker
	name    string
	start   boottime.Instant
	waits   bool // for other holders
	hasTurn bool // it has the turn in the localQueue
}

// acquire is Acquire and TryAcquire (blocking false) without the package's name on errors. It
// asks the engine for what this process cannot answer alone.
func (l *Locker) acquire(ctx context.Context, name string, blocking bool, opts []Option) (lease *Lease, err error) {
	a := attempt{locker: l, name: name, start: l.clock.Now()}
	if !l.calls.begin() {
		return nil, ErrClosed
	}
	defer l.calls.end()
	if a.request, err = l.opts.newRequest(l.features, name, opts); err != nil {
		return nil, err
	}
	a.waits = blocking && !(a.hasWait && a.wait == 0)
	callers := ctx
	l.traceWait(callers, name, a.request)
	defer func() { l.traceWaited(callers, &a, lease, err) }()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if a.waits && a.hasWait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.wait, errWaited)
		defer cancel()
	}
	lease, err = a.nest(ctx)
	switch {
	case lease != nil || err != nil:
	case a.waits:
		lease, err = a.waitTurn(ctx)
	default:
		err = a.takeTurn()
	}
	if lease != nil || err != nil {
		return lease, err
	}
	h, err := newHold(l, name, l.owners.next(), a.request, a.waits)
	if err != nil {
		l.queue.passIf(a.hasTurn, name)
		return nil, err
	}
	sent, grant, err := h.contend(ctx, a.request, a.waits)
	if err == nil && h.req.TTL < a.ttl {
		sent, grant, err = h.lengthen(ctx, sent, grant, a.ttl)
	}
	return a.settle(ctx, h, sent, grant, err)
}

// nest returns a nested lease if ctx is that of a holder, or ErrDeadlock; else neither.
func (a *attempt) nest(ctx context.Context) (*Lease, error) {
	outer := a.locker.heldBy(ctx, a.name)
	if outer == nil {
		return nil, nil
	}
	return outer.nest(ctx, a.request, a.start)
}

// takeTurn takes the turn if nobody has it. While another of this process contends, the engine
// is asked beside it, because only the engine knows who holds the resource.
func (a *attempt) takeTurn() error {
	taken, by := a.locker.queue.take(a.name)
	if by != nil {
		return &BusyError{Resource: a.name, Holder: by.describe()}
	}
	a.hasTurn = taken
	return nil
}

// waitTurn waits until it has the turn, or until a lease is handed over with it. On error it
// has left nothing behind.
func (a *attempt) waitTurn(ctx context.Context) (*Lease, error) {
	q := &a.locker.queue
	w := q.enter(a.name, a.ttl, a.mode == driver.Exclusive && !a.noRenew && a.atLeast == 0)
	if w == nil {
		a.hasTurn = true
		return nil, nil
	}
	a.locker.traceStep(ctx, a.name, a.request, Event{Step: StepQueued, Local: true})
	h, has, err := q.wait(ctx, a.locker.calls.closing, a.name, w)
	switch {
	case err == nil && h != nil:
		return a.take(ctx, h), nil
	case err == nil:
		a.hasTurn = true
		return nil, nil
	case h != nil:
		h.discard()
	case has:
		q.pass(a.name)
	}
	if errors.Is(err, errWaited) {
		return nil, a.waitedInVain()
	}
	return nil, err
}

// take makes a lease of what was handed over, or gives it up and has the turn.
func (a *attempt) take(ctx context.Context, h *hold) *Lease {
	l := a.locker
	if lease := h.take(ctx, a.request, l.clock.Now()); lease != nil {
		return lease
	}
	a.hasTurn = true
	l.queue.contendAgain(a.name)
	select { // who asks beside what is being given up would wait for itself
	case <-l.calls.clean(func() { h.release(ctx, nil) }):
	case <-ctx.Done():
	}
	return nil
}

// waitedInVain is the error of an attempt that did not get the turn within its Wait.
func (a *attempt) waitedInVain() error {
	h, taken := a.locker.queue.holder(a.name)
	if !taken {
		return errSilent
	}
	busy := &BusyError{Resource: a.name}
	if h != nil {
		busy.Holder = h.describe()
	}
	return busy
}

// settle makes a lease of what came of contending, or leaves nothing behind. An exclusive
// lease keeps the turn, everything else passes it on.
func (a *attempt) settle(ctx context.Context, h *hold, sent boottime.Instant, g driver.Grant, err error) (lease *Lease, _ error) {
	queue, name, had := &a.locker.queue, a.name, a.hasTurn
	keeps := had && a.mode == driver.Exclusive
	if err == nil {
		lease, err = h.begin(ctx, a.request, sent, g, keeps)
	}
	switch {
	case err == nil:
		queue.passIf(had && !keeps, name)
		h.plan(lease.since, nil)
	case !a.waits && ctx.Err() == nil && errors.Is(err, ErrBusy):
		// Refused without a place: there is nothing to clean up. A context's cause is the caller's, and may match anything.
		queue.passIf(had, name)
	default:
		// Nobody of this process contends before the clean-up is through, so that
		// nobody is refused because of what we left behind.
		a.locker.calls.tidy(func() {
			h.release(ctx, err) // its answer matters to nobody: what it leaves ends by itself
			queue.passIf(had, name)
		})
	}
	return lease, err
}
