package httplock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/memory"
)

// A release keeps the owner out if an acquire or a release of the claim had no answer, or if another
// process has acquired; else the claim may ask again.
func TestOnlyLateCallsKeepTheOwnerOut(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	url := instances(t, engine, 1, nil)
	p, err := proxy.Listen(url[len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	d := open(t, "http://"+p.Addr())
	t.Cleanup(func() { d.Close() })
	claimOf := func(d driver.Driver, name string) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	claim := func(name string) driver.Claim { return claimOf(d, name) }
	barred := func(name string) bool { // by the engine: the instance would remember owners that are used up
		_, err := claimOf(engine.Connect(), name).Try(t.Context())
		if err != nil && !errors.Is(err, driver.ErrBarred) {
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
	must(heard.Release(t.Context(), driver.End{}))
	_, err = heard.Try(t.Context())
	if err != nil {
		t.Errorf("all had answers, and the owner is kept out: %v", err)
	}
	resumed := claim("heard")
	_, err = resumed.Renew(t.Context(), time.Minute)
	must(err)
	must(resumed.Release(t.Context(), driver.End{}))
	if !barred("heard") {
		t.Error("another process acquired, and its owner is not kept out")
	}
	_, err = claim("released").Try(t.Context())
	must(err)
	must(claim("released").Release(t.Context(), driver.End{}))
	if !barred("released") {
		t.Error("another process acquired and a second one released, and the owner is not kept out")
	}
	silent := claim("silent")
	dark := func(call func(ctx context.Context) error) {
		t.Helper()
		p.Dark()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if call(ctx) == nil {
			t.Fatal("an answer through a link that hangs")
		}
		p.Reset() // what was on its way is gone
		p.Pass()
	}
	dark(func(ctx context.Context) error { _, err := silent.Try(ctx); return err })
	if err := silent.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	if !barred("silent") {
		t.Error("an acquire had no answer, and its owner is not kept out")
	}
	unheard := claim("unheard")
	_, err = unheard.Try(t.Context())
	must(err)
	dark(claimtest.Release(unheard))
	must(unheard.Release(t.Context(), driver.End{}))
	if !barred("unheard") {
		t.Error("a release had no answer, and its owner is not kept out")
	}
	_, err = claim("again").Try(t.Context())
	must(err)
	released := claim("again")
	dark(claimtest.Release(released))
	must(released.Release(t.Context(), driver.End{}))
	if !barred("again") {
		t.Error("another process acquired, the first call to release had no answer, and the owner is not kept out")
	}
}
