package etcdlock

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/several"
)

// maxSingly is how many places are renewed, or deleted, by themselves at a time.
const maxSingly = 32

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

// renewed returns the outcome of a renewal that ended with err.
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

// keep restarts the lease with ttl. It reads whether the key still exists, and whether others are
// behind it if its holders want to know. It returns errGone if the key does not exist.
func (p *place) keep(ctx context.Context, ttl time.Duration) error {
	d := p.d
	d.mu.Lock()
	if len(p.claims) > 1 && p.in != nil { // another claim may count on the longer TTL
		ttl = max(ttl, p.in.ttl)
	}
	var k *keepAlive
	fits := p.fits(ttl) && len(p.unsure.moves) == 0 // rewriting the key ends uncertain moves
	if fits {
		k = d.keepAlive(p.in)
	}
	d.mu.Unlock()
	if fits {
		if there, err := d.keysExist(ctx, []*place{p}); err != nil {
			return err
		} else if there {
			return d.await(ctx, k)
		}
	}
	if err := p.move(ctx, ttl); err != nil { // also finds that another process has resumed it, or that it is gone
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.lookBehind()
	return nil
}

// A renewal is one renewal of a RenewAll.
type renewal struct {
	*driver.Renewal
	place *place
	k     *keepAlive
}

// RenewAll implements [driver.BatchRenewer]. One keep-alive serves all leases of a session, and
// one transaction checks that up to 128 keys still exist. The watch cannot replace the check: if
// its member hangs, it looks as if nothing had been deleted.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	started := d.clock.Now()
	plain, singly := d.plain(renewals)
	for some := range slices.Chunk(plain, maxOps) {
		there, err := d.keysExist(ctx, placesOf(some))
		for _, r := range some {
			g, failed := driver.Grant{}, err
			if err == nil && there {
				g, failed = r.place.renewed(started, r.TTL, d.await(ctx, r.k))
			}
			r.place.done()
			if err == nil && !there {
				singly = append(singly, r.Renewal)
			} else {
				r.Answer(g, failed)
			}
		}
	}
	// The others follow, several at a time, so that one that hangs does not delay them all.
	several.Bounded(len(singly), maxSingly, func(i int) { singly[i].Answer(singly[i].Claim.Renew(ctx, singly[i].TTL)) })
}

// plain returns the renewals that only need their session kept alive, and asks for that. It also
// returns the others.
func (d *Driver) plain(renewals []driver.Renewal) (plain []renewal, singly []*driver.Renewal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range renewals {
		r := &renewals[i]
		p := r.Claim.(*claim).place
		if d.isClosed() || p == nil || p.phase != held || !p.fits(r.TTL) || p.unsure.mayCome() || d.clock.Now() > p.until {
			singly = append(singly, r)
			continue
		}
		p.begin(r.TTL)
		plain = append(plain, renewal{r, p, d.keepAlive(p.in)})
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
