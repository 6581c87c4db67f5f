package leasehold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// callBound is the longest that one Try, or all tries of one clean-up, may take. It is far above
// a healthy engine's answer, and short enough that a hung call is repeated soon.
const callBound = 5 * time.Second

// callBoundOf returns how long a call may take for a lease with this TTL.
func callBoundOf(ttl time.Duration) time.Duration { return min(ttl, callBound) }

// contending is the state of an acquisition between its calls to the engine.
type contending struct {
	sent      boottime.Instant // when the last call was sent
	grant     driver.Grant     // the answer to the last call
	pace      waiting.Pace
	waitState waitState
	late      bool          // a grant arrived after its own deadline or loss, and no refusal since
	tried     *driver.Trial // the first call if it was sent already, else nil
}

// contend tries until the engine grants. A call that does not wait for other holders tries once.
// A final refusal is a *BusyError.
func (a *acquisition) contend() (err error) {
	l, most := a.locker, callBoundOf(a.hold.req.TTL)
	for {
		if t := a.tried; t != nil {
			a.tried, a.grant, err = nil, t.Grant, t.Err
		} else {
			var now time.Time
			a.sent, now = l.clock.Read()
			call := newBound(a.ctx, now.Add(most))
			a.grant, err = a.hold.claim.Try(call)
			call.end()
		}
		if err == nil && l.calls.isClosing() {
			return ErrClosed
		}
		busy, isBusy := errors.AsType[*driver.Busy](err)
		switch {
		case err == nil && a.isUsable():
			return nil
		case err == nil: // too late to be used, or lost: request a fresh TTL, once
			if a.late {
				err = cmp.Or(a.hold.lostCause(), errTooLate(a.hold.req.TTL))
			}
			a.late = true
		case isBusy:
			refusal := &BusyError{Resource: a.name, Holder: holderOf(busy.Holder)}
			if !a.waits {
				return refusal
			}
			a.late = false
			if !a.pace.Queued {
				l.queue.refuse(a.name)
			}
			if !a.pace.Queued || a.pace.Fails > 0 {
				a.trace(Event{Step: StepQueued, Err: refusal})
			}
			a.waitState.refused(refusal)
			if err = a.pace.Rest(a.ctx, l.calls.closing, err); err == nil && a.receiveGrant(busy) {
				return nil
			}
		case waiting.Final(err), !isOver(a.ctx) && !(a.waits && a.pace.GoesOn(err)):
			return err
		case a.ctx.Err() != nil:
			err = context.Cause(a.ctx)
		default: // the engine went away during the wait: our place may still be there
			a.waitState.failed = err
			a.trace(Event{Step: StepRetrying, Err: err})
			err = a.pace.Rest(a.ctx, l.calls.closing, err)
		}
		if err == nil {
			err = a.replaceLost()
		}
		if err != nil {
			return a.waitState.waitError(a.name, err)
		}
	}
}

// isUsable reports whether the grant can be used: its deadline has not passed, nor was it lost.
func (a *acquisition) isUsable() bool {
	return a.locker.inTime(a.sent, a.grant) && a.hold.lostCause() == nil
}

// replaceLost replaces a hold that was lost before the call learned of its grant, because nothing
// that its claim is granted later could be used. It waits for the clean-up: the engine may still
// have the grant, and refuse the call because of it. If somebody evicted the hold, replaceLost
// returns that.
func (a *acquisition) replaceLost() error {
	h, ctx := a.hold, a.caller
	if cause := h.lostCause(); cause == nil || errors.Is(cause, ErrEvicted) {
		return cause
	}
	a.given = a.locker.calls.startCleanUp(func() { h.release(ctx, nil) }) // its result is not needed: what it leaves expires
	select {
	case <-a.given:
		return a.newHold(a.locker.owners.next())
	case <-a.locker.calls.closing:
		return ErrClosed
	case <-a.ctx.Done():
		return a.waitState.waitError(a.name, context.Cause(a.ctx))
	}
}

