package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

const (
	// callBound is the longest that one Try, or all tries of one clean-up, may take: far
	// above a healthy engine's answer, and short enough that a hung call is repeated.
	callBound = 5 * time.Second
	// sleepBound is the longest sleep of a waiter whose engine said nothing of when to
	// come back: what a lost wake-up costs at the most.
	sleepBound = 5 * time.Second
	// Without Wake a waiter polls, at first quickly, then at this pace.
	pollFirst, pollLast = 5 * time.Millisecond, 250 * time.Millisecond
)

// contend tries until the engine grants. It returns when the granting call was sent.
// Without queue it tries once. A refusal that is final is a *BusyError.
func (h *hold) contend(ctx context.Context, r *request, queue bool) (sent boottime.Instant, g driver.Grant, err error) {
	var w waitState
	for {
		sent, g, err = h.try(ctx)
		if err == nil && h.locker.calls.isClosing() {
			return sent, g, ErrClosed
		}
		busy, refused := errors.AsType[*driver.Busy](err)
		switch {
		case err == nil && h.useful(sent, g):
			return sent, g, nil
		case err == nil: // too late to be worth anything: ask for a fresh TTL, once
			if w.late++; w.late > 1 {
				err = errTooLate(h.req.TTL)
			}
		case refused && !queue:
			return sent, g, &BusyError{Resource: h.req.Resource, Holder: holderOf(busy.Holder)}
		case refused:
			if !w.queued {
				h.locker.queue.refuse(h.req.Resource)
			}
			if !w.queued || w.fails > 0 {
				h.locker.traceStep(ctx, h.req.Resource, r, Event{Step: StepQueued})
			}
			if err = w.sleepBusy(ctx, h.locker.calls.closing, busy); err == nil {
				if g, ok := h.brought(sent, busy); ok {
					return sent, g, nil
				}
			}
		case !w.queued && ctx.Err() == nil && !(queue && errors.Is(err, driver.ErrNotYet)), final(err):
			return sent, g, err
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		default: // the engine went away while we waited: our place may be there still
			w.failed = err
			h.locker.traceStep(ctx, h.req.Resource, r, Event{Step: StepRetrying, Err: err})
			err = w.sleepError(ctx, h.locker.calls.closing)
		}
		if err != nil {
			return sent, g, w.gaveUp(h.req.Resource, err)
		}
	}
}

// useful reports whether a grant, by a call that was sent at sent, has not passed its
// deadline yet.
func (h *hold) useful(sent boottime.Instant, g driver.Grant) bool {
	return h.locker.clock.Now().Sub(sent) < g.TTL-h.locker.opts.drift(g.TTL)
}

// lengthen renews a grant, by a call that was sent at sent, for ttl. Nobody knows of the grant yet.
func (h *hold) lengthen(ctx context.Context, sent boottime.Instant, g driver.Grant, ttl time.Duration) (boottime.Instant, driver.Grant, error) {
	end := sent.Add(g.TTL - h.locker.opts.drift(g.TTL))
	for fails := 0; ; fails++ {
		var now time.Time
		sent, now = h.locker.clock.Read()
		call := newBound(ctx, now.Add(min(end.Sub(sent)/2, callBound)))
		longer, err := h.claim.Renew(call, ttl)
		call.end()
		switch {
		case h.locker.calls.isClosing():
			err = ErrClosed
		case err == nil && longer.Fence == g.Fence && h.useful(sent, longer):
			return sent, longer, nil
		case err == nil || errors.Is(err, ErrLost) || h.locker.clock.Now() >= end:
			err = errTooLate(h.req.TTL)
		case ctx.Err() == nil && !final(err):
			if _, err = sleep(ctx, h.locker.calls.closing, nil, backoff(fails, 10*time.Millisecond, time.Second)); err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			err = (&waitState{}).gaveUp(h.req.Resource, context.Cause(ctx))
		}
		return sent, g, err
	}
}

