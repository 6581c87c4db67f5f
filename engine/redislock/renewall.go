package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/several"
)

// RenewAll implements [driver.BatchRenewer]. One script renews the exclusive leases of one
// server. On Cluster a script must stay in a slot, so there each lease has a script of its own;
// they share a connection.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	var each []*driver.Renewal
	var together []*driver.Renewal
	for i := range renewals {
		r := &renewals[i]
		c := r.Claim.(*claim)
		if d.pipelines.cluster != nil || d.checkTTL(r.TTL) != nil || !c.renewedByLock() || c.historyIsDue(r.TTL) {
			each = append(each, r)
		} else {
			together = append(together, r)
		}
	}
	if len(together) > 0 {
		each = append(each, d.renewTogether(ctx, together)...)
	}
	d.renewEach(ctx, each)
}

// Replies of renewall.lua about a lease that was renewed.
const (
	longer = -2 // it ends later than asked
	wanted = 2  // others wait
)

// renewTogether renews leases by their lock keys alone, on one server. It returns those that need
// renew.lua, because they are not in the plain case. A lease that must be shortened is among them,
// but has its grant already.
func (d *Driver) renewTogether(ctx context.Context, renewals []*driver.Renewal) (rest []*driver.Renewal) {
	replies, err := d.runRenewAll(ctx, renewals)
	if len(renewals) > 1 && forItsKeys(err) {
		return renewals
	}
	var lost []*driver.Renewal
	for i, r := range renewals {
		switch {
		case i < len(replies) && replies[i] == 0: // it is lost, however many replicas acknowledged
			lost = append(lost, r)
		case err != nil:
			r.Answer(driver.Grant{}, err)
		case replies[i] < 0:
			if replies[i] == longer && d.o.Replicas == 0 { // nothing was written, so replicas have nothing to acknowledge
				r.Grant = r.Claim.(*claim).grantedAgain(r.TTL)
			}
			rest = append(rest, r)
		default:
			c := r.Claim.(*claim)
			r.Answer(c.grantedAgain(r.TTL), nil)
			if replies[i] == wanted {
				c.wanted()
			}
		}
	}
	severally(ctx, workers, lost, func(r *driver.Renewal) *claim { return r.Claim.(*claim) },
		func(r *driver.Renewal) { r.Answer(driver.Grant{}, r.Claim.(*claim).lost(ctx)) })
	return rest
}

// grantedAgain returns the same grant as before, for ttl from now on.
func (c *claim) grantedAgain(ttl time.Duration) driver.Grant {
	return granted(ttl, c.load().grant.fence)
}

// runRenewAll returns a reply for each renewal, even with ErrReplicas.
func (d *Driver) runRenewAll(ctx context.Context, renewals []*driver.Renewal) (replies []int64, err error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	var asking []int // claims that want to know whether others wait
	for i, r := range renewals {
		if r.Claim.(*claim).req.Wanted != nil {
			asking = append(asking, i)
		}
	}
	for {
		renew := d.pipelines.newCall(scriptRenewAll)
		renew.durable, renew.leaves = true, leavesSoon
		renew.args(len(renewals) + len(asking))
		for _, r := range renewals {
			renew.args(r.Claim.(*claim).keys.lock)
		}
		for _, i := range asking {
			renew.args(renewals[i].Claim.(*claim).keys.companion(kindQueue))
		}
		for _, r := range renewals {
			renew.args(r.Claim.(*claim).req.Owner, r.TTL)
		}
		for _, i := range asking {
			renew.args(i + 1)
		}
		reply, err := d.pipelines.ask(ctx, renewals[0].Claim.(*claim).keys.lock, renew)
		if err == nil {
			replies, err = reply.integers(len(renewals))
			if err == nil && reply.acknowledged < d.o.Replicas {
				err = fmt.Errorf("%w: %d of %d", ErrReplicas, reply.acknowledged, d.o.Replicas)
			}
			return replies, err
		}
		err = explain(err)
		if len(asking) > 0 && (errors.Is(err, ErrMoving) || forItsKeys(err)) {
			asking = nil // use the lock keys alone; a later renewal reports waiters
			continue
		}
		if !links.Again(ctx, err) {
			return nil, err
		}
	}
}

// renewEach renews each lease by a call of its own.
func (d *Driver) renewEach(ctx context.Context, renewals []*driver.Renewal) {
	severally(ctx, workers, renewals, func(r *driver.Renewal) *claim { return r.Claim.(*claim) },
		func(r *driver.Renewal) { r.Answer(r.Claim.Renew(ctx, r.TTL)) })
}

// workers is how many calls of one batch are sent to a node at once. Calls that take long do not
// count, because a key that a node is asked for may have moved to another.
const workers = 64

// severally makes a call for each of all. It calls all nodes at once, with up to width calls to
// each. Slow calls do not delay the others.
func severally[T any](ctx context.Context, width int, all []T, claimOf func(T) *claim, call func(T)) {
	byNode := make(map[*pipeline][]T)
	for _, one := range all {
		c := claimOf(one)
		p, _ := c.d.pipelines.of(ctx, c.keys.lock, false) // nil if the node is not known, which call finds out again
		byNode[p] = append(byNode[p], one)
	}
	var done sync.WaitGroup
	for _, those := range byNode {
		done.Go(func() { several.Each(ctx, len(those), width, several.Slow, func(i int) { call(those[i]) }) })
	}
	done.Wait()
}
