package caslock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/several"
)

// maxRenewals is how many records one RenewAll writes at once. Writes that hang do not count.
const maxRenewals = 32

// slow is when a write counts as hanging. A healthy object store or API server answers far sooner.
const slow = time.Second

// RenewAll implements [driver.BatchRenewer]. It renews the leases of one resource by one write, and
// several resources concurrently. Only leases with the same uncertain write, or with none, are
// renewed together.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	type group struct {
		name string
		open uncertain
	}
	groups := make(map[group][]*driver.Renewal, len(renewals))
	for i := range renewals {
		c := renewals[i].Claim.(*claim)
		of := group{name: c.req.Resource}
		if c.open.open {
			of.open = c.open
		}
		groups[of] = append(groups[of], &renewals[i])
	}
	all := slices.Collect(maps.Keys(groups))
	several.Each(ctx, len(all), maxRenewals, slow, func(i int) { d.renewTogether(ctx, all[i].name, all[i].open, groups[all[i]]) })
}

// renewTogether renews leases of one resource. before is their last write without an answer.
func (d *Driver) renewTogether(ctx context.Context, name string, before uncertain, some []*driver.Renewal) {
	lost := make([]error, len(some))
	since, marked := make([]uint64, len(some)), uint64(0)
	for i, one := range some {
		since[i] = one.Claim.(*claim).hears()
	}
	found := false
	r, err := d.change(ctx, name, &before, func(v *view) bool {
		marked = d.marks(v)
		write := v.dropped // as in lease
		for i, one := range some {
			c := one.Claim.(*claim)
			_, lost[i] = v.Renew(&v.clock, c.req.Owner, one.TTL)
			found, write = found || lost[i] == nil, write || c.had(v)
		}
		return found || write
	})
	for i, one := range some {
		c := one.Claim.(*claim)
		c.open, c.gave = before, nil
		failed := cmp.Or(err, lost[i])
		c.recordOutcome(failed)
		c.gone = c.gone && errors.Is(failed, driver.ErrLost)
		if failed != nil {
			one.Answer(driver.Grant{}, failed)
		} else {
			c.heed(since[i], nil, marked)
			one.Answer(grantOf(r, c.req.Owner, one.TTL))
		}
	}
}
