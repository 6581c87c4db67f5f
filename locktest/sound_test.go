package locktest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// sound are drivers that keep the contract, and cases that must not fail because of how they do.
var sound = []struct {
	name    string
	accepts []string
	warp    warp
}{
	{name: "one more notice is under way", accepts: []string{"NotWantedAfterTheEnd", "NotWantedWithoutAPlace", "RenewalTellsOfOthers", "OneCallUntilARenewal"}, warp: warp{
		claim: func(_ *warped, q *driver.Request) {
			if wanted := q.Wanted; wanted != nil {
				q.Wanted = func() {
					wanted()
					time.AfterFunc(50*time.Millisecond, wanted)
				}
			}
		},
	}},
	{name: "a grant comes with its Wake", accepts: []string{"PushedGrantCountsFromItsTry"}, warp: warp{try: pushedFor(1)}},
	{name: "a renewal takes longer than a waiter keeps its place", accepts: []string{"QueuedWriterStopsReaders", "FenceGrowsAfterExpiry"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			time.Sleep(locktest.Margin)
			return c.inner.Renew(ctx, ttl)
		},
	}},
	{name: "an attempt without a place takes longer than a waiter keeps its own", accepts: []string{"QueuedWriterStopsReaders", "HeavyHeadIsNotPassed"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if !c.asked.Queue {
				time.Sleep(locktest.Margin)
			}
			return c.inner.Try(ctx)
		},
	}},
	{name: "after Close a driver knows when a lease is over", accepts: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if err == nil {
				c.remember(c.asked.Owner, time.Now().Add(g.TTL))
			}
			return g, err
		},
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			time.Sleep(600 * time.Millisecond)
			g, err := c.inner.Renew(ctx, ttl)
			if end, _ := c.recall(c.asked.Owner).(time.Time); errors.Is(err, driver.ErrClosed) && !time.Now().Before(end) {
				err = driver.ErrLost
			}
			return g, err
		},
	}},
}

// TestSoundDriversAreAccepted: no case fails because a driver makes use of what the contract
// allows, or because the machine is busy.
func TestSoundDriversAreAccepted(t *testing.T) {
	for _, s := range sound {
		for _, c := range locktest.Cases() {
			if !slices.Contains(s.accepts, c.Name) {
				continue
			}
			t.Run(s.name+"/"+c.Name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if r := record(t, c, s.warp.harness(t)); r.Failed() {
						t.Errorf("%s rejects it: %s", c.Name, r.text())
					}
				})
			})
		}
	}
}
