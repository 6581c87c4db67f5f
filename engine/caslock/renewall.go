package caslock

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// maxRenewals is how many records one RenewAll writes at once, unless they hang.
const maxRenewals = 32

// RenewAll implements [driver.BatchRenewer]: the leases of one resource by one write, those of
// several at once.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	byName := make(map[string][]*driver.Renewal, len(renewals))
	for i := range renewals {
		name := renewals[i].Claim.(*claim).req.Resource
		byName[name] = append(byName[name], &renewals[i])
	}
	patience := time.Duration(math.MaxInt64)
	if end, ok := ctx.Deadline(); ok { // so that all are asked for before half of the time is over
		patience = time.Until(end) / 2 / time.Duration(max(len(byName), 1))
	}
	var all sync.WaitGroup
	room := make(chan struct{}, maxRenewals)
	for name, some := range byName {
		leave := enter(room, patience)
		all.Go(func() {
			defer leave()
			d.renew(ctx, name, some)
		})
	}
	all.Wait()
}

// enter waits for room, but not for longer than patience.
func enter(room chan struct{}, patience time.Duration) (leave func()) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case room <- struct{}{}:
		return func() { <-room }
	case <-timer.C:
		return func() {}
	}
}

// renew renews leases of one resource: together those that wait for the answer to the same write, and those that wait for none.
func (d *Driver) renew(ctx context.Context, name string, some []*driver.Renewal) {
	byOpen := make(map[uncertain][]*driver.Renewal, 1)
	for _, one := range some {
		open := one.Claim.(*claim).open
		byOpen[open] = append(byOpen[open], one)
	}
	for before, those := range byOpen {
		d.renewTogether(ctx, name, before, those)
	}
}

// renewTogether renews leases of one resource, whose last write is before, if that has no answer.
func (d *Driver) renewTogether(ctx context.Context, name string, before uncertain, some []*driver.Renewal) {
	lost := make([]error, len(some))
	r, err := d.change(ctx, name, &before, func(v *view) (write bool) {
		for i, one := range some {
			c := one.Claim.(*claim)
			_, lost[i] = v.Renew(&v.clock, c.req.Owner, one.TTL)
			write = write || lost[i] == nil || c.had(v) // as in lease
		}
		return write || v.dropped
	})
	for i, one := range some {
		c := one.Claim.(*claim)
		c.open, c.gave = before, nil
		failed := cmp.Or(err, lost[i])
		c.told(failed)
		if failed != nil {
			one.Answer(driver.Grant{}, failed)
		} else {
			one.Answer(grantOf(r, c.req.Owner, one.TTL))
		}
	}
}
