package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// with makes one call on the claim that c names, in its turn, and answers an error. If call returns
// nil, it must have answered itself.
func (s *Server) with(w http.ResponseWriter, r *http.Request, c *wire.Claim, ttl int64, call func(ctx context.Context, one *claim) error) {
	req, err := s.requestOf(c, ttl)
	if err == nil && c.Owner == "" {
		err = errors.New("the owner is missing")
	}
	if err != nil {
		s.rejected(w, err)
		return
	}
	about(w, c.Name, c.Owner)
	if !s.may(w, Lock, c.Name) {
		return
	}
	one, give, ok := s.enter(w, r, c, false)
	if !ok {
		return
	}
	defer give()
	if err := s.use(one, req, false); err != nil {
		s.failed(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callBound)
	defer cancel()
	if err := call(ctx, one); err != nil {
		s.failed(w, s.why(one, err))
	}
}

// enter finds the claim that c names and takes its turn, unless a later call of its caller has come
// meanwhile. If it fails, it has answered.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, c *wire.Claim, acquires bool) (one *claim, give func(), ok bool) {
	now := order{c.Caller, c.Call, c.Answered}
	one, entry, err := s.claims.enter(c.Name, c.Owner, now, acquires)
	if err != nil {
		code := wire.CodeLate
		if err == errUsed {
			code = wire.CodeUsed
		}
		s.lost(w, code, err)
		return nil, nil, false
	}
	if err := take(r.Context(), one); err != nil {
		s.quit(one)
		s.unknown(w, err)
		return nil, nil, false
	}
	one.entry = entry
	give = func() { s.leave(one) }
	if s.claims.isLate(one, now) {
		give()
		s.lost(w, wire.CodeLate, errLate)
		return nil, nil, false
	}
	if s.isTooOld(w.(*visit).came, 0) {
		give()
		s.tooOld(w)
		return nil, nil, false
	}
	if s.claims.hasSkipped(one) && s.features.Resumes { // what this instance knows of the claim, such as its mode, may be outdated
		s.forget(one)
		one.driver, one.acquires, one.lease.ours = nil, false, false
	}
	return one, give, true
}

// leave gives up the turn of a claim. The last caller forgets the driver's claim, if none is kept.
func (s *Server) leave(one *claim) {
	for !s.claims.leave(one, one.driver != nil && s.mayForget(one)) {
		one.driver.Forget()
		one.driver, one.acquires = nil, false
	}
}

// quit is leave for a caller without the turn.
func (s *Server) quit(one *claim) {
	if s.claims.quits(one) {
		s.leave(one)
	}
}

func (s *Server) renew(w http.ResponseWriter, r *http.Request, c *wire.RenewCall) {
	if err := s.checkTTL(c.TTL); err != nil {
		s.rejected(w, err)
		return
	}
	s.with(w, r, &c.Claim, c.TTL, func(ctx context.Context, one *claim) error {
		if c.Wanted {
			if err := s.asksRecall(one, c.WantedOnce); err != nil {
				return err
			}
		}
		sent := time.Now()
		one.recall.begin()
		g, err := one.driver.Renew(ctx, s.roundUp(wire.Duration(c.TTL)))
		if err != nil {
			s.ended(one, err)
			return err
		}
		one.recall.granted(g.Fence)
		if one.lease.since.IsZero() || one.lease.fence != g.Fence { // another instance has granted it
			if err := s.begins(one, g.Fence, sent); err != nil {
				return err
			}
			one.acquires = false // it may be in another mode
			one.lease = lastGrant{since: sent, fence: g.Fence, term: &term{}}
			one.lease.term.lasts(sent, g.TTL)
			s.hub.renewed(one)
		} else {
			one.lease.term.lasts(sent, g.TTL)
		}
		s.claims.lasts(one, onGrant, sent.Add(g.TTL))
		answer := grantOf(c.Claim, g, w.(*visit).began, sent)
		answer.Wanted = one.recall.came()
		s.answer(w, http.StatusOK, answer)
		return nil
	})
}

// ended records that the claim's lease is over, if err says so.
func (s *Server) ended(one *claim, err error) {
	if !errors.Is(err, driver.ErrLost) {
		return
	}
	if !one.lease.since.IsZero() {
		ranOut := s.claims.outlasted(one, time.Now())
		if !errors.Is(err, driver.ErrEvicted) {
			one.findCause(ranOut)
		}
		if s.claims.evictedHere(one.key) == nil { // otherwise the history has the eviction already
			s.hub.lost(one, s.why(one, err), ranOut)
		}
		s.hub.soonIfHeard()
	}
	s.claims.on(one, onLoss)
}

