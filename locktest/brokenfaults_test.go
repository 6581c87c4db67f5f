package locktest_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// brokenFaults are wrong when messages are lost or calls hang, about processes and what they use.
var brokenFaults = []breakage{
	// Faults.
	{name: "calls do not end with their context", rejects: []string{"CallsEndWithTheirContext"}, harness: pausable(false)},
	{name: "calls of a paused engine say busy", rejects: []string{"CallsEndWithTheirContext"}, harness: pausable(true)},
	{name: "calls end late", rejects: []string{"CallsEndWithTheirContext"}, harness: pausedFor(locktest.Margin / 3)},
	{name: "an attempt is made after its caller gave up", rejects: []string{"LateCallsHaveNoEffect"}, harness: servesLate(false)},
	{name: "a renewal is made after its caller gave up", rejects: []string{"LateCallsHaveNoEffect"}, harness: servesLate(true)},
	{name: "the cause of a context is the answer", rejects: []string{"CauseOfAContextIsNoAnswer"}, warp: warp{
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			if ctx.Err() != nil {
				return driver.Grant{}, context.Cause(ctx)
			}
			return c.inner.Renew(ctx, ttl)
		},
	}},
	{name: "what a context's cause calls lost is forgotten", rejects: []string{"CauseOfAContextIsNoAnswer"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			if c.recall(c.asked.Owner) != nil {
				return driver.ErrLost
			}
			if errors.Is(context.Cause(ctx), driver.ErrLost) {
				c.remember(c.asked.Owner, true)
				return ctx.Err()
			}
			return c.inner.Release(ctx, how)
		},
	}},
	{name: "leases outlive a pause for ever", rejects: []string{"HolderEndsWhileTheEngineIsPaused"}, harness: (*warp).remotely,
		warp: scaled(func(time.Duration) time.Duration { return time.Hour })},
	{name: "a restart loses the state", rejects: []string{"RestartKeepsLeases", "LimitAfterRestart"}, harness: func(p *warp, t testing.TB) locktest.Harness {
		h := p.harness(t)
		h.Restart = h.FlushState
		return h
	}},

	// Connections that are forgotten.
	{name: "calls go on over a dead connection", rejects: []string{"ForgottenConnectionsCostNoLease"}, harness: forgettable(1<<10, true)},
	{name: "a pool tries one dead connection after the other", rejects: []string{"ForgottenConnectionsCostNoLease"}, harness: forgettable(3, true)},
	{name: "a release that vanished is not made again", rejects: []string{"ForgottenConnectionsDelayNoRelease"}, harness: forgettable(1, false)},

	// One resource that hangs.
	{name: "a batch is renewed one after the other", rejects: []string{"BatchIsRenewedBesideOneThatHangs", "OneThatHangsCostsOthersNoTime"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			for i := range all {
				renewOne(ctx, &all[i])
			}
		})},
	{name: "a batch fails whole", rejects: []string{"BatchIsRenewedBesideOneThatHangs", "OneThatHangsCostsOthersNoTime"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			renewWhole(ctx, all)
			for i := range all {
				for _, other := range all {
					all[i].Err = cmp.Or(all[i].Err, other.Err)
				}
			}
		})},
	{name: "a batch is answered whole", rejects: []string{"BatchIsRenewedBesideOneThatHangs"},
		harness: hangable(renewWhole)},
	{name: "what hangs in a batch is lost", rejects: []string{"BatchIsRenewedBesideOneThatHangs"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			renewWhole(ctx, all)
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

	// Batches in which nothing hangs.
	{name: "a batch renews its first and says yes to all that hold", rejects: []string{"BatchRenewsAsOneByOne"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			renewOne(ctx, &all[0])
			for i := range all[1:] {
				r := &all[i+1]
				c := r.Claim.(*warpedClaim)
				st, _ := c.Inspect(ctx, c.asked.Resource) // nobody, then
				if len(st.Holders) == 0 {
					r.Answer(driver.Grant{}, driver.ErrLost)
				} else {
					r.Answer(driver.Grant{TTL: r.TTL, Fence: st.Holders[0].Fence}, nil)
				}
			}
		})},
	{name: "a batch says yes to what is lost", rejects: []string{"BatchRenewsAsOneByOne"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			renewWhole(ctx, all)
			for i := range all {
				if errors.Is(all[i].Err, driver.ErrLost) {
					all[i].Grant, all[i].Err = driver.Grant{TTL: all[i].TTL, Fence: driver.FenceStep}, nil
				}
			}
		})},
	{name: "a batch gives each the TTL of another", rejects: []string{"BatchRenewsAsOneByOne"},
		harness: hangable(func(ctx context.Context, all []driver.Renewal) {
			for i := range all {
				g, err := all[i].Claim.Renew(ctx, all[len(all)-1-i].TTL)
				g.TTL = all[i].TTL
				all[i].Answer(g, err)
			}
		})},

	// Processes.
	{name: "leases of the dead end too soon", rejects: []string{"KilledHolderFreesWithinTheTTL"}, harness: (*warp).remotely,
		warp: scaled(func(d time.Duration) time.Duration { return d/2 + d/10 })},
	{name: "leases of the dead never end", rejects: []string{"KilledHolderFreesWithinTheTTL", "KilledLeaderIsFollowed", "StormOfKills"}, harness: (*warp).remotely,
		warp: scaled(func(time.Duration) time.Duration { return time.Hour })},
	{name: "a holder is told that it has longer than it has", rejects: []string{"StoppedHolderEndsWhenItResumes"}, harness: (*warp).remotely,
		warp: granting(func(g *driver.Grant) { g.TTL += g.TTL / 2 })},
	{name: "processes that released still hold", rejects: []string{"ProcessThatReleasedFreesAtOnce"}, harness: (*warp).remotely,
		warp: warp{release: func(*warpedClaim, context.Context, driver.End) error { return nil }}},
	{name: "every process is granted", rejects: []string{"EveryProcessIsServed", "StormOfKills"}, harness: (*warp).remotely, warp: warp{try: alone}},

	// Resources.
	{name: "Close does nothing", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{close: func(*warped) error { return nil }}},
	{name: "Close ends leases", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		request: func(q *driver.Request) { q.Lost = nil },
		close: func(w *warped) error {
			states, _, _ := w.Driver.List(context.Background(), "", "", 100)
			for _, st := range states {
				for _, h := range st.Holders {
					w.Driver.Evict(context.Background(), st.Resource, h.Owner.Reveal(), "")
				}
			}
			return w.Driver.Close()
		},
	}},
	{name: "Close ends a session without a word", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		features: func(f *driver.Features) { f.SessionTTL = 30 * time.Second },
	}},
	{name: "what a driver that was closed held is released", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			if err := c.inner.Release(ctx, how); !errors.Is(err, driver.ErrClosed) {
				return err
			}
			return nil
		},
	}},
	{name: "calls after Close are slow", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if errors.Is(err, driver.ErrClosed) {
				time.Sleep(locktest.Margin / 3)
			}
			return g, err
		},
	}},
	{name: "a goroutine stays after Close", rejects: []string{"NoGoroutineAfterClose"}, warp: warp{open: func(*warped) { go time.Sleep(6 * locktest.Margin) }}},
	{name: "a goroutine for each claim", rejects: []string{"ManyLeasesFewGoroutines"}, warp: warp{claim: func(*warped, *driver.Request) { go time.Sleep(6 * locktest.Margin) }}},
}
