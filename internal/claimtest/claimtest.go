// Package claimtest makes single calls of a claim, and fails the test if they do not have the
// expected outcome, or if what must follow does not.
package claimtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// New makes a claim.
func New(t testing.TB, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	c, err := d.Claim(req)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Granted requires that a Try is granted.
func Granted(t testing.TB, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := c.Try(t.Context())
	if err != nil {
		t.Fatalf("Try: %v; want a grant", err)
	}
	return g
}

// Refused requires that a Try is refused.
func Refused(t testing.TB, c driver.Claim) *driver.Busy {
	t.Helper()
	_, err := c.Try(t.Context())
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v; want busy", err)
	}
	return busy
}

// Released requires that a Release succeeds.
func Released(t testing.TB, c driver.Claim) {
	t.Helper()
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// Release returns a call that releases c and leaves nothing behind.
func Release(c driver.Claim) func(context.Context) error {
	return func(ctx context.Context) error { return c.Release(ctx, driver.End{}) }
}

// Eventually polls until ok, for a minute, as long as a busy machine may take.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
