package caslock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/internal/record"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// claim implements driver.Claim, driver.FenceLifter and driver.Forgetter. Its lease or place is in the record, and
// nowhere else unless the store is a Queuer.
type claim struct {
	d      *Driver
	req    driver.Request
	open   uncertain // the last write, if it has no answer
	gave   []parting // releases that were written, maybe without an answer
	known  bool      // a Try or a loss has shown what the claim has; false if a failed Try, or another process that had its place, may have been granted it
	queued bool      // the last Try left a place
	holds  bool      // it was granted, and has not seen its end
	gone   bool      // it was released, and has asked for nothing since

	place   *stored       // the place beside the record; nil: none
	marked  bool          // the record says that there are places beside it
	leaving chan struct{} // closed when the unneeded place is removed; nil: there was none
}

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (g driver.Grant, err error) {
	c.gone = false
	if !c.req.Queue {
		return c.try(ctx, nil, 0)
	}
	if c.place != nil {
		return c.stay(ctx)
	}
	if busy := c.remembered(); busy != nil && ctx.Err() == nil {
		return g, busy
	}
	asking, err := c.d.lanes.Begin(ctx, c.req.Resource)
	if err == nil {
		g, err = c.join(ctx)
	}
	return g, asking.End(err)
}

// join is a Try of a waiter.
func (c *claim) join(ctx context.Context) (driver.Grant, error) {
	s := c.d.resource(c.req.Resource)
	if c.d.watch == nil {
		return c.wait(ctx, s, nil)
	}
	if !c.queued { // usually the resource is free, and no watch is needed
		g, err := c.try(ctx, nil, 0)
		if _, busy := err.(*driver.Busy); !busy {
			return g, err
		}
	}
	if c.d.crowd != nil {
		return c.queue(ctx)
	}
	wake := s.arm(c.req.Owner) // before the record is read, or the write confirms it
	c.d.watch.listen(ctx)
	if err := c.d.follow(ctx, s); err != nil {
		return driver.Grant{}, err
	}
	g, err := c.wait(ctx, s, wake)
	if _, c.queued = err.(*driver.Busy); !c.queued {
		s.disarm(c.req.Owner)
	}
	return g, err
}

// wait is a Try of a waiter whose place is in the record. A process makes one at a time, unless
// one hangs: usually the one before has also renewed the places of the others.
func (c *claim) wait(ctx context.Context, s *resource, wake <-chan struct{}) (driver.Grant, error) {
	select {
	case s.alone <- struct{}{}:
		defer s.alone.End()
	case <-time.After(c.d.opts.Place / keepShare): // it hangs
	case <-ctx.Done():
		return driver.Grant{}, ctx.Err()
	}
	if busy := c.remembered(); busy != nil {
		return driver.Grant{}, busy
	}
	return c.try(ctx, wake, c.d.opts.Place)
}

// follow makes the watch keep this process's copy of the record up to date.
func (d *Driver) follow(ctx context.Context, s *resource) error {
	session := d.watch.session()
	if session == 0 || s.follows(session) {
		return nil // without a watch, every call reads the record
	}
	_, _, err := d.current(ctx, s, true)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.session = session
	}
	return err
}

