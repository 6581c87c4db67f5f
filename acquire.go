package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/driver"
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
	// abandonWait is how long a failed Acquire waits for its clean-up, which goes on
	// without it. It is short because callers count on their bounds.
	abandonWait = 50 * time.Millisecond
)

// errWaited is the cause of a context that ended because Wait ran out.
var errWaited = errors.New("wait ran out")

// acquire is Acquire and TryAcquire (blocking false) without the package's name on errors.
func (l *Locker) acquire(ctx context.Context, name string, blocking bool, opts []Option) (*Lease, error) {
	start := time.Now()
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.calls.Done()
	r, err := l.newRequest(name, opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if outer := l.heldBy(ctx, name); outer != nil {
		lease, err := outer.nest(ctx, r, start)
		if err != nil {
			return nil, err
		}
		if lease != nil {
			l.traceGranted(lease, start)
			return lease, nil
		}
	}
	if !blocking || r.hasWait && r.wait == 0 {
		return l.acquireOnce(ctx, name, r, start)
	}
	waiting := ctx
	if r.hasWait {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, r.wait, errWaited)
		defer cancel()
	}
	lease, err := l.acquireInTurn(waiting, name, r, start)
	if errors.Is(err, errWaited) { // in the queue of this process
		return nil, l.busyHere(name)
	}
	return lease, err
}

// acquireInTurn waits for its turn in this process, then at the engine.
func (l *Locker) acquireInTurn(ctx context.Context, name string, r *request, start time.Time) (*Lease, error) {
	h, err := l.waitTurn(ctx, name, r)
	if err != nil {
		return nil, err
	}
	if h != nil {
		if lease := h.adopt(ctx, r, time.Now()); lease != nil {
			l.traceHandedOver(lease, start)
			return lease, nil
		}
		l.queue.contendAgain(name)
		select { // who asks beside what is being given up would wait for itself
		case <-l.clean(func() { h.giveUp(ctx) }):
		case <-ctx.Done():
		}
	}
	return l.acquireAtEngine(ctx, name, r, start, true, true)
}

// waitTurn waits until it has the turn. It returns a lease when one was handed over with
// it. On error it has left nothing behind.
func (l *Locker) waitTurn(ctx context.Context, name string, r *request) (*hold, error) {
	w := l.queue.enter(name, r.ttl, r.mode == driver.Exclusive && !r.noRenew && r.atLeast == 0)
	if w == nil {
		return nil, nil
	}
	l.traceQueued(name)
	h, has, err := l.queue.wait(ctx, l.closing, name, w)
	switch {
	case err == nil:
		return h, nil
	case h != nil:
		h.discard()
	case has:
		l.queue.pass(name)
	}
	return nil, err
}

// busyHere is the refusal of somebody who did not get the turn.
func (l *Locker) busyHere(name string) *BusyError {
	busy := &BusyError{Resource: name}
	if h := l.queue.holder(name); h != nil {
		busy.Holder = h.describe()
	}
	return busy
}

// acquireOnce asks once. While another of this process contends, it asks the engine
// beside it, because only the engine knows who holds the resource.
func (l *Locker) acquireOnce(ctx context.Context, name string, r *request, start time.Time) (*Lease, error) {
	taken, by := l.queue.take(name)
	if by != nil {
		return nil, &BusyError{Resource: name, Holder: by.describe()}
	}
	return l.acquireAtEngine(ctx, name, r, start, taken, false)
}

// acquireAtEngine makes a claim and has it granted. hasTurn says that the caller has the
// turn: an exclusive lease keeps it, everything else passes it on.
func (l *Locker) acquireAtEngine(ctx context.Context, name string, r *request, start time.Time, hasTurn, queue bool) (*Lease, error) {
	h, err := l.newHold(name, l.owners.next(), r, queue)
	if err != nil {
		l.queue.passIf(hasTurn, name)
		return nil, err
	}
	keeps := hasTurn && r.mode == driver.Exclusive
	sent, grant, err := h.contend(ctx, queue)
	if err == nil {
		err = h.begin(sent, grant, keeps)
	}
	if err != nil && !queue && errors.Is(err, ErrBusy) {
		l.queue.passIf(hasTurn, name) // refused without a place: there is nothing to clean up
		return nil, err
	}
	if err != nil {
		// Nobody of this process contends before the clean-up is through, so that
		// nobody is refused because of what we left behind.
		l.abandon(ctx, h, func() { l.queue.passIf(hasTurn, name) })
		return nil, err
	}
	lease := h.adopt(ctx, r, h.granted)
	if lease == nil { // lost already; where it kept the turn, that went on
		l.abandon(ctx, h, func() {})
		l.queue.passIf(hasTurn && !keeps, name)
		return nil, h.lostFor()
	}
	if keeps {
		l.queue.keep(h)
	} else {
		l.queue.passIf(hasTurn, name)
	}
	h.plan(h.granted, nil)
	l.traceGranted(lease, start)
	return lease, nil
}

