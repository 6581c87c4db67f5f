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

// claim implements driver.Claim and driver.FenceLifter. What it has
// is in the record alone.
type claim struct {
	d      *Driver
	req    driver.Request
	open   uncertain // its last write, if that has no answer
	gave   []parting // writes of which the claim does not know, or did not, whether they were done
	known  bool      // by a Try or a loss what it has, else another process may have been granted it
	queued bool      // the last Try left a place
	holds  bool      // it was granted, and not told of its end

	place   []byte        // beside the record, as it is written; nil: it has none
	marked  bool          // the record says that there are such places
	leaving chan struct{} // closed when its place, which is of no use any more, is removed; nil: it had none
}

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (g driver.Grant, err error) {
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
	if !c.queued { // mostly nobody is in the way, and no watch is needed
		g, err := c.try(ctx, nil, 0)
		if _, busy := err.(*driver.Busy); !busy {
			return g, err
		}
	}
	if c.d.crowd != nil {
		return c.queue(ctx)
	}
	wake := s.arm(c.req.Owner) // before the state is read, or found unchanged by the write
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

// wait is a Try of a waiter whose place is in the record. A process makes one at a time, as long as none hangs: the one
// before mostly keeps the places of the others too.
func (c *claim) wait(ctx context.Context, s *resource, wake <-chan struct{}) (driver.Grant, error) {
	hangs := time.NewTimer(c.d.opts.Place / keepShare)
	defer hangs.Stop()
	select {
	case s.alone <- struct{}{}:
		defer func() { <-s.alone }()
	case <-hangs.C:
	case <-ctx.Done():
		return driver.Grant{}, ctx.Err()
	}
	if busy := c.remembered(); busy != nil {
		return driver.Grant{}, busy
	}
	return c.try(ctx, wake, c.d.opts.Place)
}

// follow has what is known of the record be what the watch tells.
func (d *Driver) follow(ctx context.Context, s *resource) error {
	session, err := d.watch.session()
	if err != nil || s.follows(session) {
		return nil // without a watch, the record is read all the time
	}
	if _, _, err = d.current(ctx, s, true); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.session = session
	}
	return err
}

