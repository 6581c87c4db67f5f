package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/onecall"
)

// An acquisition is one call of Acquire, TryAcquire or Resume, from the call to the lease.
type acquisition struct {
	*request
	locker     *Locker
	name       string
	caller     context.Context
	ctx        context.Context // the caller's, and ends when Wait runs out
	start      boottime.Instant
	id         uint64          // of its events; 0: no Trace
	acquiredBy Step            // how the lease was acquired
	waits      bool            // it waits for other holders
	hasTurn    bool            // its turn has come in the localQueue
	recalls    bool            // it waits only until another process gives back a lease that it keeps
	hold       *hold           // asks the engine; nil: not yet
	given      <-chan struct{} // closed when hold, which was lost, has been released; nil: that has not begun
	contending
}

// errWaited is the cause of a context that ended because Wait ran out.
var errWaited = errors.New("wait ran out")

// open begins the call, and checks its arguments before anything is done. On success, end must
// follow.
func (a *acquisition) open(ctx context.Context, l *Locker, name string, opts []Option) error {
	if !l.calls.begin() {
		return ErrClosed
	}
	a.request, a.locker, a.name, a.caller, a.ctx, a.start = &request{}, l, name, ctx, ctx, l.clock.Now()
	err := a.fill(l, name, opts)
	if err != nil {
		l.calls.end()
	}
	return err
}

// end traces the outcome of the call.
func (a *acquisition) end(lease **Lease, err *error) {
	defer a.locker.calls.end()
	a.traceEnd(*lease, *err)
}

// acquire is Acquire, or TryAcquire if blocking is false, without the package's name on errors.
// It asks the engine only for what this process cannot answer alone.
func (l *Locker) acquire(ctx context.Context, name string, blocking bool, opts []Option) (lease *Lease, err error) {
	var a acquisition
	if err = a.open(ctx, l, name, opts); err != nil {
		return nil, err
	}
	defer a.end(&lease, &err)
	a.traceBegin()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if a.waits = blocking && a.wait > 0; a.waits && a.wait < forever {
		var cancel context.CancelFunc
		a.ctx, cancel = context.WithTimeoutCause(ctx, a.wait, errWaited)
		defer cancel()
	}
	if lease, err = a.prepare(); lease != nil || err != nil {
		return lease, err
	}
	return a.conclude(a.contend())
}

// prepare does what can be done without the engine. It returns a lease if that suffices, or else
// prepares the hold that contends.
func (a *acquisition) prepare() (lease *Lease, err error) {
	if lease, err = a.nest(); lease != nil || err != nil {
		return lease, err
	}
	if lease, err = a.takeTurn(); lease != nil || err != nil {
		return lease, err
	}
	if err = a.newHold(a.locker.owners.next()); err != nil {
		a.locker.queue.passIf(a.hasTurn, a.name)
	}
	return nil, err
}

// conclude returns the outcome of the call, after contend returned err. A call that does not wait
// contends once more if the lease that refused it may be merely kept. So does any call, once, whose
// grant is lost before its lease begins.
func (a *acquisition) conclude(err error) (lease *Lease, _ error) {
	if refusal := a.keptElsewhere(err); refusal != nil {
		ctx := a.ctx
		var cancel context.CancelFunc
		a.ctx, cancel = context.WithTimeoutCause(ctx, a.patience(), errWaited)
		err = a.recallKeeper(refusal)
		cancel()
		a.ctx = ctx
		a.waits = err != nil // without a grant there may be a place to clean up
	}
	for err == nil {
		if err = a.lengthen(); err == nil {
			lease, err = a.begin()
		}
		if err == nil || a.late || a.hold.lostCause() == nil {
			break
		}
		a.late = true
		if err = a.replaceLost(); err == nil {
			err = a.contend()
		}
	}
	return lease, a.finish(lease, err)
}