// newHold prepares a hold that will ask with owner.
func (l *Locker) newHold(name, owner string, r *request, queue bool) (*hold, error) {
	h := &hold{locker: l, ttl: r.ttl, noRenew: r.noRenew}
	h.leases, h.renewal.Value, h.watch.Value = h.only[:0], h, h
	h.req = driver.Request{
		Resource: name, Owner: owner, Mode: r.mode, Limit: r.limit,
		TTL: r.ttl, Queue: queue, Note: r.note, Lost: h.lose,
	}
	claim, err := l.driver.Claim(h.req)
	if err != nil {
		return nil, err
	}
	if r.atLeast > 0 && !lingers(claim) {
		return nil, ErrUnsupported
	}
	h.claim = claim
	return h, nil
}

// contend tries until the engine grants. It returns when the granting call was sent.
// Without queue it tries once. A refusal that is final is a *BusyError.
func (h *hold) contend(ctx context.Context, queue bool) (sent time.Time, g driver.Grant, err error) {
	var w waitState
	for {
		sent, g, err = h.try(ctx)
		if err == nil && h.locker.isClosing() {
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
				h.locker.traceQueued(h.req.Resource)
			}
			if err = w.sleepBusy(ctx, h.locker.closing, busy); err == nil {
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
			err = w.sleepError(ctx, h.locker.closing)
		}
		if err != nil {
			return sent, g, w.gaveUp(h.req.Resource, err)
		}
	}
}

// useful reports whether a grant, by a call that was sent at sent, has not passed its
// deadline yet.
func (h *hold) useful(sent time.Time, g driver.Grant) bool {
	return time.Since(sent) < g.TTL-h.locker.drift(g.TTL)
}

func errTooLate(ttl time.Duration) error {
	return fmt.Errorf("the engine's answers come too late for a TTL of %v", ttl)
}

// brought is the grant that came after a refusal without another Try, if it did. Who will
// not renew asks for the whole TTL instead.
func (h *hold) brought(sent time.Time, busy *driver.Busy) (g driver.Grant, ok bool) {
	select {
	case g = <-busy.Granted:
		return g, h.useful(sent, g) && !h.noRenew && !h.locker.isClosing()
	default:
		return g, false
	}
}

// try makes one bounded Try.
func (h *hold) try(ctx context.Context) (time.Time, driver.Grant, error) {
	sent := time.Now()
	call := newBound(ctx, sent.Add(min(h.req.TTL, callBound)))
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
	polls  int   // refusals without Wake
	early  int   // wake-ups in a row that came at once
	fails  int   // errors in a row
	failed error // the last of them
	late   int   // grants that came after the deadline they gave
}

// sleepBusy waits until it is useful to try again after a refusal.
func (w *waitState) sleepBusy(ctx context.Context, closing <-chan struct{}, busy *driver.Busy) error {
	w.queued, w.fails, w.holder = true, 0, holderOf(busy.Holder)
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

// gaveUp is the error of a waiter that ended for cause. Wait is for other holders: when
// the engine never answered, nobody knows of any.
func (w *waitState) gaveUp(name string, cause error) error {
	switch {
	case !errors.Is(cause, errWaited):
		return cause
	case !w.queued && w.failed != nil:
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, w.failed)
	case !w.queued:
		return fmt.Errorf("the engine did not answer within Wait: %w", context.DeadlineExceeded)
	}
	return &BusyError{Resource: name, Holder: w.holder}
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

// abandon releases what a claim that nobody wants may have left at the engine, then
// calls done.
func (l *Locker) abandon(ctx context.Context, h *hold, done func()) {
	l.tidy(func() {
		h.giveUp(ctx) // its answer matters to nobody: what it leaves ends by itself
		done()
	})
}

// tidy runs a clean-up and waits for it, but not for long: with the engine out of reach
// it goes on in the background.
func (l *Locker) tidy(clean func()) {
	timer := time.NewTimer(abandonWait)
	defer timer.Stop()
	select {
	case <-l.clean(clean):
	case <-timer.C:
	}
}

// clean runs a clean-up in the background and tells when it is through.
func (l *Locker) clean(up func()) (through <-chan struct{}) {
	finished := make(chan struct{})
	l.background(func() {
		up()
		close(finished)
	})
	return finished
}
