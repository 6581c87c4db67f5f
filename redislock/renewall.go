package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// RenewAll implements driver.BatchRenewer: one script renews the exclusive leases of one
// server. On Cluster a script must stay in a slot, so there each lease has its own; the
// links send them in pipelines.
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
		each = append(each, d.renewTogether(ctx, d.links.first, together)...)
	}
	d.renewEach(ctx, each)
}

// renewTogether renews by the lock keys, on one link. It returns those that need a renewal of
// their own: the script leaves all but the plain case to it.
func (d *Driver) renewTogether(ctx context.Context, l *link, renewals []*driver.Renewal) (rest []*driver.Renewal) {
	replies, err := d.runRenewAll(ctx, l, renewals)
	if len(renewals) > 1 && forItsKeys(err) {
		return renewals
	}
	for i, r := range renewals {
		switch {
		case err != nil:
			r.Err = err
		case replies[i] < 0:
			rest = append(rest, r)
		case replies[i] == 0:
			r.Err = r.Claim.(*claim).lost()
		default:
			r.Grant = r.Claim.(*claim).simplyGranted(r.TTL, uint64(replies[len(renewals)]))
		}
	}
	return rest
}

// simplyGranted is the same grant as before, for ttl from now on.
func (c *claim) simplyGranted(ttl time.Duration, clock uint64) (g driver.Grant) {
	c.update(func(now *known) {
		now.ttl, now.clock, now.told = ttl, clock, time.Now()
		g = driver.Grant{TTL: roundUp(now.atMost(ttl)), Fence: driver.FenceOf(now.fence)}
	})
	return g
}

// runRenewAll returns a reply for each, and then the server's time.
func (d *Driver) runRenewAll(ctx context.Context, l *link, renewals []*driver.Renewal) ([]int64, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	keys := make([]string, 0, len(renewals))
	args := make([]any, 0, 3*len(renewals))
	latest := make([]uint64, len(renewals))
	for i, r := range renewals {
		c := r.Claim.(*claim)
		was := c.load()
		latest[i] = was.latest(r.TTL)
		keys = append(keys, c.keys.lock)
		args = append(args, c.req.Owner, millis(r.TTL), latest[i])
	}
	reply, err := l.runAcknowledged(ctx, d.replicas, scriptRenewAll, keys, args...)
	if err != nil || reply.repeated {
		for i, r := range renewals {
			r.Claim.(*claim).mayComeLate(r.TTL, latest[i])
		}
	}
	if err != nil {
		return nil, explain(err)
	}
	replies, err := reply.cmd.Int64Slice()
	switch {
	case err != nil || len(replies) != len(renewals)+1:
		return nil, fmt.Errorf("redislock: alien reply to renewals: %w", driver.ErrCorrupt)
	case reply.acknowledged < d.replicas:
		return nil, fmt.Errorf("%w: %d of %d", ErrReplicas, reply.acknowledged, d.replicas)
	}
	return replies, nil
}

// renewEach renews by a call each, to all nodes at once: those of one that does not answer
// keep none of the others waiting.
func (d *Driver) renewEach(ctx context.Context, renewals []*driver.Renewal) {
	byLink := make(map[*link][]*driver.Renewal)
	for _, r := range renewals {
		l := d.links.of(r.Claim.(*claim).keys.lock)
		byLink[l] = append(byLink[l], r)
	}
	var nodes sync.WaitGroup
	for _, those := range byLink {
		nodes.Go(func() { renewOn(ctx, those) })
	}
	nodes.Wait()
}

// renewOn renews with as many calls on their way as a link has.
func renewOn(ctx context.Context, renewals []*driver.Renewal) {
	next := make(chan *driver.Renewal, len(renewals))
	for _, r := range renewals {
		next <- r
	}
	close(next)
	var workers sync.WaitGroup
	for range min(len(renewals), maxInFlight) {
		workers.Go(func() {
			for r := range next {
				r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
			}
		})
	}
	workers.Wait()
}
