package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// refreshHistory is how often a lease is renewed with its history, which the renewals in
// between leave alone: far below historyTTL.
const refreshHistory = time.Hour

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if err := errors.Join(c.d.usable(ctx), c.d.checkTTL(ttl)); err != nil {
		return driver.Grant{}, err
	}
	if !c.renewedByLock() {
		return c.renewWhole(ctx, ttl)
	}
	r := driver.Renewal{Claim: c, TTL: ttl}
	if rest := c.d.renewTogether(ctx, c.d.links.of(c.keys.lock), []*driver.Renewal{&r}); len(rest) > 0 {
		return c.renewWhole(ctx, ttl)
	}
	if r.Err == nil && c.historyIsDue(ttl) {
		c.refreshHistory(ctx, ttl)
	}
	return r.Grant, r.Err
}

// renewWhole renews a lease of any kind, with its history.
func (c *claim) renewWhole(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	d, k, was := c.d, c.keys, c.load()
	all := []string{k.lock, k.companion(kindHistory), k.companion(kindDetails), k.companion(kindShares), k.companion(kindLimits)}
	latest := was.latest(ttl)
	reply, err := d.links.of(k.lock).runAcknowledged(ctx, d.replicas, scriptRenew, all,
		c.req.Owner, millis(ttl), c.channel(), c.req.Note, was.fence, d.historyLife(ttl), latest)
	if err != nil || reply.repeated {
		c.mayComeLate(ttl, latest)
	}
	if err != nil {
		return driver.Grant{}, explain(err)
	}
	values, err := slice(reply.cmd, 1)
	if err != nil {
		return driver.Grant{}, err
	}
	fence := uint64(number(values[0]))
	switch {
	case fence == 0 || len(values) < 2:
		return driver.Grant{}, c.lost()
	case reply.acknowledged < d.replicas:
		// A failover could bring the former expiry back, so the former deadline stands.
		return driver.Grant{}, fmt.Errorf("%w: %d of %d", ErrReplicas, reply.acknowledged, d.replicas)
	}
	c.update(func(now *known) {
		now.granted(fence, ttl)
		now.clock, now.told = uint64(number(values[1])), time.Now()
	})
	d.fences.saw(k.lock, fence)
	d.ear.listen(&c.req)
	return c.granted(ttl, fence), nil
}

// lost is what a renewal comes to that found another in the lease's place, or nobody.
func (c *claim) lost() error {
	c.d.ear.forget(c.req.Owner)
	return fmt.Errorf("%w: it expired, or its key was deleted or taken over", driver.ErrLost)
}

// latest is what a renewal for ttl tells the server: a time, before which the renewal may shorten
// what is left. One for no less than the last may where that has grown, because the server's clock
// has gone back since; one for less may for a while, not whenever it comes. A fence is not below
// the server's time when it was given.
func (k *known) latest(ttl time.Duration) uint64 {
	last := cmp.Or(k.clock, k.fence)
	if ttl < k.ttl {
		last += uint64((time.Since(k.told) + goneTTL).Microseconds())
	}
	return last
}

// lateRenewals are those that may still come, or come again.
type lateRenewals struct {
	ttl    time.Duration // least that one asks for; 0: there are none
	latest uint64        // greatest that one tells
}

// mayShorten reports whether one of them may, as far as the server has told its time.
func (k *known) mayShorten() bool { return k.late.ttl > 0 && k.clock < k.late.latest }

// mayComeLate notes a renewal that was sent and may still come, or come again.
func (c *claim) mayComeLate(ttl time.Duration, latest uint64) {
	c.update(func(now *known) {
		if now.mayShorten() {
			ttl, latest = min(ttl, now.late.ttl), max(latest, now.late.latest)
		}
		now.late = lateRenewals{ttl, latest}
	})
}

// atMost is how much of a TTL may be counted on: no more than a late renewal may leave.
func (k *known) atMost(ttl time.Duration) time.Duration {
	if k.mayShorten() {
		return min(ttl, k.late.ttl)
	}
	return ttl
}

// renewedByLock reports whether a renewal needs the lock key alone.
func (c *claim) renewedByLock() bool {
	return c.req.Mode == driver.Exclusive && c.load().fence != 0
}

// historyIsDue reports whether the history may end before the lease, or soon, without more.
func (c *claim) historyIsDue(ttl time.Duration) bool {
	return time.Since(c.load().refreshed) >= refreshHistory || ttl > historyTTL/2
}

// refreshHistory renews the lease once more, with its history, for which it does not wait
// long: where it fails, the next renewal does it.
func (c *claim) refreshHistory(ctx context.Context, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, hungAfter)
	defer cancel()
	_, _ = c.renewWhole(ctx, ttl) // the lease is renewed
}
