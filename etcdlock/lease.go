package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if err := c.d.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	p, err := c.heldPlace(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	started := p.begin(ttl)
	defer p.finish()
	err = p.keep(ctx, ttl)
	return c.renewed(p, started, ttl, err)
}

// renewed is what a renewal comes to that ended with err.
func (c *claim) renewed(p *place, started time.Time, ttl time.Duration, err error) (driver.Grant, error) {
	d := c.d
	c.drop(p, err)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.ended != nil:
		return driver.Grant{}, p.ended
	case err != nil:
		return driver.Grant{}, err
	}
	p.until = started.Add(roundUp(ttl))
	return driver.Grant{TTL: roundUp(ttl), Fence: driver.FenceOf(p.rev)}, nil
}

// heldPlace is the place of a claim that holds. One that does not know looks for a lease
// of its owner, which another process may have been granted.
func (c *claim) heldPlace(ctx context.Context) (*place, error) {
	d := c.d
	d.mu.Lock()
	p, now := c.place, time.Now()
	switch {
	case p == nil && !c.tried:
		d.mu.Unlock()
		return c.resume(ctx)
	case p == nil:
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: it has no key", driver.ErrLost)
	case p.held && p.ended == nil && !p.calling && now.After(p.until):
		p.expire() // the timer is late
	}
	defer d.mu.Unlock()
	switch {
	case p.ended != nil:
		return nil, p.ended
	case !p.held:
		return nil, fmt.Errorf("%w: it waits", driver.ErrLost)
	}
	return p, nil
}

// find returns the resource's queue and where the owner's key is in it; -1: nowhere.
func (c *claim) find(ctx context.Context) (queue []entry, own int, err error) {
	resp, err := c.d.read(ctx, clientv3.OpGet(c.dir, clientv3.WithPrefix()))
	if err != nil {
		return nil, -1, err
	}
	queue = entries(c.dir, resp.Responses[0].GetResponseRange().Kvs)
	return queue, slices.IndexFunc(queue, c.isOurs), nil
}

// resume takes over a lease that the owner holds.
func (c *claim) resume(ctx context.Context) (*place, error) {
	queue, own, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	if own < 0 || own >= len(holders(queue)) || c.d.expiredAt(queue[own].key) != nil {
		return nil, fmt.Errorf("%w: its owner does not hold it", driver.ErrLost)
	}
	s, err := c.d.session(ctx, c.req.TTL)
	if err != nil {
		return nil, err
	}
	p := c.newPlace(s, queue[own].key, queue[own].rev)
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	p.held, p.since = true, time.Now()
	return p, nil
}

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context) error {
	if err := c.d.usable(ctx); err != nil {
		return err
	}
	return c.end(ctx)
}

// end deletes the claim's key.
func (c *claim) end(ctx context.Context) error {
	d := c.d
	d.mu.Lock()
	p := c.place
	if p != nil && p.ended == nil && p.rev == 0 && len(p.unsureIn) == 0 {
		p.over(errDeleted) // it was refused: there is no key
	}
	if p != nil && p.ended != nil && !c.releasing {
		c.place = nil
		d.mu.Unlock()
		return p.ended
	}
	if p != nil {
		c.releasing = true
		d.watch.forget(p)
	}
	tried := c.tried
	d.mu.Unlock()
	if p == nil && tried {
		return fmt.Errorf("%w: it has no key", driver.ErrLost)
	}
	if p == nil {
		return c.endUnknown(ctx)
	}
	p.begin(c.req.TTL)
	defer p.finish()
	was, err := p.remove(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.leave()
	c.place, c.releasing = nil, false
	if !was {
		return asLost(errDeleted)
	}
	return nil
}

// endUnknown ends a lease or a place of the owner that another process has made.
func (c *claim) endUnknown(ctx context.Context) error {
	queue, own, err := c.find(ctx)
	if err != nil {
		return err
	}
	if own >= 0 {
		e := queue[own]
		resp, err := c.d.commit(ctx, []clientv3.Cmp{created(e.key, e.rev)}, []clientv3.Op{clientv3.OpDelete(e.key)}, nil)
		if err != nil || resp.Succeeded {
			return err
		}
	}
	return fmt.Errorf("%w: there is no key of its owner", driver.ErrLost)
}

// Linger implements driver.Lingerer: the key goes under a lease that nobody keeps alive.
func (c *claim) Linger(ctx context.Context, rest time.Duration) error {
	if err := c.d.usable(ctx); err != nil {
		return err
	}
	p, err := c.heldPlace(ctx)
	if err != nil {
		return err
	}
	p.begin(c.req.TTL)
	defer p.finish()
	d := c.d
	d.mu.Lock()
	d.watch.forget(p)
	d.mu.Unlock()
	var lease *clientv3.LeaseGrantResponse
	// A grant whose answer is lost leaves a lease without keys, which ends by itself.
	err = d.passingOver(ctx, func(ctx context.Context, _ bool) (err error) {
		lease, err = d.client.Grant(clientv3.WithRequireLeader(ctx), seconds(rest))
		return d.explain(ctx, err)
	})
	if err != nil {
		return err
	}
	var unknown error
	err = d.passingOver(ctx, func(ctx context.Context, _ bool) error {
		err := p.rewrite(ctx, func(v *content) { v.Owner, v.Lingers = "", true }, clientv3.WithLease(lease.ID))
		if err != nil && !errors.Is(err, errGone) && !refused(err) {
			unknown = err
		}
		return err
	})
	if errors.Is(err, errGone) && unknown != nil {
		return unknown // it may have lingered, and was ended since
	}
	if err != nil && !errors.Is(err, errGone) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.late = true // the key lives on without the claim
	p.leave()
	c.place = nil
	if err != nil {
		return asLost(errDeleted)
	}
	return nil
}

// Note implements driver.Noter.
func (c *claim) Note(ctx context.Context, note string) error {
	if err := c.d.usable(ctx); err != nil {
		return err
	}
	p, err := c.heldPlace(ctx)
	if err != nil {
		return err
	}
	err = c.drop(p, p.rewrite(ctx, func(v *content) { v.Note = note }, clientv3.WithIgnoreLease()))
	if errors.Is(err, errGone) {
		return asLost(errDeleted)
	}
	return err
}

// rewrite changes the value of the key, which keeps its place. errGone: there is no key.
func (p *place) rewrite(ctx context.Context, change func(*content), lease clientv3.OpOption) error {
	for range maxRounds {
		resp, err := p.claim.d.read(ctx, clientv3.OpGet(p.key))
		if err != nil {
			return err
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || kvs[0].CreateRevision != p.rev {
			return errGone
		}
		value := decode(kvs[0].Value)
		change(&value)
		same := clientv3.Compare(clientv3.ModRevision(p.key), "=", kvs[0].ModRevision)
		resp, err = p.write(ctx, []clientv3.Cmp{same}, []clientv3.Op{clientv3.OpPut(p.key, value.encode(), lease)}, nil)
		if err != nil || resp.Succeeded {
			return err
		}
	}
	return errors.New("etcdlock: the key is changed all the time")
}
