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
		if cluster || d.checkTTL(r.TTL) != nil || c.req.Mode != driver.Exclusive || r.TTL < c.load().ttl {
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

// renewTogether returns those that need a renewal of their own: the script leaves all but
// the plain case to it.
func (d *Driver) renewTogether(ctx context.Context, renewals []*driver.Renewal) (rest []*driver.Renewal) {
	fences, err := d.runRenewAll(ctx, renewals)
	for i, r := range renewals {
		switch {
		case err != nil:
			r.Err = err
		case fences[i] < 0:
			rest = append(rest, r)
		default:
			r.Grant, r.Err = r.Claim.(*claim).renewed(r.TTL, fences[i])
		}
	}
	return rest
}

func (d *Driver) runRenewAll(ctx context.Context, renewals []*driver.Renewal) ([]int64, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	var longest time.Duration
	keys := make([]string, 0, 2*len(renewals))
	args := make([]any, 1, 1+3*len(renewals))
	for _, r := range renewals {
		c := r.Claim.(*claim)
		longest = max(longest, r.TTL)
		keys = append(keys, c.keys.lock, c.keys.companion(kindHistory))
		args = append(args, c.req.Owner, millis(r.TTL), c.channel())
	}
	args[0] = d.historyLife(longest)
	reply, err := d.links[0].runAcknowledged(ctx, d.replicas, scriptRenewAll, keys, args...)
	if err != nil {
		return nil, explain(err)
	}
	fences, err := reply.cmd.Int64Slice()
	switch {
	case err != nil || len(fences) != len(renewals):
		return nil, fmt.Errorf("redislock: alien reply to renewals: %w", driver.ErrCorrupt)
	case reply.acknowledged < d.replicas:
		return nil, fmt.Errorf("%w: %d of %d", ErrReplicas, reply.acknowledged, d.replicas)
	}
	return fences, nil
}

// renewEach renews with as many calls on their way as a link has.
func (d *Driver) renewEach(ctx context.Context, renewals []*driver.Renewal) {
	next := make(chan *driver.Renewal)
	var workers sync.WaitGroup
	for range min(len(renewals), maxInFlight) {
		workers.Go(func() {
			for r := range next {
				r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
			}
		})
	}
	for _, r := range renewals {
		next <- r
	}
	close(next)
	workers.Wait()
}
