package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// here returns the place of the claim: its own, that of another claim of its owner, or a new one.
func (c *claim) here(ctx context.Context) (*place, error) {
	d := c.d
	for {
		d.mu.Lock()
		c.tried, c.hushed = true, false
		p := c.current()
		isLeaving := p != nil && p.phase == leaving
		d.mu.Unlock()
		switch {
		case isLeaving: // otherwise the put could come late
			if err := p.clear(ctx); err != nil {
				return nil, err
			}
			continue
		case p != nil:
			return p, nil
		}
		s, err := d.session(ctx, c.req.TTL)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		if p = c.current(); p == nil {
			p = d.newPlace(c, s)
		}
		d.mu.Unlock()
		return p, nil
	}
}

// current returns the place of the claim. If it has none, it shares the place of another claim of
// its owner. It returns nil if there is none, or only places that are over. Requires Driver.mu.
func (c *claim) current() *place {
	if c.place != nil && c.place.phase == over {
		c.leave()
	}
	if c.place == nil {
		if l := c.d.of[c.dir]; l != nil {
			if i := slices.IndexFunc(l.places, func(p *place) bool { return p.claim.req.Owner == c.req.Owner }); i >= 0 {
				c.join(l.places[i])
			}
		}
	}
	return c.place
}

// held returns the place by which the claim holds.
func (c *claim) held(ctx context.Context) (*place, error) {
	if err := c.find(ctx); err != nil {
		return nil, err
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	p := c.place
	if p == nil {
		return nil, errNoKey
	}
	switch p.phase {
	case held:
		return p, nil
	case leaving, over:
		return nil, p.cause
	}
	return nil, errWaits
}

var (
	errNoKey   = fmt.Errorf("%w: it has no key", driver.ErrLost)
	errWaits   = fmt.Errorf("%w: it waits", driver.ErrLost)
	errExpired = errors.New("it expired")
)

// find gives a claim that has never tried the place of its owner, which another claim or
// another process may have made.
func (c *claim) find(ctx context.Context) error {
	d := c.d
	if err := c.forgetExpired(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	known := c.tried || c.current() != nil
	d.mu.Unlock()
	if known {
		return nil
	}
	seen, err := d.list(ctx, c.dir)
	if err != nil && !seen.limit.unknown {
		return err
	}
	own := slices.IndexFunc(seen.queue, c.isOurs)
	if own >= 0 && err != nil && seen.queue[own].mode() == driver.Shared { // whether the claim holds is unknown
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if own < 0 || c.current() != nil {
		return nil
	}
	if p := d.adopted(c, seen.queue[own]); own < len(seen.holders()) {
		p.on(yes, nil)
	}
	return nil
}

// forgetExpired makes a claim whose place has expired here look for its keys again, because another
// process may have renewed it.
func (c *claim) forgetExpired(ctx context.Context) error {
	d := c.d
	d.mu.Lock()
	p := c.place
	if p != nil && p.calls == 0 && d.clock.Now() > p.until { // it has expired, but the timer is late
		p.on(unwanted, errExpired)
	}
	expired := p != nil && p.phase >= leaving && errors.Is(p.cause, errExpired)
	isLeaving := expired && p.phase == leaving
	d.mu.Unlock()
	if isLeaving {
		if err := p.clear(ctx); err != nil {
			return err
		}
	}
	if expired {
		d.mu.Lock()
		defer d.mu.Unlock()
		if c.tried = false; c.place == p {
			c.leave()
		}
	}
	return nil
}

// adopt gives up p for the key e of the same owner. If e belongs to a place here that is leaving,
// that key is deleted instead.
func (c *claim) adopt(ctx context.Context, p *place, e entry) error {
	d := c.d
	d.mu.Lock()
	here := d.at(e.key)
	isLeaving := here != nil && here.phase == leaving
	d.mu.Unlock()
	if isLeaving {
		if err := here.clear(ctx); err != nil {
			return err
		}
		return errAgain
	}
	if err := c.withdraw(ctx, p); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.current() == nil {
		d.adopted(c, e)
	}
	return errAgain
}

// isOurs matches a key of the same owner that another process made, or that was made before this
// claim.
func (c *claim) isOurs(e entry) bool { return e.Owner == c.req.Owner }
