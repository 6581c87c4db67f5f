package locktest_test

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// brokenTTLs are wrong about how long leases last.
var brokenTTLs = []breakage{
	{name: "leases end too soon", rejects: []string{
		"ExpiresAfterItsTTL", "RenewRestartsTheTTL", "TryRestartsTheTTL", "HolderLearnsBeforeSuccessor", "SharerExpiresAlone", "ExclusiveAfterCrashedSharer",
	}, warp: scaled(func(d time.Duration) time.Duration { return d / 2 })},
	{name: "leases end late", rejects: []string{"ExpiresAfterItsTTL"}, warp: scaled(func(d time.Duration) time.Duration { return d + 2*time.Second })},
	{name: "leases never end", rejects: []string{
		"ExpiresAfterItsTTL", "RenewRestartsTheTTL", "WaiterFollowsExpiry", "MaxHoldAndNoRenewEnd",
		"ReplyLostOnAcquire", "SharerExpiresAlone", "ExclusiveAfterCrashedSharer", "ReleaseAfterExpiry", "RenewAfterExpiryRevivesNothing", "FenceGrowsAfterExpiry",
	}, warp: scaled(func(time.Duration) time.Duration { return time.Hour })},
	{name: "TTLs are whole half seconds, rounded down", rejects: []string{"ExpiresAfterItsTTL"}, warp: scaled(func(d time.Duration) time.Duration {
		return max(d.Truncate(500*time.Millisecond), 10*time.Millisecond)
	})},
	{name: "what is no whole millisecond never ends", rejects: []string{"ExpiresAfterItsTTL"}, warp: scaled(func(d time.Duration) time.Duration {
		if d%time.Millisecond != 0 {
			return time.Hour
		}
		return d
	})},
	{name: "what is no whole millisecond is no lease", rejects: []string{"ExpiresAfterItsTTL"}, warp: scaled(func(d time.Duration) time.Duration {
		if d%time.Millisecond != 0 {
			return 1
		}
		return d
	})},
	{name: "granted TTLs are rounded down", rejects: []string{"TTLsAreRoundedUp"}, warp: granting(func(g *driver.Grant) { g.TTL = g.TTL.Truncate(time.Millisecond) })},
	{name: "granted TTLs are rounded up to more than a Step", rejects: []string{"TTLsAreRoundedUp"}, warp: granting(func(g *driver.Grant) { g.TTL = g.TTL.Truncate(time.Second) + time.Second })},
	{name: "the granted TTL is longer than the lease", rejects: []string{"DeadlineCountsFromBeforeTheCall", "TTLsAreRoundedUp"}, warp: granting(func(g *driver.Grant) { g.TTL += time.Second })},
	{name: "Try by the holder does not restart the lease", rejects: []string{"TryRestartsTheTTL"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if st, err := c.Inspect(ctx, c.asked.Resource); err == nil && len(st.Holders) == 1 && st.Holders[0].Owner.Reveal() == c.asked.Owner {
				return driver.Grant{TTL: c.asked.TTL, Fence: st.Holders[0].Fence}, nil
			}
			return c.inner.Try(ctx)
		},
	}},
	{name: "renewed TTLs are whole seconds, rounded down", rejects: []string{"RenewRestartsTheTTL"}, warp: warp{
		features: func(f *driver.Features) { f.MinTTL = time.Second },
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl.Truncate(time.Second))
			g.TTL = ttl
			return g, err
		},
	}},
	{name: "a renewed lease is much shorter than it says", rejects: []string{"HolderLearnsBeforeSuccessor"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl/3)
			g.TTL = ttl
			return g, err
		},
	}},
	{name: "Renew does not restart the lease", rejects: []string{"RenewKeepsTheGrant", "RenewalOutlivesTheTTL", "ExtendMovesTheDeadline", "RenewRestartsTheTTL"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			st, err := c.Inspect(ctx, c.asked.Resource)
			for _, h := range st.Holders {
				if h.Owner.Reveal() == c.asked.Owner {
					return driver.Grant{TTL: ttl, Fence: h.Fence}, err
				}
			}
			return driver.Grant{}, driver.ErrLost
		},
	}},
	{name: "every other Renew fails", rejects: []string{"HungRenewalLeavesTimeForAnother"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			if n, _ := c.remember(c.asked.Owner, true).(bool); n {
				return driver.Grant{}, driver.ErrLost
			}
			return c.inner.Renew(ctx, ttl)
		},
	}},
}
