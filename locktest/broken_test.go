package locktest_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

type breakage struct {
	name    string
	rejects []string
	warp    warp
	harness func(p *warp, t testing.TB) locktest.Harness // nil: (*warp).harness
}

// run runs c against a fresh driver.
func (b *breakage) run(t *testing.T, c locktest.Case) *recorder {
	p, harness := b.warp, b.harness
	if harness == nil {
		harness = (*warp).harness
	}
	return record(t, c, harness(&p, t))
}

// broken lists drivers that are wrong in one way each, and the cases that must say so.
// Most were somebody's bug.
var broken = []breakage{
	// Names.
	{name: "names are folded to lower case", rejects: []string{"NamesAreDistinct"}, warp: renaming(strings.ToLower)},
	{name: "names are trimmed", rejects: []string{"NamesAreDistinct"}, warp: renaming(strings.TrimSpace)},
	{name: "names are paths", rejects: []string{"NamesAreDistinct"}, warp: renaming(path.Clean)},
	{name: "names are cut at 255 bytes", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return s[:min(len(s), 255)] })},
	{name: "names are normalised", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.ReplaceAll(s, "e\u0301", "é") })},
	{name: "names are decoded", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.ReplaceAll(s, "%2F", "/") })},
	{name: "names are hash tags", rejects: []string{"NamesAreDistinct"}, warp: renaming(hashTag)},
	{name: "names end where a companion begins", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.TrimSuffix(s, ":fence") })},
	{name: "the last part of a name is dropped", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.TrimSuffix(s, "/x") })},

	// Exclusion.
	{name: "everybody is granted", rejects: mutex("OneHolder", "OneOfManyWins", "TryNeverWaits", "OwnersAreComparedWhole"), warp: warp{try: alone}},
	{name: "everybody is granted at last", rejects: []string{"EveryWaiterIsServed", "TokensGrow"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if _, refused := errors.AsType[*driver.Busy](err); refused && c.remember("refused", true) != nil {
				return alone(c, ctx)
			}
			return g, err
		},
	}},
	{name: "check, then act", rejects: mutex("OneOfManyWins"), warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if st, err := c.Inspect(ctx, c.asked.Resource); err != nil || len(st.Holders) > 0 {
				return c.inner.Try(ctx)
			}
			time.Sleep(time.Millisecond)
			return alone(c, ctx)
		},
	}},
	{name: "Try waits for the holder", rejects: append(mutex("TryNeverWaits"), "WaitIsBounded"), warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			for end := time.Now().Add(3 * locktest.Margin); ; time.Sleep(time.Millisecond) {
				g, err := c.inner.Try(context.WithoutCancel(ctx))
				if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
					return g, err
				}
			}
		},
	}},
	{name: "busy by itself", rejects: append(mutex("TryIsRepeatable"), "ReplyLostOnTry", "ReplyLostWhileWaiting", "TryRestartsTheTTL"), warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if c.holds(ctx) {
				return driver.Grant{}, &driver.Busy{}
			}
			return c.inner.Try(ctx)
		},
	}},
	{name: "owners are compared by their beginning", rejects: mutex("OwnersAreComparedWhole"), warp: warp{
		request: func(q *driver.Request) { q.Owner = q.Owner[:min(len(q.Owner), 12)] },
	}},
	{name: "owners are compared without case", rejects: mutex("OwnersAreComparedWhole"), warp: warp{
		request: func(q *driver.Request) { q.Owner = strings.ToLower(q.Owner) },
	}},
	{name: "Release does nothing", rejects: append(mutex("LockRightAfterUnlock", "OneHolder"),
		"ReleaseOnCancelledContext", "ReplyLostOnRelease", "NestedHoldsShareTheToken", "SharerReleasesAlone", "WaiterFollowsRelease", "RenewalOutlivesTheTTL"), warp: warp{
		release: func(*warpedClaim, context.Context) error { return nil },
	}},
	{name: "Release comes late", rejects: append(mutex("LockRightAfterUnlock"), "ReleaseOnCancelledContext"), warp: warp{
		release: func(c *warpedClaim, _ context.Context) error {
			time.AfterFunc(100*time.Millisecond, func() { c.inner.Release(context.Background()) })
			return nil
		},
	}},

	// TTLs.
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
			if st, err := c.Inspect(ctx, c.asked.Resource); err == nil && len(st.Holders) == 1 && st.Holders[0].Owner == c.asked.Owner {
				return driver.Grant{TTL: c.asked.TTL, Fence: st.Holders[0].Fence}, nil
			}
			return c.inner.Try(ctx)
		},
	}},
	{name: "Renew does not restart the lease", rejects: []string{"RenewKeepsTheGrant", "RenewalOutlivesTheTTL", "ExtendMovesTheDeadline", "RenewRestartsTheTTL"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			st, err := c.Inspect(ctx, c.asked.Resource)
			for _, h := range st.Holders {
				if h.Owner == c.asked.Owner {
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

	// Waiting.
	{name: "TryAcquire leaves a place", rejects: []string{"RefusedTryLeavesNoPlace", "InspectShowsWaitersInOrder"}, warp: warp{request: func(q *driver.Request) { q.Queue = true }}},
	{name: "a waiter who leaves keeps its place", rejects: []string{
		"WaiterWhoGivesUpLeavesNoPlace", "LeavingTheMiddleKeepsTheOrder", "NothingIsLeftAtTheEngine", "CloseEndsWaiters",
	}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context) error {
			if !c.holds(ctx) {
				return driver.ErrLost
			}
			return c.inner.Release(ctx)
		},
	}},
	{name: "Try does not look at its context", rejects: []string{"CancelledBeforehandNeverAcquires"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			return c.inner.Try(context.WithoutCancel(ctx))
		},
	}},
	{name: "a cancelled Try is applied later", rejects: []string{"CancelRacingWithGrantOrphansNothing"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			select {
			case <-time.After(3 * time.Millisecond):
				return c.inner.Try(ctx)
			case <-ctx.Done():
				time.AfterFunc(5*time.Millisecond, func() { c.inner.Try(context.Background()) })
				return driver.Grant{}, context.Cause(ctx)
			}
		},
	}},
	{name: "nobody is woken", rejects: []string{"WakesOnRelease", "WakeIsArmedBeforeTheAnswer", "OneReleaseWakesOneWaiter", "WaiterFollowsRelease"}, warp: refusing(func(_ *warpedClaim, b *driver.Busy) {
		b.Wake, b.Retry = make(chan struct{}), 0
	})},
	{name: "Wakes are declared and missing", rejects: []string{"WakesOnRelease", "WakeIsArmedBeforeTheAnswer"}, warp: refusing(func(_ *warpedClaim, b *driver.Busy) { b.Wake = nil })},
	{name: "wake-ups are slow", rejects: []string{"WakesOnRelease", "WakeIsArmedBeforeTheAnswer", "OneReleaseWakesOneWaiter"}, warp: refusing(func(_ *warpedClaim, b *driver.Busy) {
		if b.Wake != nil {
			b.Wake = later(b.Wake, 2*locktest.Margin)
		}
	})},
	{name: "wake-ups are late", rejects: []string{"WakesOnRelease"}, warp: refusing(func(_ *warpedClaim, b *driver.Busy) {
		if b.Wake != nil {
			b.Wake = later(b.Wake, locktest.Margin/2)
		}
	})},
	{name: "waiters are to come back late", rejects: []string{"WaiterFollowsRelease"}, warp: refusing(func(_ *warpedClaim, b *driver.Busy) {
		b.Wake, b.Retry = make(chan struct{}), 3*locktest.Margin/4
	})},
	{name: "Wake is armed after the answer", rejects: []string{"WakeIsArmedBeforeTheAnswer"}, warp: warp{try: broadcast(true), release: wakeAll}},
	{name: "everybody is woken", rejects: []string{"OneReleaseWakesOneWaiter"}, warp: warp{try: broadcast(false), release: wakeAll}},
	{name: "a turn that is not taken at once is lost", rejects: []string{"LostWakeUpOnlyDelays", "WaiterOutlivesACutLink"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if since, ok := c.recall(c.asked.Owner).(time.Time); ok && time.Since(since) > 300*time.Millisecond {
				return driver.Grant{}, &driver.Busy{Wake: make(chan struct{})}
			}
			g, err := c.inner.Try(ctx)
			if busy, ok := errors.AsType[*driver.Busy](err); ok && busy.Wake != nil {
				go func() {
					<-busy.Wake
					c.remember(c.asked.Owner, time.Now())
				}()
			}
			return g, err
		},
	}},
	{name: "no order", rejects: []string{"OrderOfFirstTry", "LeavingTheMiddleKeepsTheOrder", "DeadWaiterOnlyDelays", "QueuedWriterStopsReaders", "InspectShowsWaitersInOrder"}, warp: warp{
		request: func(q *driver.Request) { q.Queue = false },
	}},
	{name: "a dead waiter is kept alive", rejects: []string{"DeadWaiterOnlyDelays"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if busy, ok := errors.AsType[*driver.Busy](err); ok && c.asked.Queue && c.asked.TTL < time.Second {
				if c.remember(c.asked.Owner, true) == nil {
					go func() {
						for range 60 {
							time.Sleep(200 * time.Millisecond)
							c.inner.Try(context.Background())
						}
					}()
				}
				return g, busy
			}
			return g, err
		},
	}},
	{name: "one sharer at a time", rejects: []string{"QueuedReadersFollowWriter", "SharersTogetherWriterAlone"}, warp: warp{
		request: func(q *driver.Request) { q.Limit = 1 },
	}},

	// Release and renewal.
	{name: "Release does not look at the owner", rejects: []string{"ReleaseByOthersFreesNothing", "ReleaseAfterExpiry", "ReleaseTwice", "RetriedReleaseSparesSuccessor", "SharerReleasesAlone"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context) error {
			st, err := c.Inspect(ctx, c.asked.Resource)
			if err != nil || len(st.Holders) == 0 {
				return c.inner.Release(ctx)
			}
			q := c.asked
			q.Owner = st.Holders[0].Owner
			return c.as(q).Release(ctx)
		},
	}},
	{name: "Release never says lost", rejects: []string{"ReleaseByOthersFreesNothing", "ReleaseAfterExpiry", "ReleaseTwice", "RetriedReleaseSparesSuccessor"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context) error {
			if err := c.inner.Release(ctx); !errors.Is(err, driver.ErrLost) {
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
					c.Driver.Evict(ctx, c.asked.Resource, st.Holders[0].Owner, "")
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

	// Loss.
	{name: "Lost is never called", rejects: []string{"EvictionEndsTheContext", "LostIsCalledOnce", "FlushEndsLeases"}, warp: warp{request: func(q *driver.Request) { q.Lost = nil }}},
	{name: "Lost is called twice", rejects: []string{"LostIsCalledOnce"}, warp: warp{request: func(q *driver.Request) {
		if lost := q.Lost; lost != nil {
			q.Lost = func(cause error) { lost(cause); lost(cause) }
		}
	}}},
	{name: "Lost is called without a cause", rejects: []string{"LostIsCalledOnce"}, warp: warp{request: func(q *driver.Request) {
		if lost := q.Lost; lost != nil {
			q.Lost = func(error) { lost(errors.New("gone")) }
		}
	}}},
	{name: "Lost is called on Release", rejects: []string{"LostIsNotCalledOnRelease"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context) error {
			err := c.inner.Release(ctx)
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
	{name: "RaiseFence does nothing", rejects: []string{"RaisedFenceStays"}, warp: warp{raise: func(*warped, uint64) error { return nil }}},
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
				q.Owner = h.Owner
				c.as(q).Renew(ctx, ttl)
			}
			return c.inner.Renew(ctx, ttl)
		},
	}},
	{name: "one sharer's end frees all slots", rejects: []string{"SharerReleasesAlone", "SharersTogetherWriterAlone"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context) error {
			st, _ := c.Inspect(ctx, c.asked.Resource) // none, then
			for _, h := range st.Holders {
				if h.Owner != c.asked.Owner && c.holds(ctx) {
					q := c.asked
					q.Owner = h.Owner
					c.as(q).Release(ctx)
				}
			}
			return c.inner.Release(ctx)
		},
	}},
	{name: "readers pass a queued writer", rejects: []string{"QueuedWriterStopsReaders"}, warp: warp{request: func(q *driver.Request) {
		if q.Mode == driver.Exclusive {
			q.Queue = false
		}
	}}},

	// Inspect, list, evict, linger.
	{name: "Features change", rejects: []string{"FeaturesAreConstant"}, warp: func() warp {
		var n atomic.Int64
		return warp{features: func(f *driver.Features) { f.MinTTL += time.Duration(n.Add(1)) }}
	}()},
	{name: "what Features deny is served", rejects: []string{"LackingIsUnsupported"}, warp: warp{features: func(f *driver.Features) { f.Shared = false }}},
	{name: "fences that Features deny are given", rejects: []string{"LackingIsUnsupported"}, warp: warp{features: func(f *driver.Features) { f.Fencing = false }}},
	{name: "notes are cut", rejects: []string{"InspectShowsHolders", "InspectShowsWaitersInOrder"}, warp: warp{request: func(q *driver.Request) { q.Note = q.Note[:min(len(q.Note), 4)] }}},
	{name: "long notes are cut", rejects: []string{"LongNoteIsKept"}, warp: warp{request: func(q *driver.Request) { q.Note = q.Note[:min(len(q.Note), 4000)] }}},
	{name: "expired holders are shown", rejects: []string{"InspectShowsHolders"}, warp: func() warp {
		var mu sync.Mutex
		seen := make(map[string]driver.State)
		return warp{inspect: func(st *driver.State) {
			mu.Lock()
			defer mu.Unlock()
			if len(st.Holders) > 0 {
				seen[st.Resource] = *st
			}
			*st = seen[st.Resource]
		}}
	}()},
	{name: "half of what is left is shown", rejects: []string{"InspectShowsSharers"}, warp: warp{inspect: func(st *driver.State) {
		for i := range st.Holders {
			st.Holders[i].Left /= 2
		}
	}}},
	{name: "one holder is shown", rejects: []string{"InspectShowsSharers"}, warp: warp{inspect: func(st *driver.State) { st.Holders = st.Holders[:min(len(st.Holders), 1)] }}},
	{name: "holders are shown out of order", rejects: []string{"InspectShowsSharers"}, warp: warp{inspect: func(st *driver.State) { slices.Reverse(st.Holders) }}},
	{name: "limits are not shown", rejects: []string{"InspectShowsSharers"}, warp: warp{inspect: func(st *driver.State) {
		for i := range st.Holders {
			st.Holders[i].Limit = 0
		}
	}}},
	{name: "the limit that counts is shown as each one's", rejects: []string{"InspectShowsSharers"}, warp: warp{inspect: func(st *driver.State) {
		for i := range st.Holders {
			st.Holders[i].Limit = 5
		}
	}}},
	{name: "waiters are shown out of order", rejects: []string{"InspectShowsWaitersInOrder"}, warp: warp{inspect: func(st *driver.State) { slices.Reverse(st.Waiters) }}},
	{name: "a listed prefix is a pattern", rejects: []string{"ListIsSortedAndLiteral"}, warp: warp{list: func(w *warped, ctx context.Context, prefix string) ([]driver.State, error) {
		all, err := w.Driver.List(ctx, "")
		return slices.DeleteFunc(all, func(st driver.State) bool {
			n := len(prefix)
			match, _ := path.Match(prefix, st.Resource[:min(len(st.Resource), n)])
			return !match
		}), err
	}}},
	{name: "a listed prefix is compared without case", rejects: []string{"ListIsSortedAndLiteral"}, warp: warp{list: func(w *warped, ctx context.Context, prefix string) ([]driver.State, error) {
		all, err := w.Driver.List(ctx, "")
		return slices.DeleteFunc(all, func(st driver.State) bool {
			return !strings.HasPrefix(strings.ToLower(st.Resource), strings.ToLower(prefix))
		}), err
	}}},
	{name: "List is not sorted", rejects: []string{"ListIsSortedAndLiteral"}, warp: warp{list: func(w *warped, ctx context.Context, prefix string) ([]driver.State, error) {
		all, err := w.Driver.List(ctx, prefix)
		slices.Reverse(all)
		return all, err
	}}},
	{name: "Evict does not look at the owner", rejects: []string{"EvictEndsOneLease"}, warp: warp{evict: func(w *warped, ctx context.Context, resource, owner, reason string) error {
		st, err := w.Inspect(ctx, resource)
		if err != nil || len(st.Holders) == 0 {
			return driver.ErrLost
		}
		return w.Driver.Evict(ctx, resource, st.Holders[0].Owner, reason)
	}}},
	{name: "Evict knows nothing that lingers", rejects: []string{"EvictEndsWhatLingers"}, warp: warp{evict: func(w *warped, ctx context.Context, resource, owner, reason string) error {
		if owner == "" {
			return driver.ErrLost
		}
		return w.Driver.Evict(ctx, resource, owner, reason)
	}}},
	{name: "Evict ends all sharers", rejects: []string{"EvictSparesOtherSharers"}, warp: warp{evict: func(w *warped, ctx context.Context, resource, owner, reason string) error {
		st, err := w.Inspect(ctx, resource)
		for _, h := range st.Holders {
			err = w.Driver.Evict(ctx, resource, h.Owner, reason)
		}
		return err
	}}},
	{name: "Linger ends early", rejects: []string{"LingerHoldsForOthers", "AtLeast"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, d time.Duration) error {
		return c.inner.(driver.Lingerer).Linger(ctx, d/2)
	}}},
	{name: "Linger ends late", rejects: []string{"AtLeast"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, d time.Duration) error {
		return c.inner.(driver.Lingerer).Linger(ctx, 2*d)
	}}},
	{name: "Linger is Release", rejects: []string{"LingerHoldsForOthers", "AtLeast", "AtLeastBeforeTheQueue"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, _ time.Duration) error {
		return c.inner.Release(ctx)
	}}},
	{name: "Linger keeps the owner", rejects: []string{"LingerHoldsForOthers"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, d time.Duration) error {
		_, err := c.inner.Renew(ctx, d)
		return err
	}}},
	{name: "Note changes nothing", rejects: []string{"NoteIsReplaced"}, warp: warp{note: func(c *warpedClaim, ctx context.Context, _ string) error {
		_, err := c.inner.Renew(ctx, time.Minute)
		return err
	}}},
	{name: "Note without a hold is no error", rejects: []string{"NoteIsReplaced"}, warp: warp{note: func(c *warpedClaim, ctx context.Context, note string) error {
		_ = c.inner.(driver.Noter).Note(ctx, note)
		return nil
	}}},

	// Faults.
	{name: "calls do not end with their context", rejects: []string{"CallsEndWithTheirContext"}, harness: pausable(false)},
	{name: "calls of a paused engine say busy", rejects: []string{"CallsEndWithTheirContext"}, harness: pausable(true)},
	{name: "calls end late", rejects: []string{"CallsEndWithTheirContext"}, harness: pausedFor(locktest.Margin / 2)},
	{name: "leases outlive a pause for ever", rejects: []string{"HolderEndsWhileTheEngineIsPaused"}, harness: (*warp).remotely,
		warp: scaled(func(time.Duration) time.Duration { return time.Hour })},
	{name: "a restart loses the state", rejects: []string{"RestartKeepsLeases"}, harness: func(p *warp, t testing.TB) locktest.Harness {
		h := p.harness(t)
		h.Restart = h.FlushState
		return h
	}},

	// One resource that hangs.
	{name: "a batch is renewed one after the other", rejects: []string{"BatchIsRenewedBesideOneThatHangs", "OneThatHangsCostsOthersNoTime"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			for i := range all {
				renewOne(ctx, &all[i])
			}
		})},
	{name: "a batch fails whole", rejects: []string{"BatchIsRenewedBesideOneThatHangs", "OneThatHangsCostsOthersNoTime"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			renewAtOnce(ctx, all)
			for i := range all {
				for _, other := range all {
					all[i].Err = cmp.Or(all[i].Err, other.Err)
				}
			}
		})},
	{name: "what hangs in a batch is lost", rejects: []string{"BatchIsRenewedBesideOneThatHangs"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			renewAtOnce(ctx, all)
			for i := range all {
				if all[i].Err != nil {
					all[i].Err = driver.ErrLost
				}
			}
		})},
	{name: "a batch does not end with its context", rejects: []string{"BatchIsRenewedBesideOneThatHangs"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			renewAtOnce(ctx, all)
			time.Sleep(2 * locktest.Margin)
		})},

	// Processes.
	{name: "leases of the dead end too soon", rejects: []string{"KilledHolderFreesWithinTheTTL"}, harness: (*warp).remotely,
		warp: scaled(func(d time.Duration) time.Duration { return d/2 + d/10 })},
	{name: "leases of the dead never end", rejects: []string{"KilledHolderFreesWithinTheTTL", "KilledLeaderIsFollowed", "StormOfKills"}, harness: (*warp).remotely,
		warp: scaled(func(time.Duration) time.Duration { return time.Hour })},
	{name: "a holder is told that it has longer than it has", rejects: []string{"StoppedHolderEndsWhenItResumes"}, harness: (*warp).remotely,
		warp: granting(func(g *driver.Grant) { g.TTL += g.TTL / 2 })},
	{name: "processes that released still hold", rejects: []string{"ProcessThatReleasedFreesAtOnce"}, harness: (*warp).remotely,
		warp: warp{release: func(*warpedClaim, context.Context) error { return nil }}},
	{name: "every process is granted", rejects: []string{"EveryProcessIsServed", "StormOfKills"}, harness: (*warp).remotely, warp: warp{try: alone}},

	// Resources.
	{name: "Close does nothing", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{close: func(*warped) error { return nil }}},
	{name: "what a driver that was closed held is released", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context) error {
			if err := c.inner.Release(ctx); !errors.Is(err, driver.ErrClosed) {
				return err
			}
			return nil
		},
	}},
	{name: "calls after Close are slow", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if errors.Is(err, driver.ErrClosed) {
				time.Sleep(locktest.Margin / 2)
			}
			return g, err
		},
	}},
	{name: "a goroutine stays after Close", rejects: []string{"NoGoroutineAfterClose"}, warp: warp{open: func(*warped) { go time.Sleep(6 * locktest.Margin) }}},
	{name: "a goroutine for each claim", rejects: []string{"ManyLeasesFewGoroutines"}, warp: warp{claim: func(*warped, *driver.Request) { go time.Sleep(6 * locktest.Margin) }}},
}

