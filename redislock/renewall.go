package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// RenewAll implements [driver.BatchRenewer]: one script renews the exclusive leases of one
// server. On Cluster a script must stay in a slot, so there each lease has its own; they
// share its connection.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	_, cluster := d.client.(*redis.ClusterClient)
	var each []*driver.Renewal
	var together []*driver.Renewal
	for i := range renewals {
		r := &renewals[i]
		c := r.Claim.(*claim)
		if cluster || d.checkTTL(r.TTL) != nil || !c.renewedByLock() || c.historyIsDue(r.TTL) {
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

// renewTogether renews by the lock keys, on one server. It returns those that need a renewal of
// their own: the script leaves all but the plain case to it.
func (d *Driver) renewTogether(ctx context.Context, renewals []*driver.Renewal) (rest []*driver.Renewal) {
	replies, err := d.runRenewAll(ctx, renewals)
	if len(renewals) > 1 && forItsKeys(err) {
		return renewals
	}
	for i, r := range renewals {
		switch {
		case err != nil:
			r.Answer(driver.Grant{}, err)
		case replies[i] < 0:
			rest = append(rest, r)
		case replies[i] == 0:
			r.Answer(driver.Grant{}, r.Claim.(*claim).lost())
		default:
			r.Answer(r.Claim.(*claim).simplyGranted(r.TTL, uint64(replies[len(renewals)])), nil)
		}
	}
	return rest
}

// simplyGranted is the same grant as before, for ttl from now on.
func (c *claim) simplyGranted(ttl time.Duration, clock uint64) (g driver.Grant) {
	c.update(func(now *state) {
		now.grant.ttl, now.grant.clock, now.grant.told = ttl, clock, time.Now()
		g = driver.Grant{TTL: roundUp(now.atMost(ttl)), Fence: driver.FenceOf(now.grant.fence)}
	})
	return g
}

// runRenewAll returns a reply for each, and then the server's time.
func (d *Driver) runRenewAll(ctx context.Context, renewals []*driver.Renewal) ([]int64, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	renew := d.pipelines.newCall(scriptRenewAll, len(renewals))
	renew.durable = true
	for _, r := range renewals {
		renew.text(r.Claim.(*claim).keys.lock)
	}
	latest := make([]uint64, len(renewals))
	for i, r := range renewals {
		c := r.Claim.(*claim)
		was := c.load()
		latest[i] = was.latest(r.TTL)
		renew.text(c.req.Owner)
		renew.number(millis(r.TTL), int64(latest[i]))
	}
	reply, err := d.pipelines.ask(ctx, renewals[0].Claim.(*claim).keys.lock, renew)
	if err != nil {
		for i, r := range renewals {
			r.Claim.(*claim).mayComeLate(r.TTL, latest[i])
		}
		return nil, explain(err)
	}
	replies, err := reply.integers(len(renewals) + 1)
	switch {
	case err != nil:
		return nil, err
	case reply.acknowledged < d.replicas:
		return nil, fmt.Errorf("%w: %d of %d", ErrReplicas, reply.acknowledged, d.replicas)
	}
	return replies, nil
}

// workers is how many calls of one batch are on their way to a node at once.
const workers = 64

// renewEach renews by a call each, to all nodes at once: those of one that does not answer
// keep none of the others waiting.
func (d *Driver) renewEach(ctx context.Context, renewals []*driver.Renewal) {
	byNode := make(map[*pipeline][]*driver.Renewal)
	for _, r := range renewals {
		p, err := d.pipelines.of(ctx, r.Claim.(*claim).keys.lock, false)
		if err != nil {
			r.Err = explain(err)
			continue
		}
		byNode[p] = append(byNode[p], r)
	}
	var nodes sync.WaitGroup
	for _, those := range byNode {
		nodes.Go(func() { renewOn(ctx, those) })
	}
	nodes.Wait()
}

// renewOn renews what is on one node.
func renewOn(ctx context.Context, renewals []*driver.Renewal) {
	next := make(chan *driver.Renewal, len(renewals))
	for _, r := range renewals {
		next <- r
	}
	close(next)
	var all sync.WaitGroup
	for range min(len(renewals), workers) {
		all.Go(func() {
			for r := range next {
				r.Answer(r.Claim.Renew(ctx, r.TTL))
			}
		})
	}
	all.Wait()
}
