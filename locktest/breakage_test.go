package locktest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// mutex names cases that exist for exclusive leases and for the only one of a limit of 1.
func mutex(names ...string) (both []string) {
	for _, name := range names {
		both = append(both, name, "LimitOne"+name)
	}
	return both
}

// holds reports whether the engine has a lease of c's owner.
func (c *warpedClaim) holds(ctx context.Context) bool {
	st, _ := c.Inspect(ctx, c.asked.Resource) // nobody, then
	return slices.ContainsFunc(st.Holders, func(h driver.Holder) bool { return h.Owner.Reveal() == c.asked.Owner })
}

// alone asks for a resource that nobody else asks for.
func alone(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
	q := c.asked
	q.Resource += q.Owner
	return c.as(q).Try(ctx)
}

func renaming(name func(string) string) warp {
	return warp{request: func(q *driver.Request) { q.Resource = name(q.Resource) }}
}

// hashTag is what a Redis cluster looks at.
func hashTag(s string) string {
	if i := strings.Index(s, "{"); i >= 0 {
		if j := strings.Index(s[i:], "}"); j > 1 {
			return s[i+1 : i+j]
		}
	}
	return s
}

// scaled gives leases another length than it says.
func scaled(ttl func(time.Duration) time.Duration) warp {
	return warp{
		request: func(q *driver.Request) { q.TTL = ttl(q.TTL) },
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			g.TTL = c.asked.TTL
			return g, err
		},
		renew: func(c *warpedClaim, ctx context.Context, asked time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl(asked))
			g.TTL = asked
			return g, err
		},
	}
}

// granting changes what the caller is told of its grant.
func granting(change func(g *driver.Grant)) warp {
	return warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			change(&g)
			return g, err
		},
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl)
			change(&g)
			return g, err
		},
	}
}

// raisingGrants gives the fence of the last RaiseFence to whoever holds something.
func raisingGrants() warp {
	var raised atomic.Uint64
	w := granting(func(g *driver.Grant) { g.Fence = max(g.Fence, raised.Load()) })
	w.raise = func(w *warped, fence uint64) error {
		raised.Store(fence)
		return w.Driver.RaiseFence(context.Background(), "", fence)
	}
	return w
}

// refusing changes what the caller is told of who is in the way.
func refusing(change func(c *warpedClaim, b *driver.Busy)) warp {
	return warp{try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		g, err := c.inner.Try(ctx)
		if busy, ok := errors.AsType[*driver.Busy](err); ok {
			change(c, busy)
		}
		return g, err
	}}
}

// counting gives fences of its own: of each new grant, knowing the last one of the
// resource and whether that was released.
func counting(next func(c *warpedClaim, released bool, last uint64) uint64) warp {
	return warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			held := c.holds(ctx)
			g, err := c.inner.Try(ctx)
			if err == nil && !held {
				last, _ := c.recall(c.asked.Resource).(uint64)
				released, _ := c.remember("released "+c.asked.Resource, false).(bool)
				c.remember(c.asked.Resource, driver.FenceOf(next(c, released, driver.NumberOf(last))))
			}
			g.Fence, _ = c.recall(c.asked.Resource).(uint64)
			return g, err
		},
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.inner.Renew(ctx, ttl)
			g.Fence, _ = c.recall(c.asked.Resource).(uint64)
			return g, err
		},
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			c.remember("released "+c.asked.Resource, true)
			return c.inner.Release(ctx, how)
		},
	}
}

// later is a channel that closes d after ch does.
func later(ch <-chan struct{}, d time.Duration) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		<-ch
		time.Sleep(d)
		close(out)
	}()
	return out
}

// broadcast wakes everybody at each Release that comes after it was armed: late, after
// the engine has answered, or before.
func broadcast(late bool) func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
	return func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		wake := make(chan struct{})
		arm := func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			armed, _ := c.all[c.asked.Resource].([]chan struct{})
			c.all[c.asked.Resource] = append(armed, wake)
		}
		if !late {
			arm()
		}
		g, err := c.inner.Try(ctx)
		if late {
			time.Sleep(time.Millisecond)
			arm()
		}
		if busy, ok := errors.AsType[*driver.Busy](err); ok {
			busy.Wake = wake
		}
		return g, err
	}
}

