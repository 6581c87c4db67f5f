package locktest_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// brokenRecalls are drivers that tell holders wrongly that others wait.
var brokenRecalls = []breakage{
	{name: "nobody is wanted", rejects: []string{
		"HolderIsWanted", "WantedByThoseWhoWaitAlready", "OneCallUntilARenewal", "RenewalTellsOfOthers", "BatchTellsOfOthers", "SharersAreWanted", "ResumedHolderIsWanted",
	}, warp: warp{request: func(q *driver.Request) { q.Wanted = nil }}},
	{name: "a holder is wanted once", rejects: []string{"HolderIsWanted", "OneCallUntilARenewal", "RenewalTellsOfOthers"}, warp: warp{request: func(q *driver.Request) {
		if q.Wanted != nil {
			q.Wanted = sync.OnceFunc(q.Wanted)
		}
	}}},
	{name: "one call is all that a lease gets", rejects: []string{"OneCallUntilARenewal"}, warp: warp{request: func(q *driver.Request) {
		if q.WantedOnce {
			q.Wanted = sync.OnceFunc(q.Wanted)
		}
	}}},
	{name: "the grant tells of nobody", rejects: []string{"WantedByThoseWhoWaitAlready", "OneCallUntilARenewal"}, warp: warp{
		claim: deafDuring("try"),
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			c.remember("try"+c.asked.Owner, true)
			defer c.remember("try"+c.asked.Owner, false)
			return c.inner.Try(ctx)
		},
	}},
	{name: "renewals tell of nobody", rejects: []string{"RenewalTellsOfOthers", "BatchTellsOfOthers"}, warp: warp{
		claim: deafDuring("renew"),
		renew: func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			c.remember("renew"+c.asked.Owner, true)
			defer c.remember("renew"+c.asked.Owner, false)
			return c.inner.Renew(ctx, ttl)
		},
	}},
	{name: "one sharer is wanted", rejects: []string{"SharersAreWanted"}, warp: warp{claim: func(w *warped, q *driver.Request) {
		if q.Wanted != nil && w.remember("first"+q.Resource, true) != nil {
			q.Wanted = nil
		}
	}}},
	{name: "who passes by makes a holder wanted", rejects: []string{"NotWantedWithoutAPlace"}, warp: calling(func(asked driver.Request) bool { return !asked.Queue })},
	{name: "who queues itself is wanted", rejects: []string{"NotWantedWithoutAPlace"}, warp: warp{try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		g, err := c.inner.Try(ctx)
		if errors.Is(err, driver.ErrBusy) && c.asked.Wanted != nil {
			c.asked.Wanted()
		}
		return g, err
	}}},
	{name: "a former holder is wanted", rejects: []string{"NotWantedAfterTheEnd"}, warp: calling(func(asked driver.Request) bool { return asked.Queue })},
}

// deafDuring lets a claim be told of nothing while it makes such a call.
func deafDuring(call string) func(w *warped, q *driver.Request) {
	return func(w *warped, q *driver.Request) {
		if wanted, owner := q.Wanted, q.Owner; wanted != nil {
			q.Wanted = func() {
				if w.recall(call+owner) != true {
					wanted()
				}
			}
		}
	}
}

// calling calls Wanted of the first claim for a resource that has one, whenever somebody is refused as chosen.
func calling(chosen func(asked driver.Request) bool) warp {
	return warp{
		claim: func(w *warped, q *driver.Request) {
			if q.Wanted != nil && w.recall(q.Resource) == nil {
				w.remember(q.Resource, *q)
			}
		},
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			holds, _ := c.recall(c.asked.Resource).(driver.Request)
			if errors.Is(err, driver.ErrBusy) && holds.Wanted != nil && holds.Owner != c.asked.Owner && chosen(c.asked) {
				holds.Wanted()
			}
			return g, err
		},
	}
}
