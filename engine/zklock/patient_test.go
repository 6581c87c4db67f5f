package zklock_test

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
)

// patient is a driver for the suite, which wants whole grants of leases of little more than
// a second. Those are shorter after a stall, and a busy machine stalls: then it asks again.
// TestLinks/GrantsAreWhole shows what a driver does by itself.
type patient struct {
	*zklock.Driver
	shortest time.Duration
}

func (p patient) Features() driver.Features {
	f := p.Driver.Features()
	f.MinTTL = p.shortest
	return f
}

func (p patient) Claim(req driver.Request) (driver.Claim, error) {
	c, err := p.Driver.Claim(req)
	if err != nil {
		return nil, err
	}
	return patientClaim{c, req.TTL}, nil
}

func (p patient) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	inner := make([]driver.Renewal, len(renewals))
	for i, r := range renewals {
		inner[i] = driver.Renewal{Claim: r.Claim.(patientClaim).Claim, TTL: r.TTL}
	}
	p.Driver.RenewAll(ctx, inner)
	for i, r := range inner {
		renewals[i].Grant, renewals[i].Err = r.Grant, r.Err
	}
}

type patientClaim struct {
	driver.Claim
	ttl time.Duration
}

func (c patientClaim) Try(ctx context.Context) (driver.Grant, error) {
	return c.whole(ctx, func() (driver.Grant, error) { return c.Claim.Try(ctx) })
}

func (c patientClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	return c.whole(ctx, func() (driver.Grant, error) { return c.Claim.Renew(ctx, ttl) })
}

// whole asks until the grant is as long as was asked for, for an eighth of the time there is:
// what is left is for those who have less of it than the suite itself.
func (c patientClaim) whole(ctx context.Context, ask func() (driver.Grant, error)) (driver.Grant, error) {
	patience := time.Second
	if end, ok := ctx.Deadline(); ok {
		patience = time.Until(end) / 8
	}
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		g, err := ask()
		if err != nil || g.TTL >= c.ttl || time.Since(start) > patience {
			return g, err
		}
	}
}