func errTooLate(ttl time.Duration) error {
	return fmt.Errorf("the engine's answers come too late for a TTL of %v", ttl)
}

// brought is the grant that came after a refusal without another Try, if it did. Who will
// not renew asks for the whole TTL instead.
func (h *hold) brought(sent boottime.Instant, busy *driver.Busy) (g driver.Grant, ok bool) {
	select {
	case g = <-busy.Granted:
		return g, h.useful(sent, g) && !h.renewals.never && !h.locker.calls.isClosing()
	default:
		return g, false
	}
}

// try makes one bounded Try.
func (h *hold) try(ctx context.Context) (boottime.Instant, driver.Grant, error) {
	sent, now := h.locker.clock.Read()
	call := newBound(ctx, now.Add(min(h.req.TTL, callBound)))
	defer call.end()
	g, err := h.claim.Try(call)
	return sent, g, err
}

// final reports whether trying again cannot help.
func final(err error) bool {
	for _, e := range []error{ErrUnsupported, ErrClosed, ErrInvalidName, driver.ErrCorrupt} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// waitState is what a waiter remembers between its tries.
type waitState struct {
	queued bool // the engine has answered at least once
	holder Holder
	told   time.Time // when the engine told of holder
	polls  int       // refusals without Wake
	early  int       // wake-ups in a row that came at once
	fails  int       // errors in a row
	failed error     // the last of them
	late   int       // grants that came after the deadline they gave
}

// refused notes who is in the way, by an answer that has just come.
func (w *waitState) refused(by Holder) { w.queued, w.holder, w.told = true, by, time.Now() }

// sleepBusy waits until it is useful to try again after a refusal.
func (w *waitState) sleepBusy(ctx context.Context, closing <-chan struct{}, busy *driver.Busy) error {
	w.refused(holderOf(busy.Holder))
	w.fails = 0
	d := busy.Retry + time.Millisecond // what is left is over only after it
	if busy.Retry <= 0 || d > sleepBound {
		d = sleepBound
	}
	if busy.Wake == nil {
		d = min(d, backoff(w.polls, pollFirst, pollLast))
		w.polls++
	}
	start := time.Now()
	woken, err := sleep(ctx, closing, busy.Wake, d)
	if err != nil || !woken || time.Since(start) > time.Millisecond {
		w.early = 0
		return err
	}
	// An engine that wakes at once for no reason must not make us spin.
	if w.early++; w.early > 3 {
		_, err = sleep(ctx, closing, nil, backoff(w.early-3, time.Millisecond, 20*time.Millisecond))
	}
	return err
}

// errSilent: nobody knows whether others hold the resource.
var errSilent = fmt.Errorf("the engine did not answer within Wait: %w", context.DeadlineExceeded)

// gaveUp is the error of a waiter that ended for cause. Wait is for other holders: when
// the engine never answered, nobody knows of any.
func (w *waitState) gaveUp(name string, cause error) error {
	switch {
	case !errors.Is(cause, errWaited):
		return cause
	case !w.queued && w.failed != nil:
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, w.failed)
	case !w.queued:
		return errSilent
	}
	return &BusyError{Resource: name, Holder: w.holder.later(time.Since(w.told))}
}

// sleepError waits a little longer after each error, so that nobody spins while the
// engine is away and everybody is back soon after it.
func (w *waitState) sleepError(ctx context.Context, closing <-chan struct{}) error {
	d := backoff(w.fails, 20*time.Millisecond, 500*time.Millisecond)
	w.fails++
	_, err := sleep(ctx, closing, nil, d)
	return err
}

// sleep waits for wake or d, whichever comes first.
func sleep(ctx context.Context, closing, wake <-chan struct{}, d time.Duration) (woken bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-closing:
		return false, ErrClosed
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// backoff doubles from first to last, less a random quarter.
func backoff(n int, first, last time.Duration) time.Duration {
	d := last
	if n < 16 && first<<n < last {
		d = first << n
	}
	return d - jitter(d/4)
}

// jitter is a random duration below d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
