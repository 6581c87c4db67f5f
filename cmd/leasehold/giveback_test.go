//go:build unix

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// An away store answers attempts and renewals, and no release.
type away struct{ driver.Driver }
type awayClaim struct {
	driver.Claim
	driver.Lingerer
	driver.Noter
}

func (d *away) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return &awayClaim{c, c.(driver.Lingerer), c.(driver.Noter)}, err
}
func (c *awayClaim) Release(context.Context) error               { return errors.New("away") }
func (c *awayClaim) Linger(context.Context, time.Duration) error { return errors.New("away") }

// A failed job of a period is given back by two calls: the store that goes away between them keeps its name for no longer
// than it would have.
func TestGiveBackLengthensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		r := &run{child: newChild(&app{}), period: period{oncePer: span(24 * time.Hour), retry: true}}
		r.argv = []string{"report"}
		_, r.child.ttl = r.period.ttl(0) // as checkFlags does
		locks, err := leasehold.New(&away{server.Connect()}, r.child.options())
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		leases, err := locks.AcquireAll(t.Context(), []string{"daily"}, r.period.options()...)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the command runs, and fails
		if err := r.giveBack(t.Context(), locks, leases); err == nil {
			t.Error("given back by nobody")
		}
		time.Sleep(time.Minute)
		next, err := leasehold.New(server.Connect(), r.child.options())
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if _, err := next.TryAcquire(t.Context(), "daily", r.period.options()...); err != nil {
			t.Errorf("a minute after it was given back: %v", err)
		}
	})
}
