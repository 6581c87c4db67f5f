package sqllock

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
)

// renewal is one lease of a batch, as JSON has it.
type renewal struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	TTL   int64  `json:"ttl"` // in milliseconds
}

// RenewAll implements driver.BatchRenewer: one statement, and where the database cannot
// return what it wrote one more, renews all exclusive leases; one batch at a time takes a
// connection. The others, and those that it did not find, are renewed resource by resource.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	var together []renewal
	for _, r := range renewals {
		if c := r.Claim.(*claim); c.lengthens(r.TTL) {
			together = append(together, renewal{c.req.Resource, c.req.Owner, inMillis(r.TTL)})
		}
	}
	fences, err := d.renewTogether(ctx, together)
	rows := make(map[string][]*driver.Renewal)
	for i := range renewals {
		r := &renewals[i]
		c := r.Claim.(*claim)
		fence, found := fences[grantee{c.req.Resource, c.req.Owner}]
		if found || err != nil && c.lengthens(r.TTL) {
			r.Grant, r.Err = c.renewed(r.TTL, fence, err)
		} else {
			rows[c.req.Resource] = append(rows[c.req.Resource], r)
		}
	}
	d.renewRows(ctx, rows)
}

// maxRows is how many rows of one batch are renewed at once: as many single leases as the
// core renews at once.
const maxRows = 16

func (d *Driver) renewRows(ctx context.Context, rows map[string][]*driver.Renewal) {
	var all sync.WaitGroup
	room := make(chan struct{}, maxRows)
	for name, renewals := range rows {
		room <- struct{}{}
		all.Go(func() {
			d.renewRow(ctx, name, renewals)
			<-room
		})
	}
	all.Wait()
}

// renewRow renews leases of one resource by one write: those who share it would be in each
// other's way.
func (d *Driver) renewRow(ctx context.Context, name string, renewals []*driver.Renewal) {
	fences, lost := make([]int64, len(renewals)), make([]error, len(renewals))
	err := d.change(ctx, name, func(r *resource) (write bool) {
		for i, one := range renewals {
			fences[i], lost[i] = one.Claim.(*claim).restart(r, one.TTL)
			write = write || lost[i] == nil
		}
		return write
	})
	for i, one := range renewals {
		c := one.Claim.(*claim)
		c.late = c.late || err != nil
		one.Grant, one.Err = c.renewed(one.TTL, fences[i], cmp.Or(err, lost[i]))
	}
}

// A grantee is who holds what.
type grantee struct{ name, owner string }

// renewTogether returns the fences of the leases that were renewed.
func (d *Driver) renewTogether(ctx context.Context, all []renewal) (fences map[grantee]int64, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	select {
	case d.renewing <- struct{}{}:
		defer func() { <-d.renewing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	on, err := d.ready(ctx)
	if err != nil {
		return nil, err
	}
	text, arg := d.texts.renewAll, list(all...)
	if d.texts.renewed != "" {
		// A lease of these owners that is live after the update was so during it: it was
		// renewed. Nothing else prolongs it, as calls on one claim do not overlap.
		if err := d.exec(ctx, text, arg); err != nil {
			return nil, err
		}
		text = d.texts.renewed
	}
	err = d.write(ctx, func() error {
		fences, err = readFences(ctx, on, text, arg)
		return err
	})
	return fences, err
}

// readFences runs a statement that returns names, owners and fences.
func readFences(ctx context.Context, on runner, text, arg string) (map[grantee]int64, error) {
	rows, err := on.QueryContext(ctx, text, arg)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	fences := make(map[grantee]int64)
	for rows.Next() {
		var g grantee
		var fence int64
		if err := rows.Scan(&g.name, &g.owner, &fence); err != nil {
			return nil, err
		}
		fences[g] = fence
	}
	return fences, errors.Join(rows.Err(), rows.Close())
}
