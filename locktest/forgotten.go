package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// forgottenCases are about connections that a firewall no longer knows.
var forgottenCases = []Case{
	{Name: "ForgottenConnectionsCostNoLease", Needs: NeedForget, Alone: true, Run: forgottenConnectionsCostNoLease},
	{Name: "ForgottenConnectionsDelayNoRelease", Needs: NeedForget, Alone: true, Run: forgottenConnectionsDelayNoRelease},
}

// pooled is the number of concurrent calls. A pool then has as many connections, and all are
// forgotten.
const pooled = 4

// attemptOf is how long the core waits for the first renewal of a lease with the default TTL of 10
// s. The second renewal must succeed.
const attemptOf = 3300 * time.Millisecond

// releaseOf is how long the core waits for a release.
const releaseOf = 5 * time.Second

// pauseBetween is the pause of the core before the second renewal.
const pauseBetween = 800 * time.Millisecond

// forgottenConnectionsCostNoLease: if a call gets no answer over one connection, the second attempt
// uses a new one.
func forgottenConnectionsCostNoLease(t testing.TB, h Harness) {
	d := open(t, h)
	base := newName(t)
	var all []*contender
	for i := range pooled {
		all = append(all, contend(t, d, request(fmt.Sprint(base, "-", i))))
	}
	twice := func(what string, call func(c *contender, ctx context.Context) error) {
		errs := make([]error, len(all))
		var calls sync.WaitGroup
		for i, c := range all {
			calls.Go(func() {
				for range 2 {
					ctx, cancel := context.WithTimeoutCause(context.Background(), attemptOf, errElsewhere)
					errs[i] = call(c, ctx)
					cancel()
					if errs[i] == nil {
						return
					}
					time.Sleep(pauseBetween)
				}
			})
		}
		calls.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("%s of %s: %v after two attempts", what, all[i].req.Resource, err)
			}
		}
	}
	twice("Try", (*contender).tryOnce)
	h.Forget(t, d)
	twice("Renew", func(c *contender, ctx context.Context) error {
		_, err := c.claim.Renew(ctx, longTTL)
		return err
	})
	h.Forget(t, d)
	twice("Try", (*contender).tryOnce) // for a holder, Try restarts the lease
	h.Forget(t, d)
	err := within(t, "Release", attemptOf, all[0].releaseOnce)
	if err != nil && !errors.Is(err, driver.ErrLost) { // the outcome is unknown, so it may be called again
		if err = within(t, "Release", attemptOf, all[0].releaseOnce); errors.Is(err, driver.ErrLost) {
			err = nil // the first attempt has released it
		}
	}
	if err != nil {
		t.Errorf("Release: %v after two attempts", err)
	}
}

// forgottenConnectionsDelayNoRelease: a release that vanished is repeated over another connection,
// within the time of one call. The holder makes no other call. So without the repetition waiters
// would wait for the TTL.
func forgottenConnectionsDelayNoRelease(t testing.TB, h Harness) {
	d := open(t, h)
	base := newName(t)
	var all []*contender
	for i := range pooled {
		all = append(all, holding(t, d, request(fmt.Sprint(base, "-", i))))
	}
	for _, c := range all {
		c.renewed(longTTL) // because pools test connections that were idle
	}
	h.Forget(t, d)
	var calls sync.WaitGroup
	for _, c := range all {
		calls.Go(func() {
			ctx, cancel := context.WithTimeoutCause(context.Background(), releaseOf, errElsewhere)
			defer cancel()
			if err := c.releaseOnce(ctx); errors.Is(err, driver.ErrLost) {
				t.Errorf("Release of %s: %v, but it was held", c.req.Resource, err)
			}
		})
	}
	calls.Wait()
	next := open(t, h)
	for _, c := range all {
		contend(t, next, queued(request(c.req.Resource))).wins(Margin, "it was released over another connection")
	}
}
