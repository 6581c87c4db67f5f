package locktest_test

import (
	"context"

	"github.com/leasehold-go/leasehold/driver"
)

// brokenTogether are wrong where they make the calls of several claims at once.
var brokenTogether = []breakage{
	{name: "a batch grants some and says all", rejects: []string{"TogetherAsOneByOne"}, warp: warp{
		tries: func(w *warped, ctx context.Context, trials []driver.Trial) {
			w.Driver.TryAll(ctx, trials[:1])
			for i := range trials[1:] {
				trials[i+1].Grant, trials[i+1].Err = trials[0].Grant, trials[0].Err
			}
		},
	}},
	{name: "a batch is granted whole or not at all", rejects: []string{"TogetherAsOneByOne"}, warp: warp{
		tries: func(w *warped, ctx context.Context, trials []driver.Trial) {
			w.Driver.TryAll(ctx, trials)
			for _, t := range trials {
				if t.Err != nil {
					for i := range trials {
						_ = trials[i].Claim.Release(ctx, driver.End{})
						trials[i].Grant, trials[i].Err = driver.Grant{}, t.Err
					}
					return
				}
			}
		},
	}},
	{name: "a batch loses the token of its last", rejects: []string{"TogetherAsOneByOne"}, warp: warp{
		tries: func(w *warped, ctx context.Context, trials []driver.Trial) {
			w.Driver.TryAll(ctx, trials)
			for i := range trials {
				if trials[i].Err == nil && i > 0 {
					trials[i].Grant.Fence = trials[0].Grant.Fence
				}
			}
		},
	}},
	{name: "a batch releases its first and says all", rejects: []string{"TogetherAsOneByOne", "TogetherWithoutAnswer"}, warp: warp{
		releases: func(w *warped, ctx context.Context, endings []driver.Ending) {
			w.Driver.ReleaseAll(ctx, endings[:1])
			for i := range endings[1:] {
				endings[i+1].Err = endings[0].Err
			}
		},
	}},
	{name: "a batch leaves nothing behind that lingers", rejects: []string{"TogetherAsOneByOne"}, warp: warp{
		releases: func(w *warped, ctx context.Context, endings []driver.Ending) {
			for i := range endings {
				endings[i].How.Linger = 0
			}
			w.Driver.ReleaseAll(ctx, endings)
		},
	}},
	{name: "a batch bars no owner", rejects: []string{"TogetherAsOneByOne"}, warp: warp{
		releases: func(w *warped, ctx context.Context, endings []driver.Ending) {
			for i := range endings {
				endings[i].How.Bar = 0
			}
			w.Driver.ReleaseAll(ctx, endings)
		},
	}},
	{name: "all of a batch end like its first", rejects: []string{"TogetherAsOneByOne"}, warp: warp{
		releases: func(w *warped, ctx context.Context, endings []driver.Ending) {
			for i := range endings {
				endings[i].How = endings[0].How
			}
			w.Driver.ReleaseAll(ctx, endings)
		},
	}},
	{name: "what a batch had no answer for is not given back", rejects: []string{"TogetherWithoutAnswer"}, warp: warp{
		tries: func(w *warped, ctx context.Context, trials []driver.Trial) {
			w.Driver.TryAll(context.WithoutCancel(ctx), trials)
			for i := range trials {
				if ctx.Err() != nil {
					trials[i].Grant, trials[i].Err = driver.Grant{}, ctx.Err()
					w.remember(trials[i].Claim.(*warpedClaim).asked.Owner, true)
				}
			}
		},
		releases: func(w *warped, ctx context.Context, endings []driver.Ending) {
			for i := range endings {
				if w.recall(endings[i].Claim.(*warpedClaim).asked.Owner) == nil {
					w.Driver.ReleaseAll(ctx, endings[i:i+1])
				}
			}
		},
	}},
	{name: "a batch after Close is answered as before", rejects: []string{"CallsAfterCloseAreRefused"}, warp: warp{
		releases: func(w *warped, ctx context.Context, endings []driver.Ending) {
			w.Driver.ReleaseAll(ctx, endings)
			for i := range endings {
				endings[i].Err = nil
			}
		},
	}},
}
