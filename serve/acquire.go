package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// An attempt is one call to acquire.
type attempt struct {
	s        *Server
	call     wire.AcquireCall
	received time.Time
	came     boottime.Instant
	chosen   bool   // the caller chose the owner, and may repeat the call
	by       string // who reserves the name; "": the call is no reservation
	whole    int64  // how long it is reserved, in milliseconds
	one      *claim
	// elsewhere: another instance, or another driver's claim, may have served an earlier call of the
	// owner.
	elsewhere bool
	checked   uint64    // the fence of the lease whose mode was checked last; 0: unknown, or none
	sent      time.Time // when the last Try was sent
	answered  time.Time // when it was answered
	grant     driver.Grant
	found     bool // resume has found a lease
	pace      waiting.Pace
}

func (s *Server) acquire(w http.ResponseWriter, r *http.Request, c *wire.AcquireCall) {
	s.serveAttempt(w, r, &attempt{s: s, call: *c, received: time.Now(), came: w.(*visit).came})
}

// serveAttempt serves one call to acquire.
func (s *Server) serveAttempt(w http.ResponseWriter, r *http.Request, a *attempt) {
	req, err := s.acquireRequest(a)
	if err != nil {
		s.rejected(w, err)
		return
	}
	v := about(w, a.call.Name, a.call.Owner)
	_, v.Details = wire.Said(req.Note)
	if !s.may(w, Lock, a.call.Name) {
		return
	}
	if a.call.Wait > 0 {
		leave, ok := s.gate.enter(w.(*visit).who(), waits)
		if !ok {
			s.tooMany(w)
			return
		}
		defer leave()
	}
	one, give, ok := s.enter(w, r, &a.call.Claim, true)
	if !ok {
		return
	}
	defer give()
	a.one = one
	err = a.run(r.Context(), req)
	if err == nil && a.whole > a.call.TTL {
		err = a.lengthen()
	}
	s.answerAttempt(w, r, a, err)
}

// lengthen extends the grant of a reservation to its whole length.
func (a *attempt) lengthen() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	a.sent = time.Now()
	a.grant, err = a.one.driver.Renew(ctx, a.s.roundUp(wire.Duration(a.whole)))
	if err != nil {
		a.s.ended(a.one, err)
		return noRefusal(err)
	}
	return a.granted(ctx)
}

// acquireRequest checks a call to acquire. It chooses an owner if the caller has not.
func (s *Server) acquireRequest(a *attempt) (driver.Request, error) {
	c := &a.call
	if err := s.checkTTL(c.TTL); err != nil {
		return driver.Request{}, err
	}
	switch {
	case c.Wait < 0, c.AtLeast < 0:
		return driver.Request{}, errors.New("a length of time is negative")
	case c.AtLeast > wire.Millis(maxTTL):
		return driver.Request{}, fmt.Errorf("at_least_ms is above %d", wire.Millis(maxTTL))
	case c.AtLeast > 0 && !s.features.Lingers:
		return driver.Request{}, fmt.Errorf("%w: at_least_ms", driver.ErrUnsupported)
	case c.Wanted && !s.features.Tells:
		return driver.Request{}, fmt.Errorf("%w: wanted", driver.ErrUnsupported)
	case c.Queue && c.Owner == "":
		return driver.Request{}, errors.New("who keeps a place in the queue over calls needs an owner of its own")
	}
	if a.chosen = c.Owner != ""; !a.chosen {
		c.Owner = newOwner()
	}
	note, err := wire.Noted(c.Note, c.Details)
	if err != nil {
		return driver.Request{}, err
	}
	c.Note = note
	req, err := s.requestOf(&c.Claim, c.TTL)
	req.Queue, req.WantedOnce = c.Queue || c.Wait > 0, c.Wanted && c.WantedOnce
	return req, err
}

var (
	errSuperseded = errors.New("another call of this owner came")
	errWaited     = errors.New("the wait ran out")
	errGone       = errors.New("the caller is gone")
	errDraining   = errors.New("this instance is stopping: repeat the call at another")
	errOther      = errors.New("this owner has a claim in another mode, or with another limit: take another owner")
)

