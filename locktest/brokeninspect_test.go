package locktest_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// brokenViews are wrong about what operators see and do.
var brokenViews = []breakage{
	{name: "Features change", rejects: []string{"FeaturesAreConstant"}, warp: func() warp {
		var n atomic.Int64
		return warp{features: func(f *driver.Features) { f.MinTTL += time.Duration(n.Add(1)) }}
	}()},
	{name: "what Features deny is served", rejects: []string{"LackingIsUnsupported"}, warp: warp{features: func(f *driver.Features) { f.Shared = false }}},
	{name: "what a claim can do is denied by Features", rejects: []string{"LackingIsUnsupported"}, warp: warp{features: func(f *driver.Features) { f.Lingers, f.Bars, f.Notes, f.Raises = false, false, false, false }}},
	{name: "notes that Features declare are refused", rejects: []string{"NoteIsReplaced"}, warp: warp{note: func(*warpedClaim, context.Context, string) error { return driver.ErrUnsupported }}},
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
	{name: "the TTL of the grant is shown for ever", rejects: []string{"InspectShowsTheLastTTL"}, warp: func() warp {
		var mu sync.Mutex
		seen := make(map[driver.Owner]time.Duration)
		return warp{inspect: func(st *driver.State) {
			mu.Lock()
			defer mu.Unlock()
			for i := range st.Holders {
				h := &st.Holders[i]
				if _, ok := seen[h.Owner]; !ok {
					seen[h.Owner] = h.TTL
				}
				h.TTL = seen[h.Owner]
			}
		}}
	}()},
	{name: "twice the TTL is shown", rejects: []string{"InspectShowsHolders"}, warp: warp{inspect: func(st *driver.State) {
		for i := range st.Holders {
			st.Holders[i].TTL += 10 * time.Minute
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
	{name: "Evict does not look at the owner", rejects: []string{"EvictEndsOneLease"}, warp: warp{evict: func(w *warped, ctx context.Context, resource, owner, reason string) error {
		st, err := w.Inspect(ctx, resource)
		if err != nil || len(st.Holders) == 0 {
			return driver.ErrLost
		}
		return w.Driver.Evict(ctx, resource, st.Holders[0].Owner.Reveal(), reason)
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
			err = w.Driver.Evict(ctx, resource, h.Owner.Reveal(), reason)
		}
		return err
	}}},
	{name: "Linger ends early", rejects: []string{"LingerHoldsForOthers", "AtLeast"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, how driver.End) error {
		how.Linger /= 2
		return c.inner.Release(ctx, how)
	}}},
	{name: "Linger ends late", rejects: []string{"AtLeast"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, how driver.End) error {
		how.Linger *= 2
		return c.inner.Release(ctx, how)
	}}},
	{name: "Linger is Release", rejects: []string{"LingerHoldsForOthers", "AtLeast", "AtLeastBeforeTheQueue"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, how driver.End) error {
		how.Linger = 0
		return c.inner.Release(ctx, how)
	}}},
	{name: "Linger keeps the owner", rejects: []string{"LingerHoldsForOthers"}, warp: warp{linger: func(c *warpedClaim, ctx context.Context, how driver.End) error {
		_, err := c.inner.Renew(ctx, how.Linger)
		return err
	}}},
	{name: "Release ends what another claim of the owner left to linger", rejects: []string{"LingerBesideAnotherClaim", "LingerBesideAnotherProcess"}, warp: warp{
		linger: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			c.remember(c.asked.Owner, c)
			return c.inner.Release(ctx, how)
		},
		release: func(c *warpedClaim, ctx context.Context, how driver.End) error {
			err := c.inner.Release(ctx, how)
			if by := c.recall(c.asked.Owner); by != nil && by != c {
				c.Driver.Evict(ctx, c.asked.Resource, "", "")
			}
			return err
		},
	}},
	{name: "Note changes nothing", rejects: []string{"NoteIsReplaced"}, warp: warp{note: func(c *warpedClaim, ctx context.Context, _ string) error {
		_, err := c.inner.Renew(ctx, time.Minute)
		return err
	}}},
	{name: "Note without a hold is no error", rejects: []string{"NoteIsReplaced"}, warp: warp{note: func(c *warpedClaim, ctx context.Context, note string) error {
		_ = c.inner.Note(ctx, note)
		return nil
	}}},
}
