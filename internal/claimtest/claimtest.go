// Package claimtest has single calls of a claim come to what a test expects of them.
package claimtest

import (
	"context"
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// Granted is a Try that must be.
func Granted(t testing.TB, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := c.Try(t.Context())
	if err != nil {
		t.Fatalf("Try: %v; want a grant", err)
	}
	return g
}

// Refused is a Try that must be.
func Refused(t testing.TB, c driver.Claim) *driver.Busy {
	t.Helper()
	_, err := c.Try(t.Context())
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v; want busy", err)
	}
	return busy
}

// Released is a Release that must be one.
func Released(t testing.TB, c driver.Claim) {
	t.Helper()
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// Release is a release of c that leaves nothing, as a call.
func Release(c driver.Claim) func(context.Context) error {
	return func(ctx context.Context) error { return c.Release(ctx, driver.End{}) }
}