// takeTurn waits for the turn, or for a lease that is handed over with it. On error it leaves
// nothing behind.
//
// A call that does not wait takes the turn only if nobody has it. While another call of this
// process contends, it asks the engine without the turn, because only the engine knows who holds
// the resource.
func (a *acquisition) takeTurn() (*Lease, error) {
	q := &a.locker.queue
	if !a.waits {
		return a.tryTurn()
	}
	w, by := q.enter(a.name, a.turnWaiter())
	switch {
	case w == nil && by == nil:
		a.hasTurn = true
		return nil, nil
	case w == nil:
		return a.takeKept(by)
	}
	a.trace(Event{Step: StepQueued, Local: true})
	if by != nil && by.yields {
		by.recallLocally()
	}
	h, has, err := q.wait(a.ctx, a.locker.calls.closing, a.name, w)
	switch {
	case err == nil && h != nil:
		return a.take(h, StepHandedOver)
	case err == nil:
		a.hasTurn = true
		return nil, nil
	case h != nil:
		a.discard(h)
	case has:
		q.pass(a.name)
	}
	if errors.Is(err, errWaited) {
		return nil, a.localWaitError()
	}
	return nil, err
}

// tryTurn is takeTurn for a call that does not wait.
func (a *acquisition) tryTurn() (*Lease, error) {
	var enough <-chan time.Time
	var live *hold
	for {
		taken, by, gone := a.locker.queue.take(a.name)
		switch {
		case taken && by != nil:
			return a.takeKept(by)
		case gone != nil: // what is leaving does not refuse the call
			if enough == nil {
				enough = time.After(callBound)
			}
			select {
			case <-gone:
			case <-enough: // others fail and clean up, one after another
				return nil, nil
			case <-a.ctx.Done():
				return nil, context.Cause(a.ctx)
			}
		case by != nil && by != live:
			by.expire() // after a pause its timer may not have run yet; it passes the turn on
			live = by
		case by != nil:
			return nil, &BusyError{Resource: a.name, Holder: by.describe()}
		default:
			a.hasTurn = taken
			return nil, nil
		}
	}
}

// turnWaiter returns this call's entry for the localQueue. It says which leases the call accepts.
func (a *acquisition) turnWaiter() turnWaiter {
	return turnWaiter{
		ttl: a.ttl, who: a.who, yields: a.yields, ranks: a.preference != nil,
		acceptsHandOver: a.mode == driver.Exclusive && !a.noRenew && a.atLeast == 0,
	}
}

// localWaitError is the error of a call that did not get the turn within its Wait.
func (a *acquisition) localWaitError() error {
	h, taken := a.locker.queue.holder(a.name)
	if !taken {
		return errNoAnswer
	}
	busy := &BusyError{Resource: a.name}
	if h != nil {
		busy.Holder = h.describe()
	}
	return busy
}

// newHold prepares the hold that asks the engine as owner.
func (a *acquisition) newHold(owner string) (err error) {
	l := a.locker
	h := &hold{locker: l, who: a.who, shows: a.who, yields: a.yields, calling: onecall.New(), renewals: renewals{ttl: a.ttl, most: a.ttl, never: a.noRenew}}
	h.holders.leases, h.renewals.entry.Value, h.deadline.entry.Value = h.holders.only[:0], h, h
	h.req = driver.Request{
		Resource: a.name, Owner: owner, Mode: a.mode, Limit: a.limit, Weight: a.weight,
		TTL: a.firstTTL(l), Queue: a.waits, Note: a.who.note, Fresh: !a.resumes, Lost: h.lose,
	}
	if h.yields || a.keeps {
		h.req.Wanted, h.req.WantedOnce = h.recall, a.preference == nil
	}
	if a.keeps {
		h.keep = &keeping{able: true}
	}
	if h.claim, err = l.driver.Claim(h.req); err != nil {
		return err
	}
	a.hold, a.given = h, nil
	return nil
}

