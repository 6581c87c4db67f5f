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
type awayClaim struct{ driver.Claim }

func (d *away) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return &awayClaim{c}, err
}
func (c *awayClaim) Release(context.Context, driver.End) error { return errors.New("away") }

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

// What the store shows decides about a release without an answer.
func TestReleaseWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		r := &run{child: newChild(&app{}), period: period{atLeast: span(time.Hour)}}
		r.argv, r.child.ttl = []string{"job"}, time.Minute
		unanswered := errors.New("away")
		for name, c := range map[string]struct {
			end  func(locks *leasehold.Locker, lease *leasehold.Lease) error
			want error
		}{
			"held": {func(*leasehold.Locker, *leasehold.Lease) error { return nil }, unanswered},
			"kept": {func(_ *leasehold.Locker, lease *leasehold.Lease) error { return lease.Release(t.Context()) }, nil},
			"lost": {func(locks *leasehold.Locker, lease *leasehold.Lease) error {
				return locks.Evict(t.Context(), lease.Name(), lease.Owner(), "test")
			}, leasehold.ErrLost},
		} {
			locks, err := leasehold.New(server.Connect(), r.child.options())
			if err != nil {
				t.Fatal(err)
			}
			leases, err := locks.AcquireAll(t.Context(), []string{name}, r.period.options()...)
			if err != nil {
				t.Fatal(err)
			}
			lease := leases.Lease(name)
			if err := c.end(locks, lease); err != nil {
				t.Fatal(err)
			}
			f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{lease}}
			if err := f.learned(t.Context(), unanswered); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			locks.Close()
		}
	})
}