func (s *Server) release(w http.ResponseWriter, r *http.Request, c *wire.ReleaseCall) {
	if most := wire.Millis(maxTTL); c.Linger < 0 || c.AtLeast < 0 || c.Linger > most || c.AtLeast > most {
		s.invalid(w, fmt.Errorf("linger_ms and at_least_ms are 0 to %d", most))
		return
	}
	r = r.WithContext(context.WithoutCancel(r.Context())) // an acquire that has the turn may yet be granted to a caller that is gone
	s.with(w, r, &c.Claim, s.anyTTL(), func(ctx context.Context, one *claim) error {
		err := s.giveBack(ctx, one, c)
		switch {
		case err == nil:
			s.hub.released(one)
			s.claims.on(one, onEnd)
			s.done(w)
		case errors.Is(err, driver.ErrLost):
			s.ended(one, err)
			s.claims.on(one, onEnd)
		}
		return err
	})
}

// giveBack releases the lease, or leaves it to linger if it must be held for longer. If an acquire
// of the owner may arrive late, the owner is barred.
func (s *Server) giveBack(ctx context.Context, one *claim, c *wire.ReleaseCall) error {
	var how driver.End
	if s.features.Bars && s.claims.mayBeLate(one) {
		how.Bar = s.keepMark()
		defer func() { one.driver.Forget(); one.driver, one.acquires = nil, false }()
	}
	linger, err := s.lingering(ctx, one, c)
	if err != nil {
		return err
	}
	if how.Linger = max(linger, 0); how.Linger > 0 && !s.features.Lingers {
		return fmt.Errorf("%w: linger_ms and at_least_ms", driver.ErrUnsupported)
	}
	err = one.driver.Release(ctx, how)
	if how.Linger > 0 && errors.Is(err, driver.ErrLost) { // what has no lease to leave behind may have a place
		how.Linger = 0
		again := one.driver.Release(ctx, how)
		if again == nil || one.lease.since.IsZero() && !errors.Is(again, driver.ErrLost) { // a lease is lost, whatever this says
			err = again
		}
	}
	one.mayBeReleased(err)
	return err
}

// mayBeReleased records that a release has returned err: without an answer, it may have ended the
// lease. Requires the turn.
func (one *claim) mayBeReleased(err error) {
	if t := one.lease.term; t != nil && outcomeOf(err) == wire.Unknown {
		t.givenUp.Store(true)
	}
}

// lingering returns how much longer nobody else may be granted the lock. If this instance may not
// have granted the lease, it asks the engine when the lease began, and whether it is the known one.
// at_least_ms counts from now if neither the engine nor this instance knows.
func (s *Server) lingering(ctx context.Context, one *claim, c *wire.ReleaseCall) (time.Duration, error) {
	if c.Unused {
		return 0, nil
	}
	linger := wire.Duration(c.Linger)
	known := one.lease
	if known.ours || c.AtLeast == 0 && known.atLeast == 0 {
		return max(linger, max(known.atLeast, wire.Duration(c.AtLeast))-time.Since(known.since)), nil
	}
	h, err := s.heldBy(ctx, one)
	if one.isOf(h) && h.Fence > 0 && h.Fence == known.fence {
		h.Held = max(h.Held, time.Since(known.since))
	}
	if known.atLeast > 0 && (!one.isOf(h) || h.Fence == known.fence) {
		linger = max(linger, known.atLeast-time.Since(known.since))
	}
	if c.AtLeast == 0 {
		return linger, nil // without an answer, the known lease counts
	}
	return max(linger, wire.Duration(c.AtLeast)-h.Held), err
}

// heldBy asks the engine how the claim holds. The zero Holder: it does not, or the engine does not
// tell.
func (s *Server) heldBy(ctx context.Context, one *claim) (driver.Holder, error) {
	state, err := s.inspect(ctx, one.key.name)
	if i := slices.IndexFunc(state.Holders, one.isOf); i >= 0 {
		return state.Holders[i], nil
	}
	return driver.Holder{}, err
}

// anyTTL returns a valid TTL for a claim that is not meant to be granted.
func (s *Server) anyTTL() int64 {
	f := s.driver.Features()
	if f.SessionTTL > 0 {
		return wire.Millis(f.SessionTTL)
	}
	return wire.Ceil(max(f.MinTTL, time.Second))
}

func (s *Server) note(w http.ResponseWriter, r *http.Request, c *wire.NoteCall) {
	note, err := wire.Noted(c.Note, c.Details)
	if err != nil {
		s.invalid(w, err)
		return
	}
	text := c.Details == nil
	c.Note = note
	s.with(w, r, &c.Claim, s.anyTTL(), func(ctx context.Context, one *claim) error {
		if !s.features.Notes {
			return fmt.Errorf("%w: notes that change", driver.ErrUnsupported)
		}
		if text {
			if note, err = s.detailed(ctx, one, note); err != nil {
				return err
			}
		}
		err := one.driver.Note(ctx, note)
		if err == nil {
			s.done(w)
		}
		s.ended(one, err)
		return err
	})
}

// detailed adds the details of the claim's current note to text. Without details it returns text.
func (s *Server) detailed(ctx context.Context, one *claim, text string) (string, error) {
	if _, told := wire.Said(text); told != nil || s.operator == nil {
		return text, nil
	}
	h, err := s.heldBy(ctx, one)
	if err != nil {
		return text, err
	}
	_, of := wire.Said(h.Note)
	if of != nil {
		of.Text = ""
	}
	note, err := wire.Noted(text, of)
	if err == nil && driver.CheckNote(note) != nil {
		note = text
	}
	return note, err
}

