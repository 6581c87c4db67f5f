package locktest_test

import (
	"context"
	"errors"

	"github.com/leasehold-go/leasehold/driver"
)

// brokenWeights are drivers that get weights and limits wrong.
var brokenWeights = []breakage{
	{name: "weights are ignored", rejects: []string{
		"WeightsCount", "SmallestLimitCountsWeights", "HeavyHeadIsNotPassed", "HeavyWaiterFollowsTheLastThatMakesRoom", "WeightOfTheDeadIsFree",
		"WeightAboveTheLimitIsRefused", "InspectShowsWeights", "LimitMakesTooHeavy", "WeightsUnderLoad",
	}, warp: warp{request: func(q *driver.Request) { q.Weight = 0 }}},
	{name: "heavy claims have no place", rejects: []string{"HeavyHeadIsNotPassed"}, warp: warp{request: func(q *driver.Request) {
		q.Queue = q.Queue && q.Weight < 2
	}}},
	{name: "too heavy is busy", rejects: []string{"WeightAboveTheLimitIsRefused", "LimitMakesTooHeavy"}, warp: warp{try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		g, err := c.inner.Try(ctx)
		if errors.Is(err, driver.ErrTooHeavy) {
			err = &driver.Busy{}
		}
		return g, err
	}}},
	{name: "too heavy keeps a place", rejects: []string{"WeightAboveTheLimitIsRefused"}, warp: warp{try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		g, err := c.inner.Try(ctx)
		if errors.Is(err, driver.ErrTooHeavy) {
			req := c.asked
			req.Mode, req.Limit, req.Weight = driver.Exclusive, 0, 0
			c.as(req).Try(ctx)
		}
		return g, err
	}}},
	{name: "a limit is not kept", rejects: []string{
		"LimitOfAnOperatorCounts", "RaisedLimitAdmitsThoseWhoWait", "LimitOutlivesItsUsers", "LoweredLimitHoldsForThoseWhoWait", "LimitMakesTooHeavy", "InspectShowsTheLimit",
	}, warp: warp{limit: func(*warped, context.Context, string, int) error { return nil }}},
	{name: "a lower limit ends leases", rejects: []string{"LoweredLimitEndsNobody"}, warp: warp{limit: func(w *warped, ctx context.Context, resource string, limit int) error {
		st, _ := w.Driver.Inspect(ctx, resource)
		for _, h := range st.Holders[min(limit, len(st.Holders)):] {
			w.Driver.Evict(ctx, resource, h.Owner.Reveal(), "the limit was lowered")
		}
		return w.Driver.SetLimit(ctx, resource, limit)
	}}},
	{name: "who waits has the former limit", rejects: []string{"LoweredLimitHoldsForThoseWhoWait"}, warp: warp{limit: func(w *warped, ctx context.Context, resource string, limit int) error {
		if st, _ := w.Driver.Inspect(ctx, resource); len(st.Waiters) > 0 && limit < st.Limit {
			return nil
		}
		return w.Driver.SetLimit(ctx, resource, limit)
	}}},
	{name: "a limit goes with its users", rejects: []string{"LimitOutlivesItsUsers"}, warp: warp{release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
		err := c.inner.Release(ctx, how)
		if st, _ := c.Driver.Inspect(ctx, c.asked.Resource); len(st.Holders) == 0 {
			c.Driver.SetLimit(ctx, c.asked.Resource, 0)
		}
		return err
	}}},
	{name: "a limit is for all to see but counts for nobody", rejects: []string{"LimitOfAnOperatorCounts"}, warp: warp{
		limit: func(w *warped, _ context.Context, resource string, limit int) error {
			w.remember(resource, limit)
			return nil
		},
		inspect: func(st *driver.State) { st.Limit = 3 },
	}},
	{name: "a limit is not shown", rejects: []string{"InspectShowsTheLimit"}, warp: warp{inspect: func(st *driver.State) { st.Limit = 0 }}},
	{name: "a limit keeps a name in lists", rejects: []string{"InspectShowsTheLimit"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		all, next, err := w.Driver.List(ctx, prefix, after, limit)
		if st, _ := w.Driver.Inspect(ctx, prefix); st.Limit > 0 && len(all) == 0 {
			all = append(all, st)
		}
		return all, next, err
	}}},
	{name: "a limit stops exclusive claims", rejects: []string{"LimitLeavesExclusiveClaimsAlone"}, warp: warp{try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		if st, _ := c.Driver.Inspect(ctx, c.asked.Resource); c.asked.Mode == driver.Exclusive && st.Limit > 0 {
			return driver.Grant{}, &driver.Busy{}
		}
		return c.inner.Try(ctx)
	}}},
	{name: "a raised limit admits nobody", rejects: []string{"RaisedLimitAdmitsThoseWhoWait"}, warp: warp{limit: func(w *warped, ctx context.Context, resource string, limit int) error {
		if st, _ := w.Driver.Inspect(ctx, resource); limit > st.Limit && len(st.Waiters) > 0 {
			return nil
		}
		return w.Driver.SetLimit(ctx, resource, limit)
	}}},
}
