package etcdlock

import (
	"context"
	"errors"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	if err := c.d.usable(ctx); err != nil {
		return err
	}
	c.hush()
	others, err := c.keepOwnerOut(ctx, how.Bar)
	if err != nil {
		return err
	}
	if how.Linger > 0 {
		return c.linger(ctx, how)
	}
	err = c.giveUp(ctx)
	if others && errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}

// giveUp deletes the key of the claim's place.
func (c *claim) giveUp(ctx context.Context) error {
	p, err := c.releasing(ctx)
	if err != nil {
		return err
	}
	defer p.done()
	was, left, err := p.delete(ctx, true)
	switch {
	case left != nil:
		err = asLost(left)
	case err == nil && !was:
		err = asLost(p.lastWord(lastWordWithin))
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if err != nil && !errors.Is(err, driver.ErrLost) {
		p.by = nil
		return err
	}
	c.leave()
	return err
}

// releasing begins the release of the claim's place, with a call on it. A claim that does not know
// its place looks for one of its owner, which another process may have made.
func (c *claim) releasing(ctx context.Context) (*place, error) {
	if err := c.find(ctx); err != nil {
		return nil, err
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	p := c.place
	switch {
	case p == nil:
		return nil, errNoKey
	case !c.mayEnd(p):
		return nil, c.leave() // the driver deletes its key, or another claim ends it
	}
	if c.quit(); p.phase == over {
		return nil, c.leave()
	}
	p.begin(c.req.TTL)
	return p, nil
}

// Forget implements driver.Forgetter. The place belongs to the next claim of its owner, or is over
// when nobody renews it.
func (c *claim) Forget() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.tried = false
	if p := c.place; p != nil {
		if p.by == c {
			p.by = nil
		}
		c.leave()
	}
}

// linger puts the key under a lease that nobody keeps alive.
func (c *claim) linger(ctx context.Context, how driver.End) error {
	p, err := c.lingering(ctx)
	if how.Bar > 0 && errors.Is(err, errWaits) {
		if err := c.giveUp(ctx); err != nil && !errors.Is(err, driver.ErrLost) {
			return err
		}
	}
	if err != nil {
		return err
	}
	defer p.done()
	// As in delete: a put that comes when the key has ended would leave a key that no place has.
	if err := p.keepOut(ctx); err != nil && !errors.Is(err, ErrNoSpace) {
		return err
	}
	d := c.d
	lease, _, err := d.grantLease(ctx, how.Linger)
	if err != nil {
		return err
	}
	err = p.lingerIn(ctx, lease)
	switch {
	case errors.Is(err, errElsewhere):
		err = asLost(errElsewhere)
	case errors.Is(err, errGone):
		err = asLost(p.lastWord(lastWordWithin))
	case err != nil:
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.spend() // the key outlives the claim
	p.on(yes, errReleased)
	c.leave()
	return err
}

// lingerIn leaves the key without an owner, in another lease of etcd. errGone means that it was
// gone before; with errElsewhere too, another process has left it to linger.
func (p *place) lingerIn(ctx context.Context, lease clientv3.LeaseID) error {
	p.lingers = append(p.lingers, lease) // only the claim that releases p is here
	leave := func(e *entry) bool {
		if e.Lingers && !slices.Contains(p.lingers, e.lease) {
			return false
		}
		e.Owner, e.Lingers = "", true
		return true
	}
	unsure, err := p.rewrite(ctx, leave, clientv3.WithLease(lease))
	if errors.Is(err, errGone) && unsure != nil {
		return unsure // that attempt may have succeeded, and the key has ended since
	}
	return err
}

// lingering begins to end the lease of the claim, or continues with it.
func (c *claim) lingering(ctx context.Context) (*place, error) {
	if err := c.find(ctx); err != nil {
		return nil, err
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	p := c.place
	switch {
	case p == nil:
		return nil, errNoKey
	case p.phase < held:
		return nil, errWaits
	case p.phase == over, !c.mayEnd(p):
		return nil, p.cause
	}
	c.quit()
	p.begin(c.req.TTL)
	return p, nil
}

// quit begins the release of the claim's place. Other claims of its owner are notified, but not
// this one. Requires Driver.mu.
func (c *claim) quit() {
	p := c.place
	p.claims = slices.DeleteFunc(p.claims, func(one *claim) bool { return one == c })
	p.by = c
	p.on(release, errReleased)
}

// mayEnd reports whether c may release p. It may not if the driver is about to delete its key, or
// while another claim of the owner releases it, because that release may leave the key lingering.
// If such a release has no answer, its claim repeats it, or the next one if that is forgotten, or
// the driver deletes the key when nobody has called for the TTL. Requires Driver.mu.
func (c *claim) mayEnd(p *place) bool {
	return p.phase != leaving || errors.Is(p.cause, errReleased) && (p.by == nil || p.by == c)
}

// Note implements driver.Claim.
func (c *claim) Note(ctx context.Context, note string) error {
	if err := c.d.usable(ctx); err != nil {
		return err
	}
	p, err := c.held(ctx)
	if err != nil {
		return err
	}
	_, err = p.rewrite(ctx, func(e *entry) bool { e.Note = note; return !e.Lingers }, clientv3.WithIgnoreLease())
	if errors.Is(c.d.drop(p, err), errGone) {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		return p.cause
	}
	return err
}