// timerDelay is how much later than its deadline the timer of a context may end it.
const timerDelay = 100 * time.Millisecond

// isOver reports whether ctx has ended, after a call with it failed. A connection may give up at the
// deadline of ctx before the timer of ctx has run. isOver then waits for that timer.
func isOver(ctx context.Context) bool {
	if end, bounded := ctx.Deadline(); bounded && ctx.Err() == nil && !time.Now().Before(end) {
		timer := time.NewTimer(timerDelay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return ctx.Err() != nil
}

// receiveGrant stores the grant that followed a refusal without another Try, and reports whether
// it can be used. A call with NoRenew does not use it, because part of its TTL is gone.
func (a *acquisition) receiveGrant(busy *driver.Busy) bool {
	select {
	case a.grant = <-busy.Granted:
		return a.isUsable() && !a.noRenew && !a.locker.calls.isClosing()
	default:
		return false
	}
}

// lengthen renews the grant for the whole TTL, before the caller learns of it. If the grant is
// lost, so is the hold. AcquireAll lengthens its leases itself, once it has them all.
func (a *acquisition) lengthen() error {
	if a.together || a.hold.req.TTL >= a.ttl {
		return nil
	}
	l, end := a.locker, a.locker.deadlineOf(a.sent, a.grant.TTL)
	for fails := 0; ; fails++ {
		sent, now := l.clock.Read()
		call := newBound(a.ctx, now.Add(min(end.Sub(sent)/2, callBound)))
		longer, err := a.hold.claim.Renew(call, a.ttl)
		call.end()
		switch {
		case l.calls.isClosing():
			err = ErrClosed
		case err == nil && longer.Fence == a.grant.Fence && l.inTime(sent, longer):
			a.sent, a.grant = sent, longer
			return nil
		case errors.Is(err, ErrLost):
			a.hold.lose(err)
			return a.hold.lostCause()
		case err == nil || l.clock.Now() >= end:
			err = errTooLate(a.hold.req.TTL)
		case a.ctx.Err() == nil && !waiting.Final(err):
			pause := waiting.Backoff(fails, 10*time.Millisecond, time.Second)
			if _, err = waiting.Sleep(a.ctx, l.calls.closing, nil, pause); err == nil {
				continue
			}
		}
		if isOver(a.ctx) {
			err = context.Cause(a.ctx)
		}
		return err
	}
}

// deadlineOf returns the deadline of a grant with this TTL. sent is when the call that it answers
// was sent.
func (l *Locker) deadlineOf(sent boottime.Instant, ttl time.Duration) boottime.Instant {
	return sent.Add(ttl - l.opts.drift(ttl))
}

// inTime reports whether the deadline of a grant has not passed yet. sent is as in deadlineOf.
func (l *Locker) inTime(sent boottime.Instant, g driver.Grant) bool {
	return l.clock.Now() < l.deadlineOf(sent, g.TTL)
}

func errTooLate(ttl time.Duration) error {
	return fmt.Errorf("the engine's answers come too late for a TTL of %v", ttl)
}

// A waitState is what a waiter last learned about the reason for its wait.
type waitState struct {
	refusal *BusyError // the last one of the engine; nil: it has not refused yet
	at      time.Time  // when it came
	failed  error      // the last error
}

// refused records a refusal that was just received.
func (h *waitState) refused(by *BusyError) { h.refusal, h.at = by, time.Now() }

// errNoAnswer means that the caller cannot know whether others hold the resource.
var errNoAnswer = fmt.Errorf("the engine did not answer within Wait: %w", context.DeadlineExceeded)

// waitError is the error of a wait that ended for cause. If Wait ran out, it is ErrBusy only if the
// engine has refused. Without an answer, nobody knows of other holders.
func (h *waitState) waitError(name string, cause error) error {
	switch {
	case !errors.Is(cause, errWaited):
		return cause
	case h.refusal != nil:
		return &BusyError{Resource: name, Holder: h.refusal.Holder.later(time.Since(h.at))}
	case h.failed != nil:
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, h.failed)
	}
	return errNoAnswer
}