func (s *Server) evict(w http.ResponseWriter, r *http.Request, c *wire.EvictCall) {
	if err := driver.CheckName(c.Name); err != nil {
		s.rejected(w, err)
		return
	}
	if err := driver.CheckNote(c.Reason); err != nil {
		s.invalid(w, fmt.Errorf("reason: %w", err))
		return
	}
	v := about(w, c.Name, c.Owner)
	v.Reason = c.Reason
	s.operate(v, r, callBound, s.failed, func(ctx context.Context) error {
		holder, err := s.evictNow(ctx, c, v.who())
		_, v.Details = wire.Said(holder.Note)
		return err
	})
}

// operate makes one call of an operator on the visit's name, and answers. failed answers its error.
func (s *Server) operate(v *visit, r *http.Request, bound time.Duration, failed func(http.ResponseWriter, error), call func(ctx context.Context) error) {
	if !s.may(v, Evict, v.Name) {
		return
	}
	if s.isTooOld(v.came, 0) {
		s.tooOld(v)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), bound)
	defer cancel()
	if err := call(ctx); err != nil {
		failed(v, err)
		return
	}
	s.done(v)
}

// heldOrFailed is failed for a call that somebody may prevent by holding the name.
func (s *Server) heldOrFailed(w http.ResponseWriter, err error) {
	if busy, held := errors.AsType[*driver.Busy](err); held {
		s.busy(w, busy, false)
		return
	}
	s.failed(w, err)
}

// evictNow ends the lease of the owner that c names, in full or by its handle. by is who evicts.
func (s *Server) evictNow(ctx context.Context, c *wire.EvictCall, by string) (holder driver.Holder, err error) {
	if s.operator == nil {
		return driver.Holder{}, fmt.Errorf("%w: evictions", driver.ErrUnsupported)
	}
	if holder, err = s.holderCalled(ctx, c.Name, c.Owner); err != nil {
		return driver.Holder{}, err
	}
	l := lease{c.Name, wire.HandleOf(holder.Owner)}
	done := s.hub.evict(evictee{l, token(holder.Fence)})
	defer func() { done(err == nil) }()
	if err = s.operator.Evict(ctx, c.Name, holder.Owner.Reveal(), c.Reason); err != nil {
		return holder, err
	}
	s.claims.evicts(l, holder.Fence, c.Reason)
	s.hub.evicted(c.Name, holder, c.Reason, by)
	return holder, nil
}

// holderCalled returns the holder of name with that owner or handle. If there is none, it returns a
// Holder with nothing but the owner.
func (s *Server) holderCalled(ctx context.Context, name, owner string) (driver.Holder, error) {
	if owner == "" {
		return driver.Holder{}, nil
	}
	state, err := s.inspect(ctx, name)
	for _, h := range state.Holders {
		if wire.Names(owner, h.Owner) {
			return h, nil
		}
	}
	return driver.Holder{Owner: driver.OwnerOf(owner)}, err
}

func (s *Server) fence(w http.ResponseWriter, r *http.Request, c *wire.FenceCall) {
	fence, err := strconv.ParseUint(c.Token, 10, 64)
	if err != nil {
		s.invalid(w, errors.New("token is no number"))
		return
	}
	if err := driver.CheckName(c.Name); err != nil {
		s.rejected(w, err)
		return
	}
	v := about(w, c.Name, "")
	v.Token = token(fence)
	if c.Owner == "" {
		s.operate(v, r, callBound, s.failed, func(ctx context.Context) error {
			if !s.features.Raises {
				return fmt.Errorf("%w: fences that are raised", driver.ErrUnsupported)
			}
			return s.operator.RaiseFence(ctx, c.Name, fence)
		})
		return
	}
	if !s.may(w, Evict, c.Name) {
		return
	}
	s.with(w, r, &c.Claim, s.anyTTL(), func(ctx context.Context, one *claim) error {
		if err := one.driver.LiftFence(ctx, fence); err != nil {
			return err
		}
		s.done(w)
		return nil
	})
}

func (s *Server) limit(w http.ResponseWriter, r *http.Request, c *wire.LimitCall) {
	if err := driver.CheckName(c.Name); err != nil {
		s.rejected(w, err)
		return
	}
	if c.Limit == nil {
		s.invalid(w, errors.New("limit is missing; 0 removes it"))
		return
	}
	limit := *c.Limit
	if err := driver.CheckLimit(limit); err != nil {
		s.invalid(w, err)
		return
	}
	v := about(w, c.Name, "")
	v.Reason = fmt.Sprintf("limit %d", limit)
	s.operate(v, r, callBound, s.failed, func(ctx context.Context) error {
		if !s.features.Limits {
			return fmt.Errorf("%w: limits of operators", driver.ErrUnsupported)
		}
		return s.operator.SetLimit(ctx, c.Name, limit)
	})
}
