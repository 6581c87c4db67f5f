package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// callBound is the longest that one Try, or all tries of one clean-up, may take: far
// above a healthy engine's answer, and short enough that a hung call is repeated.
const callBound = 5 * time.Second

// contending is what an acquisition remembers of its calls to the engine.
type contending struct {
	sent  boottime.Instant // when the last one was
	grant driver.Grant     // by that one
	pace  waiting.Pace
	heard heard
	late  bool // a grant came after the deadline that it gave
}

// contend tries until the engine grants. Who does not wait for other holders tries once. A refusal that
// is final is a *BusyError.
func (a *acquisition) contend() (err error) {
	l, claim, most := a.locker, a.hold.claim, min(a.hold.req.TTL, callBound)
	for {
		var now time.Time
		a.sent, now = l.clock.Read()
		call := newBound(a.ctx, now.Add(most))
		a.grant, err = claim.Try(call)
		call.end()
		if err == nil && l.calls.isClosing() {
			return ErrClosed
		}
		busy, isBusy := errors.AsType[*driver.Busy](err)
		switch {
		case err == nil && l.useful(a.sent, a.grant):
			return nil
		case err == nil: // too late to be worth anything: ask for a fresh TTL, once
			if a.late {
				err = errTooLate(a.hold.req.TTL)
			}
			a.late = true
		case isBusy:
			refusal := &BusyError{Resource: a.name, Holder: holderOf(busy.Holder)}
			if !a.waits {
				return refusal
			}
			if !a.pace.Queued {
				l.queue.refuse(a.name)
			}
			if !a.pace.Queued || a.pace.Fails > 0 {
				a.trace(Event{Step: StepQueued})
			}
			a.heard.refused(refusal)
			if err = a.pace.Rest(a.ctx, l.calls.closing, err); err == nil && a.brought(busy) {
				return nil
			}
		case waiting.Final(err), a.ctx.Err() == nil && !(a.waits && a.pace.GoesOn(err)):
			return err
		case a.ctx.Err() != nil:
			err = context.Cause(a.ctx)
		default: // the engine went away while we waited: our place may be there still
			a.heard.failed = err
			a.trace(Event{Step: StepRetrying, Err: err})
			err = a.pace.Rest(a.ctx, l.calls.closing, err)
		}
		if err != nil {
			return a.heard.gaveUp(a.name, err)
		}
	}
}

// brought notes the grant that came after a refusal without another Try, if it did. Who will
// not renew asks for the whole TTL instead.
func (a *acquisition) brought(busy *driver.Busy) bool {
	select {
	case a.grant = <-busy.Granted:
		return a.locker.useful(a.sent, a.grant) && !a.noRenew && !a.locker.calls.isClosing()
	default:
		return false
	}
}

// lengthen renews the grant for the whole TTL. Nobody knows of the grant yet.
func (a *acquisition) lengthen() error {
	l, end := a.locker, a.locker.deadlineOf(a.sent, a.grant.TTL)
	for fails := 0; ; fails++ {
		sent, now := l.clock.Read()
		call := newBound(a.ctx, now.Add(min(end.Sub(sent)/2, callBound)))
		longer, err := a.hold.claim.Renew(call, a.ttl)
		call.end()
		switch {
		case l.calls.isClosing():
			err = ErrClosed
		case err == nil && longer.Fence == a.grant.Fence && l.useful(sent, longer):
			a.sent, a.grant = sent, longer
			return nil
		case err == nil || errors.Is(err, ErrLost) || l.clock.Now() >= end:
			err = errTooLate(a.hold.req.TTL)
		case a.ctx.Err() == nil && !waiting.Final(err):
			pause := waiting.Backoff(fails, 10*time.Millisecond, time.Second)
			if _, err = waiting.Sleep(a.ctx, l.calls.closing, nil, pause); err == nil {
				continue
			}
		}
		if a.ctx.Err() != nil {
			err = (&heard{}).gaveUp(a.name, context.Cause(a.ctx))
		}
		return err
	}
}

// deadlineOf returns the deadline of a grant with the given TTL. The granting call was sent at sent.
func (l *Locker) deadlineOf(sent boottime.Instant, ttl time.Duration) boottime.Instant {
	return sent.Add(ttl - l.opts.drift(ttl))
}

// useful reports whether a grant, by a call that was sent at sent, has not passed its
// deadline yet.
func (l *Locker) useful(sent boottime.Instant, g driver.Grant) bool {
	return l.clock.Now() < l.deadlineOf(sent, g.TTL)
}

func errTooLate(ttl time.Duration) error {
	return fmt.Errorf("the engine's answers come too late for a TTL of %v", ttl)
}

// heard is the latest news of what keeps a waiter waiting.
type heard struct {
	refusal *BusyError // nil: it is not known who refuses
	at      time.Time  // when the engine refused; zero: it has refused nothing yet
	failed  error      // the last error
}

// refused notes who is in the way, by an answer that has just come.
func (h *heard) refused(by *BusyError) { h.refusal, h.at = by, time.Now() }

// errSilent: nobody knows whether others hold the resource.
var errSilent = fmt.Errorf("the engine did not answer within Wait: %w", context.DeadlineExceeded)

// gaveUp is the error of a waiter that ended for cause. Wait is for other holders: when
// the engine never answered, nobody knows of any.
func (h *heard) gaveUp(name string, cause error) error {
	switch {
	case !errors.Is(cause, errWaited):
		return cause
	case !h.at.IsZero():
		busy := &BusyError{Resource: name}
		if h.refusal != nil {
			busy.Holder = h.refusal.Holder.later(time.Since(h.at))
		}
		return busy
	case h.failed != nil:
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, h.failed)
	}
	return errSilent
}
