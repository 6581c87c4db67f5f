package locktest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// A batching driver renews as renewAll does.
type batching struct {
	*warped
	renewAll func(ctx context.Context, all []driver.Renewal)
}

// RenewAll implements driver.BatchRenewer.
func (b batching) RenewAll(ctx context.Context, all []driver.Renewal) { b.renewAll(ctx, all) }

func renewOne(ctx context.Context, r *driver.Renewal) {
	if err := ctx.Err(); err != nil {
		r.Answer(driver.Grant{}, err)
	} else {
		r.Answer(r.Claim.Renew(ctx, r.TTL))
	}
}

// renewAtOnce is as it should be.
func renewAtOnce(ctx context.Context, all []driver.Renewal) {
	var calls sync.WaitGroup
	for i := range all {
		calls.Go(func() { renewOne(ctx, &all[i]) })
	}
	calls.Wait()
}

// renewWhole tells of none before all have ended.
func renewWhole(ctx context.Context, all []driver.Renewal) {
	var calls sync.WaitGroup
	for i := range all {
		calls.Go(func() { all[i].Grant, all[i].Err = all[i].Claim.Renew(ctx, all[i].TTL) })
	}
	calls.Wait()
}

// hangable is a harness with one resource whose renewals can hang.
func hangable(renewAll func(ctx context.Context, all []driver.Renewal)) func(p *warp, t testing.TB) locktest.Harness {
	return func(p *warp, t testing.TB) locktest.Harness {
		p.renew = func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			if c.recall("hangs") == c.asked.Resource {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
			return c.inner.Renew(ctx, ttl)
		}
		h := p.harness(t)
		open := h.Open
		h.Open = func(t testing.TB) driver.Driver { return batching{open(t).(*warped), renewAll} }
		h.Hang = func(_ testing.TB, name string) (func(string) bool, func()) {
			p.remember("hangs", name)
			return nil, func() { p.remember("hangs", "") }
		}
		return h
	}
}

// Not beside the many cases of the broken drivers: these leases are to live.
func TestSoundBatchesAreAccepted(t *testing.T) {
	for _, c := range locktest.Cases() {
		if c.Needs&(locktest.NeedHang|locktest.NeedBatchRenewer) != 0 {
			if r := record(t, c, hangable(renewAtOnce)(new(warp), t)); r.Failed() {
				t.Errorf("%s rejects it: %s", c.Name, r.text())
			}
		}
	}
}
