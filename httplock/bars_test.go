package httplock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/memory"
)

// A release keeps the owner out if an acquire of the claim had no answer, or if another process has acquired; else the
// claim may ask again.
func TestOnlyLateAcquiresKeepTheOwnerOut(t *testing.T) {
	t.Parallel()
	url := instances(t, memory.NewServer(), 1, nil)
	p, err := proxy.Listen(url[len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	d := open(t, "http://"+p.Addr())
	t.Cleanup(func() { d.Close() })
	claim := func(name string) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	used := func(c driver.Claim) bool {
		_, err := c.Try(t.Context())
		if err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatal(err)
		}
		return err != nil
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	heard := claim("heard")
	_, err = heard.Try(t.Context())
	must(err)
	must(heard.Release(t.Context()))
	if used(heard) {
		t.Error("all had answers, and the owner is kept out")
	}
	resumed := claim("heard")
	_, err = resumed.Renew(t.Context(), time.Minute)
	must(err)
	must(resumed.Release(t.Context()))
	if !used(claim("heard")) {
		t.Error("another process acquired, and its owner is not kept out")
	}
	silent := claim("silent")
	p.Dark()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := silent.Try(ctx); err == nil {
		t.Fatal("an answer through a link that hangs")
	}
	p.Reset() // what was on its way is gone
	p.Pass()
	if err := silent.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	if !used(claim("silent")) {
		t.Error("an acquire had no answer, and its owner is not kept out")
	}
}