// TestBrokenDriversAreRejected runs each case against the drivers that it must reject.
func TestBrokenDriversAreRejected(t *testing.T) {
	t.Parallel()
	rejected(t, 64, func(name string) bool { return !strings.Contains(name, "Goroutine") })
}

// What these cases count is the process's, so that nothing runs beside them.
func TestDriversThatLeaveGoroutinesAreRejected(t *testing.T) {
	rejected(t, 1, func(name string) bool { return strings.Contains(name, "Goroutine") })
}

// rejected runs the cases that are chosen, so many at once.
func rejected(t *testing.T, atOnce int, chosen func(name string) bool) {
	cases := make(map[string]locktest.Case)
	for _, c := range locktest.Cases() {
		cases[c.Name] = c
	}
	var runs []func()
	for i := range broken {
		b := &broken[i]
		for _, name := range b.rejects {
			c, ok := cases[name]
			if !ok {
				t.Errorf("%s: there is no case %s", b.name, name)
				continue
			}
			if !chosen(name) {
				continue
			}
			runs = append(runs, func() {
				t.Run(b.name+"/"+name, func(t *testing.T) {
					r := b.run(t, c)
					for tries := 1; !r.Failed() && tries < 5; tries++ { // a busy machine may come too late to see it
						r = b.run(t, c)
					}
					if !r.Failed() {
						t.Errorf("%s accepts it: %s", name, r.text())
					}
					t.Log(r.text())
				})
			})
		}
	}
	concurrently(atOnce, runs)
}

func concurrently(n int, runs []func()) {
	queue := make(chan func())
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for run := range queue {
				run()
			}
		})
	}
	for _, run := range runs {
		queue <- run
	}
	close(queue)
	workers.Wait()
}

// TestEveryCaseRejectsSomething: a case that cannot fail is a defect.
func TestEveryCaseRejectsSomething(t *testing.T) {
	t.Parallel()
	rejected := make(map[string]bool)
	for i := range broken {
		for _, name := range broken[i].rejects {
			rejected[name] = true
		}
	}
	for _, m := range mutations {
		rejected[m.rejects] = true
	}
	for _, c := range locktest.Cases() {
		if !rejected[c.Name] {
			t.Errorf("no broken driver is rejected by %s", c.Name)
		}
		delete(rejected, c.Name)
	}
	for name := range maps.Keys(rejected) {
		t.Errorf("there is no case %s", name)
	}
}
