package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/several"
)

const (
	// maxCompared is how many keys one transaction compares, all the operations that a
	// server allows by default (--max-txn-ops).
	maxCompared = 128
	// maxSingly is how many places are renewed, or deleted, by themselves at a time.
	maxSingly = 32
)

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if err := c.d.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	p, err := c.held(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	c.d.mu.Lock()
	started := p.begin(ttl)
	c.d.mu.Unlock()
	defer p.done()
	return p.renewed(started, ttl, p.keep(ctx, ttl))
}

// renewed is what a renewal comes to that ended with err.
func (p *place) renewed(started boottime.Instant, ttl time.Duration, err error) (driver.Grant, error) {
	d := p.d
	d.drop(p, err)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.phase >= leaving:
		return driver.Grant{}, p.cause
	case err != nil:
		return driver.Grant{}, err
	}
	p.lasts(started.Add(roundUp(ttl)))
	return p.grant(ttl), nil
}

// held is the place by which the claim holds.
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
	resp, err := d.read(ctx, clientv3.OpGet(c.dir, clientv3.WithPrefix()))
	if err != nil {
		return err
	}
	queue := entries(c.dir, resp.Responses[0].GetResponseRange().Kvs)
	own := slices.IndexFunc(queue, c.isOurs)
	d.mu.Lock()
	defer d.mu.Unlock()
	if own < 0 || c.current() != nil {
		return nil
	}
	if p := d.adopted(c, queue[own]); own < len(holders(queue)) {
		p.on(yes, nil)
	}
	return nil
}

// forgetExpired has a claim whose place has expired here ask what keys it has: another process may have renewed it.
func (c *claim) forgetExpired(ctx context.Context) error {
	d := c.d
	d.mu.Lock()
	p := c.place
	if p != nil && p.calls == 0 && d.clock.Now() > p.until { // the timer is late
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

// keep restarts the lease with ttl, reading whether the key is still there. errGone: it
// is not.
func (p *place) keep(ctx context.Context, ttl time.Duration) error {
	d := p.d
	d.mu.Lock()
	var k *keepAlive
	s, fits := p.in, p.fits(ttl) && len(p.unsure.moves) == 0 // the rewrite of a move ends what may come late
	if fits {
		k = d.keepAlive(s)
	}
	d.mu.Unlock()
	if fits {
		there, err := d.areThere(ctx, []*place{p})
		if err != nil {
			return err
		}
		if there {
			return d.await(ctx, s, k)
		}
	}
	return p.move(ctx, ttl) // also if another process has resumed it; finds that it is gone
}

// areThere reports whether the keys are those of all, in their sessions; false: each is to be
// read by itself, as the server may not take so many at once. Where nothing may come late, the
// lease of etcd says as much as the create revision: nobody else puts a key there.
func (d *Driver) areThere(ctx context.Context, all []*place) (bool, error) {
	cmps := make([]clientv3.Cmp, 0, len(all))
	d.mu.Lock()
	for _, p := range all {
		if p.in == nil || len(p.unsure.puts) > 0 && len(all) > 1 {
			d.mu.Unlock()
			return false, nil
		}
		cmps = append(cmps, clientv3.Compare(clientv3.LeaseValue(p.key), "=", p.in.id))
	}
	if len(all) == 1 {
		cmps = append(cmps, created(all[0].key, all[0].rev))
	}
	d.mu.Unlock()
	// A transaction that only compares is not linearizable: it must read as well.
	resp, err := d.commitAgain(ctx, cmps, clientv3.OpGet(all[0].key, clientv3.WithCountOnly()))
	if tooMany(err) {
		return false, nil
	}
	return err == nil && resp.Succeeded, err
}

// A renewal is one of a RenewAll.
type renewal struct {
	*driver.Renewal
	place *place
	k     *keepAlive
	s     *session
}

// RenewAll implements [driver.BatchRenewer]: one keep-alive serves all leases of a session,
// and one transaction reads that 128 keys are still there. The watch does not stand in for
// the read: whose member hangs looks as if nothing had been deleted.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	started := d.clock.Now()
	plain, singly := d.plain(renewals)
	for len(plain) > 0 {
		n := min(len(plain), maxCompared)
		there, err := d.areThere(ctx, placesOf(plain[:n]))
		for _, r := range plain[:n] {
			g, failed := driver.Grant{}, err
			if err == nil && there {
				g, failed = r.place.renewed(started, r.TTL, d.await(ctx, r.s, r.k))
			}
			r.place.done()
			if err == nil && !there {
				singly = append(singly, r.Renewal)
			} else {
				r.Answer(g, failed)
			}
		}
		plain = plain[n:]
	}
	// After the plain ones, and several at a time: one that hangs holds up no other.
	several.Bounded(len(singly), maxSingly, func(i int) { singly[i].Answer(singly[i].Claim.Renew(ctx, singly[i].TTL)) })
}

// plain begins the renewals that only have to keep a session alive, for which it asks, and
// returns the others too.
func (d *Driver) plain(renewals []driver.Renewal) (plain []renewal, singly []*driver.Renewal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range renewals {
		r := &renewals[i]
		p := r.Claim.(*claim).place
		if d.closed || p == nil || p.phase != held || !p.fits(r.TTL) || p.unsure.mayCome() || d.clock.Now() > p.until {
			singly = append(singly, r)
			continue
		}
		p.begin(r.TTL)
		plain = append(plain, renewal{r, p, d.keepAlive(p.in), p.in})
	}
	return plain, singly
}

func placesOf(renewals []renewal) []*place {
	all := make([]*place, len(renewals))
	for i, r := range renewals {
		all[i] = r.place
	}
	return all
}