// remembered returns the refusal of a waiter that others in the record are before, as far as this process knows without
// asking the store: by the watch, or because it has asked a moment ago, and as many turns take longer. nil: the store is
// to be asked.
func (c *claim) remembered() *driver.Busy {
	s, place := c.d.resource(c.req.Resource), c.d.opts.Place
	var wake <-chan struct{}
	if c.d.crowd != nil || c.d.watch != nil && !c.queued || c.d.closing.Err() != nil {
		return nil
	}
	if c.d.watch != nil {
		session, err := c.d.watch.session()
		if err != nil || !s.follows(session) {
			return nil
		}
		c.d.watch.going() // it is not idle
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
	if a := v.Obstacle(&v.clock, &c.req); !a.Granted && (full || v.keeps(c.req.Owner, place)) {
		busy := c.refusal(&v, &a, wake, ahead)
		c.stayOutside(s, busy, full)
		return busy
	}
	return nil
}

// stayOutside has a waiter that finds no place come back later. Requires s.mu.
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

// mayBeNext reports whether none of those who wait in the record is in the way of req, nor is it granted or given up.
func (v *view) mayBeNext(req *driver.Request) bool {
	var ahead queue.Ahead
	for i := range v.Claims {
		c := &v.Claims[i]
		switch {
		case c.Owner == req.Owner && c.Status != record.Waiting:
			return true
		case c.Owner == req.Owner:
			return ahead.Admits(queue.Claim{Mode: req.Mode, Limit: req.Limit})
		case c.Status == record.Waiting:
			ahead.Add(queue.Claim{Mode: c.Mode, Limit: c.Limit})
		}
	}
	return ahead.Admits(queue.Claim{Mode: req.Mode, Limit: req.Limit})
}

// try makes one attempt, and leaves a place in the record for the time of place.
func (c *claim) try(ctx context.Context, wake <-chan struct{}, place time.Duration) (driver.Grant, error) {
	c.gave, c.known = nil, true
	var busy *driver.Busy
	var looked *line
	barred, look, outside := false, false, false
	number := uint64(0)
	s := c.d.resource(c.req.Resource)
	if place > 0 {
		s.tries(c.req.Owner, time.Now())
	}
	attempt := func(v *view) (write bool) {
		v.looked, v.patient = looked, place > 0
		a, ahead := v.Obstacle(&v.clock, &c.req), v.ahead(c.req.Owner)
		barred = v.KeepsOut(c.req.Owner)
		blocked := false // by those beside the record
		if look = false; a.Granted && c.d.crowd != nil && !v.Holds(c.req.Owner) {
			if a.Granted, look = c.passes(v); !a.Granted {
				blocked, a.Until, number = true, c.d.opts.Place/keepShare, c.d.number(v.version)
			}
		}
		outside = place > 0 && v.full(c.req.Owner)
		if write = !blocked && !barred && (a.Granted || !outside && !v.keeps(c.req.Owner, place)); write {
			n, held := len(v.Claims), v.Holds(c.req.Owner)
			a, write = v.Try(&v.clock, &c.req, place, v.floor)
			v.keepOthers(s.triedSince(time.Now().Add(-place*3/8)), place)
			v.reserve(n, a.Granted && !held)
		}
		busy, v.served = nil, ""
		switch {
		case barred:
		case a.Granted && c.place != nil:
			v.served = idOf(c.req.Owner)
		case !a.Granted:
			busy = c.refusal(v, &a, wake, ahead)
			if place > 0 {
				s.mu.Lock()
				c.stayOutside(s, busy, outside)
				s.mu.Unlock()
			}
			if c.place != nil && v.Beside != record.Some { // before it is answered; see line.mark
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
	switch {
	case err != nil:
		return driver.Grant{}, err
	case barred:
		c.part()
		return driver.Grant{}, driver.ErrBarred
	case busy != nil:
		c.marked = c.place != nil
		return driver.Grant{}, busy
	}
	g, err := grantOf(r, c.req.Owner, c.req.TTL)
	if err != nil { // it was granted, and has been ended since
		return c.try(ctx, wake, place)
	}
	c.holds = true
	c.part()
	return g, nil
}

// keeps reports whether owner has a place for the time of place that needs no new sign yet.
func (v *view) keeps(owner string, place time.Duration) bool {
	for i := range v.Claims {
		if c := &v.Claims[i]; c.Owner == owner && c.Status == record.Waiting {
			return c.TTL == place && v.Left(c) > place+drift(place)-place/keepShare // drift: Left has it on top
		}
	}
	return false
}

// maxPlaces is how many may have a place in a record. Every place costs writes of the one value that holders and
// waiters share. Those who find none ask again from time to time.
const maxPlaces = 64

// full reports whether owner is not in the record, and can have no place there.
func (v *view) full(owner string) bool {
	n := 0
	for i := range v.Claims {
		c := &v.Claims[i]
		if c.Status <= record.Holding && c.Owner == owner {
			return false
		}
		if c.Status == record.Waiting {
			n++
		}
	}
	return n >= maxPlaces
}

// keepOthers has the places of others of this process start again, so that one write does for all of them.
func (v *view) keepOthers(theirs map[string]bool, place time.Duration) {
	for i := range v.Claims {
		if c := &v.Claims[i]; c.Status == record.Waiting && theirs[c.Owner] && v.Left(c) < place {
			c.TTL, c.Beat = place, c.Beat+1
			v.Start(c)
		}
	}
}

// ahead counts those who wait before owner.
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

// keepShare is the part of a place's time after which its waiter gives a new sign: two may be late.
const keepShare = 4

// refusal says when to come back.
func (c *claim) refusal(v *view, a *record.Answer, wake <-chan struct{}, ahead int) *driver.Busy {
	const round = time.Millisecond // so that it is over then
	busy := &driver.Busy{Wake: wake, Retry: a.Until + round}
	if c.req.Queue {
		busy.Retry = min(busy.Retry, c.d.opts.Place/keepShare)
	}
	if c.d.watch == nil {
		busy.Retry = min(busy.Retry, time.Duration(1+ahead)*c.d.opts.Poll)
	}
	if a.Holder != nil {
		busy.Holder = shown(a.Holder.Holder(&v.clock))
	}
	return busy
}

// grantOf is owner's lease; ErrLost: it has none.
func grantOf(r *record.Record, owner string, ttl time.Duration) (driver.Grant, error) {
	for i := range r.Claims {
		if c := &r.Claims[i]; c.Owner == owner && c.Status == record.Holding {
			return driver.Grant{TTL: ttl, Fence: driver.FenceOf(c.Fence)}, nil
		}
	}
	return driver.Grant{}, errLost
}

// errLost: there is no lease, and no reason known.
var errLost = fmt.Errorf("%w: expired or released", driver.ErrLost)

// lease has f change the claim's own lease: ErrLost if it has none.
func (c *claim) lease(ctx context.Context, f func(v *view) error) (r *record.Record, err error) {
	c.gave = nil
	r, err = c.d.lease(ctx, c.req.Resource, &c.open, c.had, f)
	c.told(err)
	return r, err
}

// told takes in what a call came to.
func (c *claim) told(err error) {
	lost := errors.Is(err, driver.ErrLost)
	c.holds, c.known = err == nil || c.holds && !lost, c.known || lost
}

// had reports whether there was something of which a read that tells otherwise may be old: written, it is refused then.
func (c *claim) had(v *view) bool { return c.holds || c.queued || !c.known && c.d.others(v) }

// others reports whether a read that shows nothing of another process' lease may be old. Of a name that never had a value
// none is written for that, where it would stay for ever.
func (d *Driver) others(v *view) bool { return d.number != nil || v.version != "" }

// lease is change for what fails by the record. What this process alone may know to be over is written
// then: nobody is to find it later. had is as of a claim.
func (d *Driver) lease(ctx context.Context, name string, before *uncertain, had func(*view) bool, f func(v *view) error) (*record.Record, error) {
	var lost error
	found := false
	r, err := d.change(ctx, name, before, func(v *view) bool {
		lost = f(v)
		found = found || lost == nil
		return found || had(v) || v.dropped
	})
	return r, cmp.Or(err, lost)
}

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	r, err := c.lease(ctx, func(v *view) error {
		_, err := v.Renew(&v.clock, c.req.Owner, ttl)
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	return grantOf(r, c.req.Owner, ttl)
}

// Note implements driver.Claim.
func (c *claim) Note(ctx context.Context, note string) error {
	_, err := c.lease(ctx, func(v *view) error { return v.SetNote(c.req.Owner, note) })
	return err
}

// LiftFence implements driver.FenceLifter.
func (c *claim) LiftFence(ctx context.Context, fence uint64) error {
	if err := driver.CheckRaise(fence); err != nil {
		return err
	}
	_, err := c.lease(ctx, func(v *view) error {
		if !v.Holds(c.req.Owner) {
			return errLost
		}
		v.RaiseFence(fence)
		return nil
	})
	return err
}

// errUntold: a release was refused because the record is another one, which may be because of that release.
var errUntold = errors.New("caslock: the record does not tell whether the lease was released or taken away")

// Release implements driver.Claim. If a write of this call or of a former one has given up what
// the claim has, there is nothing to be found, but its nonce.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	c.d.resource(c.req.Resource).leaves(c.req.Owner)
	left, err := c.unqueue(ctx)
	if err != nil {
		return err
	}
	if left && c.known && !c.holds && !c.open.open && how == (driver.End{}) {
		return nil // the record has nothing of it
	}
	var lost error
	found := false
	r, err := c.d.change(ctx, c.req.Resource, &c.open, func(v *view) bool {
		if how.Linger > 0 {
			lost = v.Linger(&v.clock, c.req.Owner, how.Linger)
		} else {
			lost = v.Release(c.req.Owner)
		}
		if lost == nil {
			c.gave = append(c.gave, parting{v.next, v.Nonce})
		}
		found = found || lost == nil // as in lease
		if how.Bar > 0 {
			v.KeepOut(&v.clock, c.req.Owner, how.Bar)
			return true
		}
		return found || c.had(v) || v.dropped
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
	if !left && c.d.crowd != nil && r.Beside != record.Nobody { // one that another process has made
		if left, err = c.leave(ctx); err != nil {
			return err
		}
	}
	switch {
	case left && how.Linger == 0 && !errors.Is(lost, driver.ErrEvicted):
		return nil
	case !told && !errors.Is(lost, driver.ErrEvicted):
		return errUntold
	}
	return lost
}