// remembered returns the refusal of a waiter that is behind others in the record, if this
// process knows so without asking the store. It knows by the watch, or because it has asked so
// recently that the others' turns are not over. nil: ask the store.
func (c *claim) remembered() *driver.Busy {
	s, place := c.d.resource(c.req.Resource), c.d.opts.Place
	var wake <-chan struct{}
	if c.d.crowd != nil || c.d.watch != nil && !c.queued || c.d.life.Err() != nil {
		return nil
	}
	if c.d.watch != nil {
		if session := c.d.watch.session(); session == 0 || !s.follows(session) {
			return nil
		}
		c.d.watch.going() // the watch is in use
		wake = s.arm(c.req.Owner)
	}
	s.tries(c.req.Owner, time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.view()
	ahead := v.ahead(c.req.Owner)
	moment := min(place/8, time.Duration(ahead)*c.d.opts.Poll/8)
	if !s.known || c.d.watch == nil && time.Since(s.told) > moment || v.mayBeNext(&c.req) {
		return nil
	}
	full := v.full(c.req.Owner)
	if a := v.Obstacle(&v.clock, &c.req); !a.Granted && !a.Heavy && (full || v.keeps(c.req.Owner, place)) {
		busy := c.refusal(&v, &a, wake, ahead)
		c.stayOutside(s, busy, full)
		return busy
	}
	return nil
}

// stayOutside schedules another try of a waiter that finds no place. Requires s.mu.
func (c *claim) stayOutside(s *resource, busy *driver.Busy, full bool) {
	if !full {
		delete(s.outside, c.req.Owner)
		return
	}
	busy.Retry = c.d.opts.Place/2 - waiting.Jitter(c.d.opts.Place/4)
	if s.outside == nil {
		s.outside = make(map[string]bool)
	}
	s.outside[c.req.Owner] = true
}

// mayBeNext reports whether no other waiter in the record is ahead of req, or req was granted or
// given up.
func (v *view) mayBeNext(req *driver.Request) bool {
	var ahead queue.Ahead
	for i := range v.Claims {
		c := &v.Claims[i]
		switch {
		case c.Owner == req.Owner && c.Status != record.Waiting:
			return true
		case c.Owner == req.Owner:
			return ahead.Admits(v.Decided(req))
		case c.Status == record.Waiting:
			ahead.Add(c.Rule())
		}
	}
	return ahead.Admits(v.Decided(req))
}

// try makes one attempt. If place is not 0, it leaves a place in the record for that long.
func (c *claim) try(ctx context.Context, wake <-chan struct{}, place time.Duration) (driver.Grant, error) {
	c.gave = nil
	since := c.hears()
	var busy *driver.Busy
	var looked *line
	var refused error // it is never granted
	look, number := false, uint64(0)
	s := c.d.resource(c.req.Resource)
	if place > 0 {
		s.tries(c.req.Owner, time.Now())
	}
	attempt := func(v *view) (write bool) {
		v.looked, v.patient = looked, place > 0
		a, ahead, held := v.Obstacle(&v.clock, &c.req), v.ahead(c.req.Owner), v.Holds(c.req.Owner)
		switch refused = nil; {
		case v.KeepsOut(c.req.Owner):
			refused = driver.ErrBarred
		case a.Heavy && !held:
			refused = driver.ErrTooHeavy
		}
		blocked := false // by places beside the record
		if look = false; a.Granted && c.d.crowd != nil && !held {
			if a.Granted, look = c.passes(v); !a.Granted {
				blocked, a.Until, number = true, c.d.opts.Place/keepShare, c.d.number(v.version)
			}
		}
		outside := place > 0 && v.full(c.req.Owner)
		if write = !blocked && refused == nil && (a.Granted || !outside && !v.keeps(c.req.Owner, place)); write {
			n := len(v.Claims)
			a, write = v.Try(&v.clock, &c.req, place, v.floor)
			v.keepOthers(s.triedSince(time.Now().Add(-place*3/8)), place)
			v.reserve(n, a.Granted && !held)
		}
		busy, v.served = nil, ""
		switch {
		case refused != nil:
		case a.Granted && c.place != nil:
			v.served = idOf(c.req.Owner)
		case !a.Granted:
			busy = c.refusal(v, &a, wake, ahead)
			if place > 0 {
				s.mu.Lock()
				c.stayOutside(s, busy, outside)
				s.mu.Unlock()
			}
			if c.place != nil && v.Beside != record.Some { // before the answer; see line.mark
				v.Beside, write = record.Some, true
			}
		}
		return write
	}
	r, err := c.d.change(ctx, c.req.Resource, &c.open, attempt)
	if err == nil && look && c.place == nil && (!c.req.Queue || place > 0) {
		if looked, err = c.d.crowd.look(ctx, c.req.Resource); err == nil {
			looked.upTo = number
			r, err = c.d.change(ctx, c.req.Resource, &c.open, attempt)
		}
	}
	if c.known = err == nil; err != nil {
		return driver.Grant{}, err
	}
	switch {
	case refused != nil:
		s.ignore(c)
		c.dropPlace()
		return driver.Grant{}, refused
	case busy != nil:
		s.ignore(c)
		c.marked = c.place != nil
		return driver.Grant{}, busy
	}
	g, err := grantOf(r, c.req.Owner, c.req.TTL)
	if err != nil { // the lease was granted, and has ended since
		return c.try(ctx, wake, place)
	}
	c.holds = true
	c.dropPlace()
	c.heed(since, looked, 0)
	return g, nil
}

// keeps reports whether owner has a place for the given time that needs no renewal yet.
func (v *view) keeps(owner string, place time.Duration) bool {
	c := v.Find(owner)
	return c != nil && c.Status == record.Waiting && c.TTL == place &&
		v.Left(c) > place+drift(place)-place/keepShare // Left includes the drift
}

// maxPlaces is the most places in a record. Every place costs writes of the one value that
// holders and waiters share. Waiters without a place try again from time to time.
const maxPlaces = 64

// full reports whether owner is not in the record, and there is no room for its place.
func (v *view) full(owner string) bool { return v.Find(owner) == nil && v.ahead("") >= maxPlaces }

// keepOthers renews the places of this process's other waiters, so that one write serves all of
// them.
func (v *view) keepOthers(theirs map[string]time.Time, place time.Duration) {
	for i := range v.Claims {
		c := &v.Claims[i]
		if _, is := theirs[c.Owner]; is && c.Status == record.Waiting && v.Left(c) < place {
			c.TTL, c.Beat = place, c.Beat+1
			v.Start(c)
		}
	}
}

// ahead returns the number of waiters before owner; "": of all.
func (v *view) ahead(owner string) (n int) {
	for _, c := range v.Claims {
		if c.Status == record.Waiting && c.Owner == owner {
			break
		}
		if c.Status == record.Waiting {
			n++
		}
	}
	return n
}

// keepShare is the fraction of a place's life after which it is renewed: two renewals may be
// late.
const keepShare = 4

// refusal returns the refusal, with the time of the next attempt.
func (c *claim) refusal(v *view, a *record.Answer, wake <-chan struct{}, ahead int) *driver.Busy {
	const round = time.Millisecond // rounded up, so that the lease is over by then
	busy := &driver.Busy{Wake: wake, Retry: a.Until + round}
	if c.req.Queue {
		busy.Retry = min(busy.Retry, c.d.opts.Place/keepShare)
	}
	if c.d.watch == nil {
		busy.Retry = min(busy.Retry, time.Duration(1+ahead)*c.d.opts.Poll)
	}
	if a.Holder != nil {
		busy.Holder = a.Holder.Holder(&v.clock)
	}
	return busy
}

// grantOf returns owner's lease, or ErrLost.
func grantOf(r *record.Record, owner string, ttl time.Duration) (driver.Grant, error) {
	c, err := r.Lease(owner)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{TTL: ttl, Fence: driver.FenceOf(c.Fence)}, nil
}

// lease changes the claim's own lease by f. It returns ErrLost if there is none.
func (c *claim) lease(ctx context.Context, f func(v *view) error) error {
	c.gave = nil
	_, lost, err := c.d.lease(ctx, c.req.Resource, &c.open, c.had, f)
	err = cmp.Or(err, lost)
	c.recordOutcome(err)
	return err
}

// recordOutcome records the outcome of a call.
func (c *claim) recordOutcome(err error) {
	lost := errors.Is(err, driver.ErrLost)
	c.holds, c.known = err == nil || c.holds && !lost, c.known || lost
	if lost {
		c.d.resource(c.req.Resource).ignore(c)
	}
}

// had reports whether the claim had something, so that a read without it may be outdated.
// Writing the record proves it: an outdated one is refused.
func (c *claim) had(v *view) bool { return c.holds || c.queued || !c.known && c.d.others(v) }

// others reports whether a read that shows no lease of another process may be outdated. For a
// name that never had a value nothing is written to find out, because that would stay
// permanently.
func (d *Driver) others(v *view) bool { return d.number != nil || v.version != "" }

// lease is change for calls that may fail because of the record; lost is the last result of f. It
// writes the record if this process alone may know that a claim is over, so that others need not
// find out again. had is as the method of a claim.
func (d *Driver) lease(ctx context.Context, name string, before *uncertain, had func(*view) bool, f func(v *view) error) (r *record.Record, lost, err error) {
	found := false
	r, err = d.change(ctx, name, before, func(v *view) bool {
		lost = f(v)
		found = found || lost == nil
		return found || had(v) || v.dropped
	})
	return r, lost, err
}

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	one := driver.Renewal{Claim: c, TTL: ttl}
	c.d.renewTogether(ctx, c.req.Resource, c.open, []*driver.Renewal{&one})
	return one.Grant, one.Err
}

