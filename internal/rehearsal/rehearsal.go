// Package rehearsal acquires, renews and releases a lock on trial, for drivers that rehearse.
package rehearsal

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// TTL is how long a rehearsed lock lasts if this process dies during the rehearsal.
const TTL = 5 * time.Second

// releaseWithin bounds each step at the end.
const releaseWithin = 500 * time.Millisecond

// Prefix is what the names of all rehearsals begin with.
const Prefix = "leasehold-doctor/"

// Name returns a name that nobody else uses.
func Name() string { return Prefix + rand.Text() }

// Run takes, renews and releases name, for ttl, by a claim that open makes.
func Run(ctx context.Context, name string, ttl time.Duration, open func(driver.Request) (driver.Claim, error)) error {
	claim, err := open(driver.Request{Resource: name, Owner: rand.Text() + rand.Text(), TTL: ttl, Note: "leasehold doctor"})
	if err != nil {
		return err
	}
	what := "take"
	if _, err = claim.Try(ctx); err == nil {
		what = "renew"
		_, err = claim.Renew(ctx, ttl)
	}
	// An attempt without an answer may have been served, so it is released in any case.
	ending, cancel := Ending(ctx)
	defer cancel()
	if released := claim.Release(ending, driver.End{}); err == nil {
		what, err = "release", released
	}
	if err != nil {
		return fmt.Errorf("%s a lock: %w", what, err)
	}
	return nil
}

// Ending returns a context for the end of a rehearsal, even one that has run out of time.
func Ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
}
