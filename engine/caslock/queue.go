package caslock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// queue is a Try of a waiter that creates its place beside the record, or finds that it was
// passed over.
func (c *claim) queue(ctx context.Context) (driver.Grant, error) {
	q, s, name := c.d.crowd, c.d.resource(c.req.Resource), placeOf(c.req.Resource, c.req.Owner)
	q.begin(s, name)
	defer q.end(name)
	wake := s.arm(c.req.Owner) // before the line is read
	err := c.enqueue(ctx, s)
	if errors.Is(err, driver.ErrUnsupported) {
		c.place = nil
		return c.try(ctx, wake, c.d.opts.Place)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	if busy := c.refusedFromMemory(s, wake); busy != nil {
		return driver.Grant{}, busy
	}
	return c.take(ctx, wake)
}

// enqueue returns when the claim has a place and all places before it are known.
func (c *claim) enqueue(ctx context.Context, s *resource) error {
	ctx, leave, err := c.d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err = c.d.crowd.mirror(ctx, s); err != nil {
		return err
	}
	if c.place == nil {
		c.place = placeFor(c.d.crowd.process, &c.req)
	}
	made, err := c.d.crowd.enter(ctx, s, c.req.Owner, c.place)
	c.known, c.marked = c.known && !made, c.marked && !made
	return err
}

// refusedFromMemory returns the refusal of a claim whose place is behind others, if this process
// knows so without asking the store. nil: ask the store.
func (c *claim) refusedFromMemory(s *resource, wake <-chan struct{}) *driver.Busy {
	if !c.marked {
		return nil
	}
	id := idOf(c.req.Owner)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := c.d.lineOf(s)
	if l == nil {
		return nil
	}
	if p := l.byID[id]; p == nil || p.peer.dead() || p.process != c.d.crowd.process || l.isNext(c.req.Owner, nil, s.record.Limit) {
		return nil
	}
	v := s.view()
	if slices.ContainsFunc(v.Claims, func(one record.Claim) bool { return one.Owner == c.req.Owner }) {
		return nil // it holds, or must not be granted
	}
	a := v.Obstacle(&v.clock, &c.req)
	busy := c.refusal(&v, &a, wake, 0)
	busy.Retry = c.d.opts.Place / 2
	return busy
}

// stay is a Try of a waiter that may have a place beside the record. Only the first in the line
// asks the store, and does not wait for calls of those behind it.
func (c *claim) stay(ctx context.Context) (g driver.Grant, err error) {
	q, s, name := c.d.crowd, c.d.resource(c.req.Resource), placeOf(c.req.Resource, c.req.Owner)
	q.begin(s, name)
	defer q.end(name)
	wake := s.arm(c.req.Owner)
	if ctx.Err() != nil {
		return g, ctx.Err()
	}
	if c.d.life.Err() != nil {
		return g, driver.ErrClosed
	}
	if busy := c.refusedFromMemory(s, wake); busy != nil {
		return g, busy
	}
	if _, _, here := c.d.crowd.placeVersion(s, idOf(c.req.Owner)); here && q.isCurrent(s) {
		return c.take(ctx, wake)
	}
	asking, err := c.d.lanes.Begin(ctx, c.req.Resource)
	if err == nil {
		g, err = c.queue(ctx)
	}
	return g, asking.End(err)
}

// take is a Try of a waiter that has a place.
func (c *claim) take(ctx context.Context, wake <-chan struct{}) (driver.Grant, error) {
	g, err := c.try(ctx, wake, 0)
	if _, busy := err.(*driver.Busy); !busy {
		c.d.resource(c.req.Resource).disarm(c.req.Owner)
	}
	return g, err
}

// passes reports whether no place beside the record is ahead of the claim. If that is unknown
// without asking the store, look is true.
func (c *claim) passes(v *view) (yes, look bool) {
	switch {
	case v.looked != nil:
		return v.looked.admits(&c.req, &v.Record), false
	case c.place != nil:
		s := c.d.resource(c.req.Resource)
		s.mu.Lock()
		defer s.mu.Unlock()
		l := c.d.lineOf(s)
		return l != nil && l.isNext(c.req.Owner, v.Claims, v.Limit), false
	}
	return v.Beside == record.Nobody, v.Beside != record.Nobody
}

// dropPlace removes the claim's place, which is no longer needed, in the background. If the removal
// fails, it is repeated later.
func (c *claim) dropPlace() {
	if c.place == nil {
		return
	}
	d, s, done := c.d, c.d.resource(c.req.Resource), make(chan struct{})
	c.place, c.leaving = nil, done
	if !d.life.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(d.life, d.opts.Place)
		defer cancel()
		_, _, _ = d.crowd.leave(ctx, s, c.req.Owner, true)
	}) {
		close(done)
	}
}

// unqueue removes the claim's place, and reports whether it had one. It waits for a removal in
// progress, but not for long, because the lease must be released anyway. If another process has had
// the place, that process may have been granted the lease by it.
func (c *claim) unqueue(ctx context.Context) (left bool, err error) {
	if c.leaving != nil {
		select {
		case <-c.leaving:
			c.leaving = nil
		case <-time.After(aMoment(ctx, c.d.opts.Place)):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	if c.place == nil {
		return false, nil
	}
	left, own, err := c.leave(ctx)
	if err == nil {
		c.place, c.known = nil, c.known && own
	}
	return left, err
}

// leave removes the place of the claim's owner, and reports whether there was one, and whether no
// other process has had it.
func (c *claim) leave(ctx context.Context) (was, own bool, err error) {
	ctx, leave, err := c.d.enter(ctx)
	if err != nil {
		return false, false, err
	}
	defer leave()
	return c.d.crowd.leave(ctx, c.d.resource(c.req.Resource), c.req.Owner, c.place != nil)
}
