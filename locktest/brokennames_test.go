package locktest_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// brokenNames are wrong about who is alone on which name.
var brokenNames = []breakage{
	// Names.
	{name: "names are folded to lower case", rejects: []string{"NamesAreDistinct"}, warp: renaming(strings.ToLower)},
	{name: "names are trimmed", rejects: []string{"NamesAreDistinct"}, warp: renaming(strings.TrimSpace)},
	{name: "names are paths", rejects: []string{"NamesAreDistinct"}, warp: renaming(path.Clean)},
	{name: "names are cut at 255 bytes", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return s[:min(len(s), 255)] })},
	{name: "names are normalised", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.ReplaceAll(s, "e\u0301", "é") })},
	{name: "names are decoded", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.ReplaceAll(s, "%2F", "/") })},
	{name: "names are hash tags", rejects: []string{"NamesAreDistinct"}, warp: renaming(hashTag)},
	{name: "names end where a companion begins", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.TrimSuffix(s, ":fence") })},
	{name: "the last part of a name is dropped", rejects: []string{"NamesAreDistinct"}, warp: renaming(func(s string) string { return strings.TrimSuffix(s, "/x") })},

	// Exclusion.
	{name: "everybody is granted", rejects: mutex("OneHolder", "OneOfManyWins", "TryNeverWaits", "OwnersAreComparedWhole"), warp: warp{try: alone}},
	{name: "everybody is granted at last", rejects: []string{"EveryWaiterIsServed", "TokensGrow"}, warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			g, err := c.inner.Try(ctx)
			if _, refused := errors.AsType[*driver.Busy](err); refused && c.remember("refused", true) != nil {
				return alone(c, ctx)
			}
			return g, err
		},
	}},
	{name: "check, then act", rejects: mutex("OneOfManyWins"), warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if st, err := c.Inspect(ctx, c.asked.Resource); err != nil || len(st.Holders) > 0 {
				return c.inner.Try(ctx)
			}
			time.Sleep(time.Millisecond)
			return alone(c, ctx)
		},
	}},
	{name: "Try waits for the holder", rejects: mutex("TryNeverWaits"), warp: warp{try: tryFor(3 * locktest.Margin)}},
	{name: "Try waits for the holder for a while", rejects: []string{"WaitIsBounded"}, warp: warp{try: tryFor(locktest.Margin / 2)}},
	{name: "busy by itself", rejects: append(mutex("TryIsRepeatable"), "ReplyLostOnTry", "ReplyLostWhileWaiting", "TryRestartsTheTTL"), warp: warp{
		try: func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
			if c.holds(ctx) {
				return driver.Grant{}, &driver.Busy{}
			}
			return c.inner.Try(ctx)
		},
	}},
	{name: "owners are compared by their beginning", rejects: mutex("OwnersAreComparedWhole"), warp: warp{
		request: func(q *driver.Request) { q.Owner = q.Owner[:min(len(q.Owner), 12)] },
	}},
	{name: "owners are compared without case", rejects: mutex("OwnersAreComparedWhole"), warp: warp{
		request: func(q *driver.Request) { q.Owner = strings.ToLower(q.Owner) },
	}},
	{name: "Release does nothing", rejects: append(mutex("LockRightAfterUnlock", "OneHolder"),
		"ReleaseOnCancelledContext", "ReplyLostOnRelease", "NestedHoldsShareTheToken", "SharerReleasesAlone", "WaiterFollowsRelease", "RenewalOutlivesTheTTL"), warp: warp{
		release: func(*warpedClaim, context.Context, driver.End) error { return nil },
	}},
	{name: "Release comes late", rejects: append(mutex("LockRightAfterUnlock"), "ReleaseOnCancelledContext"), warp: warp{
		release: func(c *warpedClaim, _ context.Context, how driver.End) error {
			time.AfterFunc(100*time.Millisecond, func() { c.inner.Release(context.Background(), how) })
			return nil
		},
	}},
}

// tryFor is a Try that waits so long for the holder, whatever its context says.
func tryFor(long time.Duration) func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
	return func(c *warpedClaim, ctx context.Context) (driver.Grant, error) {
		for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
			g, err := c.inner.Try(context.WithoutCancel(ctx))
			if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
				return g, err
			}
		}
	}
}