// pushedFor delivers grants with their Wakes, for so many times the TTL of the lease.
func pushedFor(times time.Duration) func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
	return func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		g, err := c.inner.Try(ctx)
		if busy, ok := errors.AsType[*driver.Busy](err); ok && c.asked.Queue {
			inner, wake, granted := busy.Wake, make(chan struct{}), make(chan driver.Grant, 1)
			busy.Wake, busy.Granted = wake, granted
			go func() {
				<-inner
				if g, err := c.inner.Try(context.Background()); err == nil {
					g.TTL *= times
					granted <- g
				}
				close(wake)
			}()
		}
		return g, err
	}
}

func wakeAll(c *warpedClaim, ctx context.Context, how driver.End) error {
	err := c.inner.Release(ctx, how)
	armed, _ := c.remember(c.asked.Resource, nil).([]chan struct{})
	for _, wake := range armed {
		close(wake)
	}
	return err
}

// pausable is a harness whose engine, while it is paused, hangs for longer than its
// callers' contexts, or refuses.
func pausable(refuses bool) func(p *warp, t testing.TB) locktest.Harness {
	return func(p *warp, t testing.TB) locktest.Harness {
		var paused atomic.Bool
		*p = warp{
			try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
				if paused.Load() && refuses {
					return driver.Grant{}, &driver.Busy{}
				}
				for paused.Load() {
					time.Sleep(time.Millisecond)
				}
				return c.inner.Try(ctx)
			},
		}
		h := p.harness(t)
		h.Pause = func(testing.TB) func() {
			paused.Store(true)
			return func() { paused.Store(false) }
		}
		return h
	}
}

// pausedFor is a harness whose engine, while it is paused, has calls end so much later than their
// contexts.
func pausedFor(late time.Duration) func(p *warp, t testing.TB) locktest.Harness {
	return func(p *warp, t testing.TB) locktest.Harness {
		var paused atomic.Bool
		hold := func(ctx context.Context) error {
			if paused.Load() {
				<-ctx.Done()
				time.Sleep(late)
			}
			return ctx.Err()
		}
		*p = warp{
			try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
				if err := hold(ctx); err != nil {
					return driver.Grant{}, err
				}
				return c.inner.Try(ctx)
			},
			renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
				if err := hold(ctx); err != nil {
					return driver.Grant{}, err
				}
				return c.inner.Renew(ctx, ttl)
			},
			release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
				if err := hold(ctx); err != nil {
					return err
				}
				return c.inner.Release(ctx, how)
			},
		}
		h := p.harness(t)
		h.Pause = func(testing.TB) func() {
			paused.Store(true)
			return func() { paused.Store(false) }
		}
		return h
	}
}

// servesLate is a harness whose engine, while it is paused, keeps attempts, or renewals, until a
// while after the pause, although their callers have given them up.
func servesLate(renewals bool) func(p *warp, t testing.TB) locktest.Harness {
	return func(p *warp, t testing.TB) locktest.Harness {
		var paused atomic.Bool
		kept := func(ctx context.Context, kept bool, call func(ctx context.Context)) bool {
			if !paused.Load() {
				return false
			}
			if kept {
				go func() {
					for paused.Load() {
						time.Sleep(time.Millisecond)
					}
					time.Sleep(locktest.Margin / 16)
					call(context.WithoutCancel(ctx))
				}()
			}
			<-ctx.Done()
			return true
		}
		*p = warp{
			try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
				if kept(ctx, !renewals, func(ctx context.Context) { c.inner.Try(ctx) }) {
					return driver.Grant{}, ctx.Err()
				}
				return c.inner.Try(ctx)
			},
			renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
				if kept(ctx, renewals, func(ctx context.Context) { c.inner.Renew(ctx, ttl) }) {
					return driver.Grant{}, ctx.Err()
				}
				return c.inner.Renew(ctx, ttl)
			},
		}
		h := p.harness(t)
		h.Pause = func(testing.TB) func() {
			paused.Store(true)
			return func() { paused.Store(false) }
		}
		return h
	}
}
