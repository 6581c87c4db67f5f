package locktest_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestSlowCleanUpIsAccepted: a sound engine that is busy takes longer to clean up than a
// call that failed waits for it. A case counts on Close, or polls.
func TestSlowCleanUpIsAccepted(t *testing.T) {
	t.Parallel()
	const remote = locktest.NeedPause | locktest.NeedRestart | locktest.NeedAddress | locktest.NeedHang | locktest.NeedForget
	var runs []func()
	for _, c := range locktest.Cases() {
		if c.Needs&remote != 0 || strings.Contains(c.Name, "Goroutine") { // what those count is the process's
			continue
		}
		p := warp{
			try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
				g, err := c.inner.Try(ctx)
				c.remember(c.asked.Owner, err == nil)
				return g, err
			},
			release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
				if c.recall(c.asked.Owner) == false {
					time.Sleep(200 * time.Millisecond)
				}
				return c.inner.Release(ctx, how)
			},
		}
		runs = append(runs, func() {
			t.Run(c.Name, func(t *testing.T) {
				accepts := func(t *testing.T) {
					if r := record(t, c, p.harness(t)); r.Failed() {
						t.Errorf("%s rejects it: %s", c.Name, r.text())
					}
				}
				if c.Alone { // as locktest.RunBubbled does
					accepts(t)
					return
				}
				synctest.Test(t, accepts)
			})
		})
	}
	concurrently(64, runs)
}