// run tries until the engine grants, the wait is over, or the caller is gone.
func (a *attempt) run(ctx context.Context, req driver.Request) error {
	s := a.s
	s.claims.mu.Lock()
	a.one.chosen = a.chosen
	isEnded := a.one.phase == ended
	mayBeEnded := a.call.Call == 0 || a.one.sure < a.call.Call // by a release that is late
	removed, refused := s.claims.removedHere(a.one, order{a.call.Caller, a.call.Call, a.call.Answered})
	s.claims.mu.Unlock()
	if removed != nil && (refused || isEnded || !s.features.Resumes) {
		a.leaves()
		return removed
	}
	if isEnded && mayBeEnded {
		return errUsed
	}
	if a.one.acquires && !isEnded && !alike(a.one.req, req.Mode, req.Limit, req.Weight) {
		return errOther
	}
	if err := s.renewClaim(a.one, req, a.call.Wanted); err != nil {
		return err
	}
	known := a.call.Call != 1 || !a.one.lease.since.IsZero() // a caller's first call counts as the owner's first
	a.elsewhere = removed != nil || !a.one.acquires && a.chosen && known && s.features.Resumes
	if a.elsewhere {
		err := a.resume()
		if a.found || !errors.Is(err, driver.ErrLost) {
			return err
		}
		if removed != nil {
			s.claims.refuses(a.one) // its attempts without an answer have got nothing
			a.leaves()
			return removed
		}
	}
	a.one.acquires = true
	patient, cancel := a.waitContext(ctx)
	defer cancel()
	for err := error(nil); ; {
		if ctx.Err() != nil {
			return errGone // do not acquire what cannot be reported
		}
		if s.isTooOld(a.came, a.wait()) {
			return cmp.Or(a.outcome(err), errTooOld) // a caller that was refused before has waited
		}
		if err = a.try(); err == nil {
			return nil
		}
		if a.call.Wait == 0 || err == errOther || errors.Is(err, driver.ErrEvicted) || !a.pace.GoesOn(err) || a.pace.Rest(patient, nil, err) != nil {
			return a.whyEnded(patient, err)
		}
	}
}

// renewClaim replaces the driver's claim if the caller asks for something else. If the engine ties
// a lease or a place to the claim, the claim stays until the engine has reported the end of that.
func (s *Server) renewClaim(one *claim, req driver.Request, wanted bool) error {
	was := one.req
	switch {
	case one.driver == nil:
	case !s.features.Resumes && s.claims.lasting(one, time.Now()) && len(one.cause) == 0:
		if !alike(was, req.Mode, req.Limit, req.Weight) {
			return errOther
		}
		if was.TTL != req.TTL {
			return fmt.Errorf("%w: another TTL than that of the owner's claim, %d ms", driver.ErrUnsupported, wire.Millis(was.TTL))
		}
	case was.Mode != req.Mode || was.Limit != req.Limit || was.Weight != req.Weight || was.TTL != req.TTL || was.Queue != req.Queue || was.Note != req.Note || wanted != (one.recall != nil) || was.WantedOnce != req.WantedOnce:
		if s.features.Resumes {
			s.forget(one)
		} else {
			s.end(one) // else its late calls could arrive after those of the next claim
		}
		one.driver, one.acquires = nil, false
	}
	return s.use(one, req, wanted)
}

// wait returns how long the call may wait for other holders.
func (a *attempt) wait() time.Duration {
	return min(wire.Duration(min(a.call.Wait, wire.Millis(maxTTL))), a.s.opts.MaxWait)
}

// leaves reports that a removed waiter has given up its place, unless the removal has reported it.
func (a *attempt) leaves() {
	if !a.one.queued.IsZero() {
		a.s.hub.left(a.one)
	}
}

// waitContext returns a context that ends when the call must stop waiting.
func (a *attempt) waitContext(ctx context.Context) (context.Context, func()) {
	s := a.s
	ctx, end := context.WithTimeoutCause(ctx, time.Until(a.received.Add(a.wait())), errWaited)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.draining, func() { cancel(errDraining) })
	s.claims.mu.Lock()
	if a.one.waiting = cancel; a.one.entries > a.one.entry {
		cancel(errSuperseded)
	}
	s.claims.mu.Unlock()
	return ctx, func() {
		s.claims.mu.Lock()
		a.one.waiting = nil
		s.claims.mu.Unlock()
		stop()
		cancel(nil)
		end()
	}
}

