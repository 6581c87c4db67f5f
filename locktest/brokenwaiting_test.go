package locktest_test

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// brokenWaits are wrong about those who wait.
var brokenWaits = []breakage{
	{name: "TryAcquire leaves a place", rejects: []string{"RefusedTryLeavesNoPlace", "InspectShowsWaitersInOrder"}, warp: warp{request: func(q *driver.Request) { q.Queue = true }}},
	{name: "a waiter who leaves keeps its place", rejects: []string{
		"WaiterWhoGivesUpLeavesNoPlace", "LeavingTheMiddleKeepsTheOrder", "NothingIsLeftAtTheEngine", "CloseEndsWaiters",
	}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			if !c.holds(ctx) {
				return driver.ErrLost
			}
			return c.inner.Release(ctx, how)
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
				return driver.Grant{}, ctx.Err()
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
	{name: "a grant with a Wake is for twice the lease", rejects: []string{"PushedGrantCountsFromItsTry"}, warp: warp{try: pushedFor(2)}},
	{name: "everybody is woken", rejects: []string{"OneReleaseWakesOneWaiter"}, warp: warp{try: broadcast(false), release: wakeAll}},
	{name: "an eviction wakes nobody", rejects: []string{"EvictEndsOneLease"}, warp: deafTo("evicted ", warp{
		evict: func(w *warped, ctx context.Context, resource, owner, reason string) error {
			w.remember("evicted "+resource, true)
			return w.Driver.Evict(ctx, resource, owner, reason)
		},
	})},
	{name: "the last sharer wakes nobody", rejects: []string{"QueuedReadersFollowWriter"}, warp: deafTo("shared ", warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			if c.asked.Mode == driver.Shared {
				c.remember("shared "+c.asked.Resource, true)
			}
			return c.inner.Release(ctx, how)
		},
	})},
	{name: "one reader is woken", rejects: []string{"QueuedReadersFollowWriter"}, warp: refusing(func(c *warpedClaim, b *driver.Busy) {
		if c.asked.Mode == driver.Shared && c.remember("reader of "+c.asked.Resource, true) != nil {
			b.Wake = make(chan struct{})
		}
	})},
	{name: "a head that leaves wakes nobody", rejects: []string{"HeadThatLeavesWakesTheNext"}, warp: deafTo("left ", warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			if !c.holds(ctx) {
				c.remember("left "+c.asked.Resource, true)
			}
			return c.inner.Release(ctx, how)
		},
	})},
	{name: "a raised limit wakes nobody", rejects: []string{"RaisedLimitAdmitsThoseWhoWait"}, warp: deafTo("limit ", warp{
		limit: func(w *warped, ctx context.Context, resource string, limit int) error {
			w.remember("limit "+resource, limit > 1)
			return w.Driver.SetLimit(ctx, resource, limit)
		},
	})},
	{name: "Retry is nothing", rejects: []string{"WaiterDoesNotSpin"}, warp: refusing(func(_ *warpedClaim, b *driver.Busy) { b.Retry = 1 })},
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
}

// deafTo adds to w that no Wake closes once w has remembered true by that prefix and the name of
// the resource.
func deafTo(prefix string, w warp) warp {
	w.try = func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		g, err := c.inner.Try(ctx)
		if busy, ok := errors.AsType[*driver.Busy](err); ok && busy.Wake != nil {
			inner, out := busy.Wake, make(chan struct{})
			busy.Wake = out
			go func() {
				<-inner
				if c.recall(prefix+c.asked.Resource) != true {
					close(out)
				}
			}()
		}
		return g, err
	}
	return w
}
