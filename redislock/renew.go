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

// historyWait is how long a renewal waits for its history.
const historyWait = 250 * time.Millisecond

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if err := errors.Join(c.d.usable(ctx), c.d.checkTTL(ttl)); err != nil {
		return driver.Grant{}, err
	}
	if !c.renewedByLock() {
		return c.renewWhole(ctx, ttl)
	}
	r := driver.Renewal{Claim: c, TTL: ttl}
	if rest := c.d.renewTogether(ctx, []*driver.Renewal{&r}); len(rest) > 0 {
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
	latest := was.latest(ttl)
	renew := d.pipelines.newCall(scriptRenew, 5)
	renew.durable = true
	renew.text(k.lock)
	renew.companions(k, kindHistory, kindDetails, kindShares, kindLimits)
	renew.text(c.req.Owner)
	renew.number(millis(ttl))
	renew.text(c.channel(), c.req.Note)
	renew.number(int64(was.grant.fence), d.historyLife(ttl), int64(latest))
	reply, err := d.pipelines.ask(ctx, k.lock, renew)
	if err != nil {
		c.mayComeLate(ttl, latest)
		return driver.Grant{}, explain(err)
	}
	values, err := reply.slice(1)
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
	c.update(func(now *state) {
		now.hold(fence, ttl)
		now.grant.clock, now.grant.told = uint64(number(values[1])), time.Now()
	})
	d.fences.saw(k.lock, fence)
	d.subscriber.listen(c)
	return c.granted(ttl, fence), nil
}

// errNotHeld is of a lease that the server does not have any more, for a reason that it does not tell.
var errNotHeld = fmt.Errorf("%w: it expired, or its key was deleted or taken over", driver.ErrLost)

// lost is what a renewal comes to that found another in the lease's place, or nobody.
func (c *claim) lost() error {
	c.update(func(now *state) { now.become(over) })
	c.d.subscriber.forget(c)
	return errNotHeld
}

// latest is what a renewal for ttl tells the server: a time, before which the renewal may shorten
// what is left. One for no less than the last may where that has grown, because the server's clock
// has gone back since; one for less may for a while, not whenever it comes. A fence is not below
// the server's time when it was given.
func (s *state) latest(ttl time.Duration) uint64 {
	last := cmp.Or(s.grant.clock, s.grant.fence)
	if ttl < s.grant.ttl {
		last += uint64((time.Since(s.grant.told) + goneTTL).Microseconds())
	}
	return last
}

// lateRenewals are those that may still come, or come again.
type lateRenewals struct {
	ttl    time.Duration // least that one asks for; 0: there are none
	latest uint64        // greatest that one tells
}

// mayShorten reports whether one of them may, as far as the server has told its time.
func (s *state) mayShorten() bool {
	late := s.uncertain.renewals
	return late.ttl > 0 && s.grant.clock < late.latest
}

// mayComeLate notes a renewal that was sent and may still come, or come again.
func (c *claim) mayComeLate(ttl time.Duration, latest uint64) {
	c.update(func(now *state) {
		if now.mayShorten() {
			late := now.uncertain.renewals
			ttl, latest = min(ttl, late.ttl), max(latest, late.latest)
		}
		now.uncertain.renewals = lateRenewals{ttl, latest}
	})
}

// atMost is how much of a TTL may be counted on: no more than a late renewal may leave.
func (s *state) atMost(ttl time.Duration) time.Duration {
	if s.mayShorten() {
		return min(ttl, s.uncertain.renewals.ttl)
	}
	return ttl
}

// renewedByLock reports whether a renewal needs the lock key alone.
func (c *claim) renewedByLock() bool {
	return c.req.Mode == driver.Exclusive && c.load().grant.fence != 0
}

// historyIsDue reports whether the history may end before the lease, or soon, without more.
func (c *claim) historyIsDue(ttl time.Duration) bool {
	return time.Since(c.load().grant.refreshed) >= refreshHistory || ttl > historyTTL/2
}

// refreshHistory renews the lease once more, with its history, for which it does not wait
// long: where it fails, the next renewal does it.
func (c *claim) refreshHistory(ctx context.Context, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, historyWait)
	defer cancel()
	_, _ = c.renewWhole(ctx, ttl) // the lease is renewed
}
