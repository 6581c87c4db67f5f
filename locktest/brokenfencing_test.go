package locktest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// brokenFences are wrong about fences, and about leases that are shared.
var brokenFences = []breakage{
	// Fencing.
	{name: "the fence is always the same", rejects: []string{"FenceGrows", "FenceGrowsAfterExpiry", "FenceGrowsAfterEviction", "RaisedFenceStays", "TokensGrow", "SharedFencesGrow", "FenceGrowsAfterFlush"},
		warp: granting(func(g *driver.Grant) { g.Fence = 7 * driver.FenceStep })},
	{name: "there is no fence", rejects: []string{"FenceIsTheGrants"}, warp: granting(func(g *driver.Grant) { g.Fence = 0 })},
	{name: "the fence is the engine's own number", rejects: []string{"FenceLeavesRoomForHandOvers"}, warp: granting(func(g *driver.Grant) { g.Fence = g.Fence/driver.FenceStep | 1 })},
	{name: "holders are shown with the engine's own number", rejects: []string{"TokensAreOneScale"}, warp: warp{inspect: func(st *driver.State) {
		for i := range st.Holders {
			st.Holders[i].Fence = driver.NumberOf(st.Holders[i].Fence)
		}
	}}},
	{name: "the fence is the time in nanoseconds", rejects: []string{"FenceLeavesRoomForHandOvers"}, warp: granting(func(g *driver.Grant) { g.Fence *= 10 })},
	{name: "the fence grows with each call", rejects: append(mutex("TryIsRepeatable"), "FenceIsTheGrants", "RenewKeepsTheGrant", "ReplyLostOnRenew", "SharedFencesGrow"), warp: func() warp {
		var n atomic.Uint64
		return granting(func(g *driver.Grant) { g.Fence += n.Add(1) * driver.FenceStep })
	}()},
	{name: "the eviction of somebody else is told", rejects: []string{"EvictEndsOneLease"}, warp: warp{inspect: func(st *driver.State) {
		for i := range st.Evicted {
			st.Evicted[i].Owner = driver.OwnerOf("somebody else")
		}
	}}},
	{name: "the fence begins anew after an expiry", rejects: []string{"FenceGrowsAfterExpiry"}, warp: counting(func(c *warpedClaim, released bool, last uint64) uint64 {
		if !released {
			return 1
		}
		return last + 1
	})},
	{name: "eviction does not raise the fence", rejects: []string{"FenceGrowsAfterEviction"}, warp: counting(func(c *warpedClaim, released bool, last uint64) uint64 {
		if !released && last > 0 {
			return last
		}
		return last + 1
	})},
	{name: "eviction hides the fence that was given", rejects: []string{"EvictEndsOneLease"}, warp: warp{inspect: func(st *driver.State) {
		if len(st.Holders) == 0 {
			st.Fence = driver.FenceStep
		}
	}}},
	{name: "the fence begins anew without its state", rejects: []string{"FenceGrowsAfterFlush"}, warp: counting(func(c *warpedClaim, released bool, last uint64) uint64 {
		return 1
	})},
	{name: "the fence begins anew without its state, after one failure", rejects: []string{"FenceGrowsAfterFlush"},
		warp: counting(func(c *warpedClaim, released bool, last uint64) uint64 {
			if c.remember("empty", nil) != nil {
				return 1
			}
			return last + 1
		}),
		harness: func(p *warp, t testing.TB) locktest.Harness {
			try := p.try
			p.try = func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
				if c.remember("reset", nil) != nil {
					return driver.Grant{}, errors.New("connection reset")
				}
				return try(c, ctx)
			}
			h := p.harness(t)
			flush := h.FlushState
			h.FlushState = func(t testing.TB) { flush(t); p.remember("empty", true); p.remember("reset", true) }
			return h
		}},
	{name: "RaiseFence does nothing", rejects: []string{"RaisedFenceStays"}, warp: warp{raise: func(*warped, uint64) error { return nil }}},
	{name: "RaiseFence takes any number", rejects: []string{"RaisedFenceLeavesRoom"}, warp: warp{raise: func(w *warped, fence uint64) error {
		return w.Driver.RaiseFence(context.Background(), "", min(fence, driver.MaxRaise/2))
	}}},
	{name: "RaiseFence changes the holder's grant", rejects: []string{"RaisedFenceSparesTheHolder"}, warp: raisingGrants()},

	// Shared.
	{name: "no limit", rejects: append([]string{"LimitIsNeverPassed", "SmallestLimitCounts", "SemaphoreUnderLoad", "SharerExpiresAlone", "SharerReleasesAlone", "EvictSparesOtherSharers"}, "LimitOneOneHolder"),
		warp: warp{request: func(q *driver.Request) { q.Limit = 0 }}},
	{name: "the greatest limit counts", rejects: []string{"SmallestLimitCounts"}, warp: warp{request: func(q *driver.Request) {
		if q.Limit > 0 {
			q.Limit = 5
		}
	}}},
	{name: "writers do not see sharers", rejects: []string{"SharersTogetherWriterAlone", "LimitIsNeverPassed"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if busy, ok := errors.AsType[*driver.Busy](err); ok && c.asked.Mode == driver.Exclusive && busy.Holder.Mode == driver.Shared {
				return alone(c, ctx)
			}
			return g, err
		},
	}},
	{name: "sharers have one expiry for all", rejects: []string{"SharerExpiresAlone"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			st, _ := c.Inspect(ctx, c.asked.Resource) // none, then
			for _, h := range st.Holders {
				q := c.asked
				q.Owner = h.Owner.Reveal()
				c.as(q).Renew(ctx, ttl)
			}
			return c.inner.Renew(ctx, ttl)
		},
	}},
	{name: "one sharer's end frees all slots", rejects: []string{"SharerReleasesAlone", "SharersTogetherWriterAlone"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			st, _ := c.Inspect(ctx, c.asked.Resource) // none, then
			for _, h := range st.Holders {
				if h.Owner.Reveal() != c.asked.Owner && c.holds(ctx) {
					q := c.asked
					q.Owner = h.Owner.Reveal()
					c.as(q).Release(ctx, driver.End{})
				}
			}
			return c.inner.Release(ctx, how)
		},
	}},
	{name: "readers pass a queued writer", rejects: []string{"QueuedWriterStopsReaders"}, warp: warp{request: func(q *driver.Request) {
		if q.Mode == driver.Exclusive {
			q.Queue = false
		}
	}}},
}
