package quorum_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/memory"
)

// A forgetful driver is called forgotten when a claim is, unless a call of the claim goes on.
type forgetful struct {
	*memory.Driver
	takes     time.Duration // an attempt
	forgotten chan<- struct{}
}

func (d forgetful) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return &forgetfulClaim{Claim: c, d: d}, err
}

type forgetfulClaim struct {
	driver.Claim
	d      forgetful
	trying bool
}

func (c *forgetfulClaim) Try(ctx context.Context) (driver.Grant, error) {
	c.trying = true
	time.Sleep(c.d.takes)
	c.trying = false
	return c.Claim.Try(ctx)
}

func (c *forgetfulClaim) Forget() {
	if !c.trying {
		c.d.forgotten <- struct{}{}
	}
}

// A claim that is forgotten is forgotten at each node, once its calls there are over. Its lease
// stays.
func TestForget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		forgotten := make(chan struct{}, 3)
		var nodes []driver.Driver
		for i := range 3 {
			nodes = append(nodes, forgetful{memory.New(), time.Duration(i) * 10 * time.Millisecond, forgotten})
		}
		d, err := quorum.New(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		c := claimOf(t, d, driver.Request{Resource: "n", Owner: "a", TTL: time.Minute})
		if _, err := c.Try(t.Context()); err != nil { // the third node has not answered
			t.Fatal(err)
		}
		c.(driver.Forgetter).Forget()
		time.Sleep(time.Second)
		if len(forgotten) != 3 {
			t.Errorf("%d nodes have forgotten the claim once its calls were over", len(forgotten))
		}
		if _, err := claimOf(t, d, driver.Request{Resource: "n", Owner: "b", TTL: time.Minute}).Try(t.Context()); err == nil {
			t.Error("the lease has not stayed")
		}
	})
}

// A sessional driver ends its leases with its session, so that no other process can resume them.
type sessional struct{ *memory.Driver }

func (d sessional) Features() driver.Features {
	f := d.Driver.Features()
	f.Resumes = false
	return f
}

func (d sessional) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return struct{ driver.Claim }{c}, err
}

// A node's session would keep the lease of a claim that is forgotten, so it is released there.
func TestForgetOverSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := quorum.New([]driver.Driver{sessional{memory.New()}, sessional{memory.New()}, sessional{memory.New()}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		c := claimOf(t, d, driver.Request{Resource: "n", Owner: "a", TTL: time.Minute})
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.(driver.Forgetter).Forget()
		time.Sleep(time.Second)
		if _, err := claimOf(t, d, driver.Request{Resource: "n", Owner: "b", TTL: time.Minute}).Try(t.Context()); err != nil {
			t.Errorf("Try by another: %v", err)
		}
	})
}