// finish schedules the renewals of the lease, or cleans up after err, and returns err. An exclusive
// lease keeps the turn; otherwise the turn passes on.
func (a *acquisition) finish(lease *Lease, err error) error {
	queue, name, had := &a.locker.queue, a.name, a.hasTurn
	switch {
	case err == nil:
		queue.passIf(had && !a.keepsTurn(), name)
		a.hold.plan(lease.since, nil)
	case !a.waits && a.ctx.Err() == nil && errors.Is(err, ErrBusy):
		// Refused without a place: there is nothing to clean up. Do not ask context.Cause: the
		// cause belongs to the caller and may match anything.
		queue.passIf(had, name)
	default:
		// The turn passes on only after the clean-up. Otherwise a grant or a place that this call
		// left behind could refuse the next one.
		if had {
			queue.leaving(name)
		}
		h, given, ctx, tried := a.hold, a.given, a.ctx, err
		a.locker.calls.cleanUp(func() {
			if given != nil {
				<-given
			} else {
				h.release(ctx, tried) // its result is not needed: what it leaves expires
			}
			queue.passIf(had, name)
		})
	}
	return err
}

// keepsTurn reports whether the lease keeps the turn of this call.
func (a *acquisition) keepsTurn() bool { return a.hasTurn && a.mode == driver.Exclusive }

// begin marks the hold as held and returns its first lease.
func (a *acquisition) begin() (*Lease, error) {
	h, g := a.hold, a.grant
	if g.Fence%driver.FenceStep != 0 {
		return nil, fmt.Errorf("the engine's fence %d is no multiple of %d: %w", g.Fence, driver.FenceStep, driver.ErrCorrupt)
	}
	now := a.locker.clock.Now()
	le := a.newLease(h, StepGranted)
	if a.together && h.req.TTL < a.ttl {
		le.longer = a.ttl
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.transition(onGrant) { // Request.Lost was called before the answer came
		return nil, h.cause
	}
	h.grant.fence, h.grant.at = g.Fence, now
	if h.keep != nil {
		h.keep.word = a.sent // not later: a recall may have been in flight when the answer came
	}
	h.deadline.span = g.TTL
	h.setDeadline(a.locker.deadlineOf(a.sent, g.TTL), now)
	if a.keepsTurn() {
		h.holders.hasTurn = true
		a.locker.queue.keep(a.name, h)
	}
	h.add(le, now)
	return le, nil
}

// resuming marks a request of Resume.
func resuming(r *request) { r.resumes = true }

// resume is Resume without the package's name on errors.
func (l *Locker) resume(ctx context.Context, name, owner string, opts []Option) (lease *Lease, err error) {
	var a acquisition
	if err = a.open(ctx, l, name, append([]Option{resuming}, opts...)); err != nil {
		return nil, err
	}
	defer a.end(&lease, &err)
	switch {
	case owner == "":
		return nil, fmt.Errorf("%w: empty owner", ErrInvalidOption)
	case !l.features.Resumes:
		return nil, ErrUnsupported
	}
	a.traceBegin()
	if err := a.newHold(owner); err != nil {
		return nil, err
	}
	a.hold.grant.handOvers = resumed // the number of earlier hand-overs is unknown
	call, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	a.sent = l.clock.Now()
	a.grant, err = a.hold.claim.Renew(call, a.ttl)
	switch {
	case err != nil && isOver(ctx): // the cause belongs to the caller and may match anything
		err = fmt.Errorf("%w: %v", ctx.Err(), err)
	case err == nil && l.calls.isClosing():
		err = ErrClosed
	case err == nil && !l.inTime(a.sent, a.grant):
		err = errTooLate(a.ttl)
	}
	if err == nil {
		lease, err = a.begin()
	}
	if err != nil {
		if c, keepsState := a.hold.claim.(driver.Forgetter); keepsState {
			c.Forget() // the lease stays with whoever left it
		}
		return nil, err
	}
	a.acquiredBy = StepResumed
	a.hold.plan(lease.since, nil)
	return lease, nil
}