// resume looks for a lease that the owner got by a call to another instance, or by another driver's
// claim. It renews, because a Try of a driver's claim that is new may look like the owner's first.
// It sets found if there was one, which may have ended since.
//
// A refusal changes nothing, and a renewal may shorten the lease. So the mode is checked before. If
// that check has no answer, the lease is not renewed.
func (a *attempt) resume() (err error) {
	defer func() {
		a.one.acquires = err == nil
		a.one.learns(err)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	switch err := a.checkMode(ctx); {
	case errors.Is(err, driver.ErrCorrupt):
		return driver.ErrLost // the owner is not among the holders that can be read
	case err != nil:
		return noRefusal(err)
	}
	a.sent = time.Now()
	a.one.recall.begin()
	if a.grant, err = a.one.driver.Renew(ctx, a.one.req.TTL); err != nil {
		return noRefusal(err)
	}
	a.found = true
	return a.granted(ctx)
}

// try makes one Try. If the connection ends, the Try goes on, because its outcome would be unknown
// otherwise.
func (a *attempt) try() (err error) {
	defer func() { a.one.learns(err) }()
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	a.sent = time.Now()
	a.one.recall.begin()
	a.grant, err = a.one.driver.Try(ctx)
	a.answered = time.Now()
	if err == nil {
		before := a.one.lease
		if err = a.granted(ctx); err == nil && a.one.lease.since != before.since {
			a.s.metrics.grants.count(label("mode", a.one.req.Mode.String()))
		}
	} else if busy, refused := errors.AsType[*driver.Busy](err); refused && a.one.req.Queue {
		a.s.claims.queues(a.one, busy.Holder)
		if a.one.queued.IsZero() {
			a.one.queued = a.sent
			a.s.hub.waits(a.one)
		}
	} else if !isNo(err) && !a.s.features.Resumes {
		a.s.claims.lasts(a.one, onDoubt, a.answered.Add(max(a.one.req.TTL, keepPlace)))
	}
	return err
}

// isNo reports whether an attempt that ended in err has certainly got nothing.
func isNo(err error) bool {
	return errors.Is(err, driver.ErrBusy) || errors.Is(err, driver.ErrNotYet) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrTooHeavy)
}

// learns records whether an attempt that ended in err may have got a lease. Requires the turn.
func (one *claim) learns(err error) {
	switch {
	case errors.Is(err, driver.ErrNotYet): // which tells nothing
	case err == nil, isNo(err):
		one.doubt = nil
	default:
		one.doubt = err
	}
}

// noRefusal returns the error of a call for an owner that may hold a lease. ErrNotYet is a refusal
// only from Try.
func noRefusal(err error) error {
	if errors.Is(err, driver.ErrNotYet) {
		return fmt.Errorf("the owner may hold a lease: %v", err)
	}
	return err
}

// granted records a grant. If the lease may be from a call to another instance, granted checks that
// the lease has the requested mode.
func (a *attempt) granted(ctx context.Context) error {
	one := a.one
	one.recall.granted(a.grant.Fence)
	another := !one.lease.since.IsZero() && one.lease.fence != a.grant.Fence
	if isChecked := a.checked > 0 && a.checked == a.grant.Fence; (a.elsewhere || another) && !isChecked {
		if err := a.checkMode(ctx); err != nil {
			one.acquires = false // its mode is not the lease's
			return noRefusal(err)
		}
	}
	if one.lease.fence != a.grant.Fence || one.lease.since.IsZero() {
		if err := a.s.begins(one, a.grant.Fence, a.sent); err != nil {
			return err
		}
		one.lease = lastGrant{a.sent, !a.elsewhere, wire.Duration(a.call.AtLeast), a.grant.Fence, &term{}}
		one.lease.term.lasts(a.sent, a.grant.TTL)
		a.s.hub.granted(one, more{waited: a.waited(), by: a.by, found: a.found})
		one.queued = time.Time{}
	} else {
		one.lease.term.lasts(a.sent, a.grant.TTL)
	}
	a.s.claims.lasts(one, onGrant, a.sent.Add(a.grant.TTL))
	return nil
}

// waited returns how long the claim waited for its grant, in milliseconds. nil: only another
// instance may know.
func (a *attempt) waited() *int64 {
	if a.elsewhere && a.one.queued.IsZero() {
		return nil
	}
	if a.one.queued.IsZero() {
		return new(int64)
	}
	return sinceOf(a.one.queued, a.sent)
}

// alike reports whether req has that mode, limit and weight.
func alike(req driver.Request, mode driver.Mode, limit, weight int) bool {
	return req.Mode == mode && req.Limit == limit && mode.Uses(req.Weight) == mode.Uses(weight)
}

