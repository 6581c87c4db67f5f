package locktest_test

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// brokenEnds are wrong about how leases are renewed, released and lost.
var brokenEnds = []breakage{
	// Release and renewal.
	{name: "Release does not look at the owner", rejects: []string{"ReleaseByOthersFreesNothing", "ReleaseAfterExpiry", "ReleaseTwice", "RetriedReleaseSparesSuccessor", "SharerReleasesAlone"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			st, err := c.Inspect(ctx, c.asked.Resource)
			if err != nil || len(st.Holders) == 0 {
				return c.inner.Release(ctx, how)
			}
			q := c.asked
			q.Owner = st.Holders[0].Owner.Reveal()
			return c.as(q).Release(ctx, driver.End{})
		},
	}},
	{name: "Release never says lost", rejects: []string{"ReleaseByOthersFreesNothing", "ReleaseAfterExpiry", "ReleaseTwice", "RetriedReleaseSparesSuccessor"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			if err := c.inner.Release(ctx, how); !errors.Is(err, driver.ErrLost) {
				return err
			}
			return nil
		},
	}},
	{name: "a renewal comes after Release", rejects: []string{"ReleaseDuringRenewalStays"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			q := c.asked
			q.Owner, q.Queue = q.Owner+"again", true
			time.AfterFunc(150*time.Millisecond, func() { c.as(q).Try(context.Background()) })
			return c.inner.Renew(ctx, ttl)
		},
	}},
	{name: "Renew of an expired lease revives it", rejects: []string{"RenewAfterExpiryRevivesNothing", "RenewWithoutHold"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl)
			if errors.Is(err, driver.ErrLost) {
				if g, err := c.inner.Try(ctx); err == nil {
					return g, nil
				}
			}
			return g, err
		},
	}},
	{name: "Renew always says yes", rejects: []string{"RenewAfterTakeover", "RenewAfterExpiryRevivesNothing", "RenewWithoutHold", "EvictEndsOneLease", "FlushEndsLeases"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl)
			if errors.Is(err, driver.ErrLost) {
				return driver.Grant{TTL: ttl}, nil
			}
			return g, err
		},
	}},
	{name: "Renew takes the lease from its successor", rejects: []string{"RenewAfterTakeover"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl)
			if errors.Is(err, driver.ErrLost) {
				if st, err := c.Inspect(ctx, c.asked.Resource); err == nil && len(st.Holders) > 0 {
					c.Driver.Evict(ctx, c.asked.Resource, st.Holders[0].Owner.Reveal(), "")
				}
			}
			return g, err
		},
	}},
	{name: "only the claim that was granted may renew", rejects: []string{"Resume"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			if c.recall(c.asked.Owner) != c {
				return driver.Grant{}, driver.ErrLost
			}
			return c.inner.Renew(ctx, ttl)
		},
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			c.remember(c.asked.Owner, c)
			return c.inner.Try(ctx)
		},
	}},
	{name: "an attempt for what the owner holds by another claim ends it", rejects: []string{"AnotherClaimOfTheOwner"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			st, err := c.Inspect(ctx, c.asked.Resource)
			if by := c.recall(c.asked.Owner); err == nil && by != nil && by != c && len(st.Holders) > 0 && st.Holders[0].Owner.Reveal() == c.asked.Owner {
				c.inner.Release(ctx, driver.End{})
				return driver.Grant{}, driver.ErrCorrupt
			}
			c.remember(c.asked.Owner, c)
			return c.inner.Try(ctx)
		},
	}},
	{name: "a sharer's fence below the last one seen is refused", rejects: []string{"AnotherClaimOfASharer"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if err != nil {
				return g, err
			}
			if last, ok := c.recall(c.asked.Resource).(uint64); ok && g.Fence < last {
				return driver.Grant{}, driver.ErrCorrupt
			}
			c.remember(c.asked.Resource, g.Fence)
			return g, nil
		},
	}},
	{name: "a second Release ends what the owner's next claim has", rejects: []string{"SecondReleaseSparesTheNextClaim"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			return c.as(c.asked).Release(ctx, how)
		},
	}},
	{name: "a second Release that lingers takes the lease of the owner's next claim", rejects: []string{"SecondReleaseSparesTheNextClaim"}, warp: warp{
		linger: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			return c.as(c.asked).Release(ctx, how)
		},
	}},

	// Owners that were given up.
	{name: "nothing is left of an owner that was given up", rejects: []string{"BarredOwnerIsRefused", "BarredElsewhereIsRefused", "BarredOwnerLeavesNoPlace", "BarredSharerIsRefused", "BarredAfterEvictionIsRefused", "BarredLingererIsRefused"}, warp: warp{
		bar: func(*warpedClaim, time.Duration) time.Duration { return 0 },
	}},
	{name: "the mark ends with the lease", rejects: []string{"BarredForAsLongAsAsked"}, warp: warp{
		bar: func(c *warpedClaim, keep time.Duration) time.Duration { return min(keep, c.asked.TTL) },
	}},
	{name: "an owner that had nothing is not kept out", rejects: []string{"BarredOwnerIsRefused", "BarredAfterEvictionIsRefused"}, warp: warp{
		bar: func(c *warpedClaim, keep time.Duration) time.Duration {
			if !c.holds(context.Background()) {
				return 0
			}
			return keep
		},
	}},
	{name: "who gives up what another process took keeps nobody out", rejects: []string{"BarredElsewhereIsRefused"}, warp: warp{
		bar: func(c *warpedClaim, keep time.Duration) time.Duration {
			if by := c.recall("took " + c.asked.Owner); by != nil && by != c {
				return 0
			}
			return keep
		},
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			c.remember("took "+c.asked.Owner, c)
			return c.inner.Try(ctx)
		},
	}},
	{name: "the mark goes with the next holder", rejects: []string{"BarredOwnerIsRefused"}, warp: warp{
		bar: func(c *warpedClaim, keep time.Duration) time.Duration {
			c.remember("barred "+c.asked.Resource, c.asked.Owner)
			return 0
		},
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if c.recall("barred "+c.asked.Resource) == c.asked.Owner {
				return driver.Grant{}, driver.ErrBarred
			}
			c.remember("barred "+c.asked.Resource, nil)
			return c.inner.Try(ctx)
		},
	}},
	{name: "the whole resource is barred", rejects: []string{"BarredOwnerIsRefused", "BarredSharerIsRefused"}, warp: warp{
		bar: func(c *warpedClaim, keep time.Duration) time.Duration {
			c.remember("barred "+c.asked.Resource, true)
			return keep
		},
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if c.recall("barred "+c.asked.Resource) != nil {
				return driver.Grant{}, driver.ErrBarred
			}
			return c.inner.Try(ctx)
		},
	}},

	// Loss.
	{name: "Lost is never called", rejects: []string{"EvictionEndsTheContext", "LostIsCalledOnce", "FlushEndsLeases"}, warp: warp{request: func(q *driver.Request) { q.Lost = nil }}},
	{name: "Lost is called twice", rejects: []string{"LostIsCalledOnce"}, warp: warp{request: func(q *driver.Request) {
		if lost := q.Lost; lost != nil {
			q.Lost = func(cause error) { lost(cause); lost(cause) }
		}
	}}},
	{name: "only the first attempt is told of a loss", rejects: []string{"LostIsCalledOnce"}, warp: warp{
		claim: func(w *warped, q *driver.Request) {
			if lost, owner := q.Lost, q.Owner; lost != nil {
				q.Lost = func(cause error) {
					if w.recall("waits "+owner) == nil {
						lost(cause)
					}
				}
			}
		},
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if errors.Is(err, driver.ErrBusy) {
				c.remember("waits "+c.asked.Owner, true)
			}
			return g, err
		},
	}},
	{name: "sharers are told of no loss", rejects: []string{"LostIsCalledOnce"}, warp: warp{request: func(q *driver.Request) {
		if q.Mode == driver.Shared {
			q.Lost = nil
		}
	}}},
	{name: "who resumes is told of no loss", rejects: []string{"LostIsCalledOnce"}, warp: warp{claim: func(w *warped, q *driver.Request) {
		if w.remember("claims "+q.Owner, true) != nil {
			q.Lost = nil
		}
	}}},
	{name: "Lost is called without a cause", rejects: []string{"LostIsCalledOnce"}, warp: warp{request: func(q *driver.Request) {
		if lost := q.Lost; lost != nil {
			q.Lost = func(error) { lost(errors.New("gone")) }
		}
	}}},
	{name: "Lost is called on Release", rejects: []string{"LostIsNotCalledOnRelease"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			err := c.inner.Release(ctx, how)
			if c.asked.Lost != nil {
				c.asked.Lost(driver.ErrLost)
			}
			return err
		},
	}},
	{name: "Lost of a former holder is called", rejects: []string{"LostIsNotCalledOnRelease", "LostIsCalledOnce"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if c.asked.Lost != nil {
				c.remember(c.asked.Resource, c.asked.Lost)
			}
			return c.inner.Try(ctx)
		},
		evict: func(w *warped, ctx context.Context, resource, owner, reason string) error {
			err := w.Driver.Evict(ctx, resource, owner, reason)
			if lost, ok := w.recall(resource).(func(error)); ok && err == nil {
				lost(driver.ErrLost)
			}
			return err
		},
	}},
}
