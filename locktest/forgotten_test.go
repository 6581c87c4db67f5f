package locktest_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// forgettable is a harness whose driver goes on to use so many dead connections for each name. If it repeats releases,
// one call finds the connection that is not.
func forgettable(dead int, repeats bool) func(p *warp, t testing.TB) locktest.Harness {
	return func(p *warp, t testing.TB) locktest.Harness {
		hangs := func(c *warpedClaim) bool {
			key := "dead for " + c.asked.Resource
			n, _ := c.recall(key).(int)
			if forgotten, _ := c.recall("forgotten").(int); n/dead < forgotten && n < dead*forgotten {
				c.remember(key, n+1)
				return true
			}
			return false
		}
		silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		p.try = func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if hangs(c) {
				return driver.Grant{}, silent(ctx)
			}
			return c.inner.Try(ctx)
		}
		p.renew = func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			if hangs(c) {
				return driver.Grant{}, silent(ctx)
			}
			return c.inner.Renew(ctx, ttl)
		}
		p.release = func(c *warpedClaim, ctx context.Context, how driver.End) error {
			for hangs(c) {
				if !repeats {
					return silent(ctx)
				}
			}
			return c.inner.Release(ctx, how)
		}
		h := p.harness(t)
		h.Forget = func(testing.TB, driver.Driver) {
			n, _ := p.recall("forgotten").(int)
			p.remember("forgotten", n+1)
		}
		return h
	}
}

func TestSoundConnectionsAreAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range locktest.Cases() {
		if c.Needs&locktest.NeedForget != 0 {
			if r := record(t, c, forgettable(1, true)(new(warp), t)); r.Failed() {
				t.Errorf("%s rejects it: %s", c.Name, r.text())
			}
		}
	}
}