// Note implements driver.Claim.
func (c *claim) Note(ctx context.Context, note string) error {
	return c.lease(ctx, func(v *view) error { return v.SetNote(c.req.Owner, note) })
}

// LiftFence implements driver.FenceLifter.
func (c *claim) LiftFence(ctx context.Context, fence uint64) error {
	if err := driver.CheckRaise(fence); err != nil {
		return err
	}
	return c.lease(ctx, func(v *view) error {
		_, err := v.Lease(c.req.Owner)
		if err == nil {
			v.RaiseFence(fence)
		}
		return err
	})
}

// errMaybeReleased means that a release was refused because the record has changed, perhaps by that
// very release.
var errMaybeReleased = errors.New("caslock: the record does not tell whether the lease was released or taken away")

// errLost means that there is no lease, for an unknown reason.
var errLost = fmt.Errorf("%w: expired or released", driver.ErrLost)

// Release implements driver.Claim. If a write of this call or of an earlier one has given up the
// lease, only its nonce in the record shows that.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	if c.gone && how.Bar == 0 {
		return errLost
	}
	err := c.release(ctx, how)
	c.gone = err == nil
	return err
}

func (c *claim) release(ctx context.Context, how driver.End) error {
	s := c.d.resource(c.req.Resource)
	s.leaves(c.req.Owner)
	s.ignore(c)
	left, err := c.unqueue(ctx)
	if err != nil {
		return err
	}
	if left && c.known && !c.holds && !c.open.open && how == (driver.End{}) {
		return nil // the record has nothing of this claim
	}
	writes := func(v *view) bool { return how.Bar > 0 || c.had(v) }
	r, lost, err := c.d.lease(ctx, c.req.Resource, &c.open, writes, func(v *view) (err error) {
		if how.Linger > 0 {
			err = v.Linger(&v.clock, c.req.Owner, how.Linger)
		} else {
			err = v.Release(c.req.Owner)
		}
		if err == nil {
			c.gave = append(c.gave, parting{v.next, v.Nonce})
		}
		if how.Bar > 0 {
			v.KeepOut(&v.clock, c.req.Owner, how.Bar)
		}
		return err
	})
	c.queued = false
	if err != nil {
		return err
	}
	was, told := done(c.gave, r.Nonce)
	c.gave, c.holds, c.known = nil, false, true
	if was || lost == nil {
		return nil
	}
	if !left && c.d.crowd != nil && r.Beside != record.Nobody { // another process may have made a place
		if left, _, err = c.leave(ctx); err != nil {
			return err
		}
	}
	switch {
	case left && how.Linger == 0 && !errors.Is(lost, driver.ErrEvicted):
		return nil
	case !told && !errors.Is(lost, driver.ErrEvicted):
		return errMaybeReleased
	}
	return lost
}