// checkMode asks the engine whether the claim's lease has the requested mode. A caller that
// believes it holds exclusively, while it shares, would not expect other holders.
func (a *attempt) checkMode(ctx context.Context) error {
	h, err := a.s.heldBy(ctx, a.one)
	if a.checked = h.Fence; a.one.isOf(h) && !alike(a.one.req, h.Mode, h.Limit, h.Weight) {
		return errOther
	}
	return err // no holder: the lease has ended, and its deadline covers that
}

// outcome returns the error of an attempt whose last Try returned err. ErrNotYet is no refusal if the
// owner may hold by an earlier Try.
func (a *attempt) outcome(err error) error {
	if a.one.doubt != nil || a.s.claims.holds(a.one) {
		return noRefusal(err)
	}
	return err
}

// whyEnded returns the error of an attempt whose last Try returned err. Only a refusal gives way to
// what has ended the wait: if a Try had no answer, the caller may hold.
func (a *attempt) whyEnded(patient context.Context, err error) error {
	isRefused := errors.Is(err, driver.ErrBusy) || errors.Is(err, driver.ErrNotYet)
	if isRefused && a.s.features.Resumes && a.s.claims.removalOf(a.one) != nil {
		if err := a.resume(); !errors.Is(err, driver.ErrLost) { // its place may have got the lease before
			return err
		}
		a.s.claims.refuses(a.one)
	}
	err = a.outcome(err)
	cause := context.Cause(patient)
	switch {
	case !isNo(err), a.call.Wait == 0, cause == nil, cause == errWaited:
		return err
	case cause == errSuperseded, cause == errDraining, errors.Is(cause, driver.ErrEvicted):
		return cause
	}
	return errGone
}

// answerAttempt answers the caller. A caller that did not choose the owner cannot call again until
// it knows the owner. So a refusal leaves no place in the queue, and a grant that cannot be
// delivered is released.
//
// A caller that chose the owner can call again and find its lease. That lease must not be released,
// because another instance may have reported it already.
func (s *Server) answerAttempt(w http.ResponseWriter, r *http.Request, a *attempt, err error) {
	busy, refused := errors.AsType[*driver.Busy](err)
	switch {
	case err == nil:
		grant := grantOf(a.call.Claim, a.grant, a.received, a.sent)
		grant.Wanted = a.one.recall.came()
		switch gone := r.Context().Err() != nil; {
		case a.chosen:
			s.answer(w, http.StatusOK, grant)
		case !gone:
			if !s.answer(w, http.StatusOK, grant) {
				s.giveUp(a.one)
			}
		case s.giveUp(a.one): // the caller may have closed only the half that sends
			s.notGranted(w, wire.CodeBusy, errGone, false)
		default:
			s.unknown(w, errGone)
		}
		return
	case err == errUsed, errors.Is(err, driver.ErrBarred) && !errors.Is(err, driver.ErrEvicted): // a waiter that another service has removed matches both
		s.claims.on(a.one, onEnd)
		s.lost(w, wire.CodeUsed, errUsed)
		return
	case err == errTooOld:
		s.tooOld(w)
		return
	case err == errOther:
		s.invalid(w, err)
		return
	case !a.chosen && (!refused || a.one.req.Queue):
		defer s.giveUp(a.one)
	}
	switch {
	case refused:
		now := *busy
		now.Holder = busy.Holder.Later(time.Since(a.answered))
		s.busy(w, &now, a.chosen && a.one.req.Queue)
	case err == errGone: // nobody reads the answer
		s.notGranted(w, wire.CodeBusy, err, false)
	case err == errSuperseded: // the other call may give up the place
		s.notGranted(w, wire.CodeSuperseded, err, false)
	case err == errDraining:
		s.notGranted(w, wire.CodeDraining, err, a.chosen)
	case errors.Is(err, driver.ErrNotYet):
		s.notGranted(w, wire.CodeNotYet, err, false)
	default:
		s.failed(w, err)
	}
}

// giveUp releases whatever the claim has or may have. It reports whether nothing is left. If the
// release has no answer, a lease that was granted is released once more when its TTL is over; what an
// unanswered acquire may have got ends with its TTL. Requires the turn.
func (s *Server) giveUp(one *claim) bool {
	if one.driver == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	err := one.driver.Release(ctx, driver.End{})
	if err == nil {
		s.hub.released(one)
	}
	if err == nil || errors.Is(err, driver.ErrLost) {
		s.claims.on(one, onEnd)
		return true
	}
	one.unwanted = true
	one.mayBeReleased(err)
	return false
}
