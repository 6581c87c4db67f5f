package quorum_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// A call of one lease that hangs at a node, such as one that regains it there, does not hold up the renewals of others.
func TestHungRegainHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		d, links := c.connect(t, nil)
		claim := func(name string, ttl time.Duration) driver.Claim {
			made, err := d.Claim(driver.Request{Resource: name, Owner: "holder", TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := made.Try(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return made
		}
		a, b := claim("a", 3*time.Second), claim("b", time.Minute)
		var answered time.Duration // until a was, when both were renewed
		renew := func(what string) (ok bool) {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var all []driver.Renewal
			if what == "both" {
				all = []driver.Renewal{{Claim: a, TTL: 3 * time.Second}, {Claim: b, TTL: time.Minute}}
				all[0].Answered = func() { answered = time.Since(start) }
			} else {
				all = []driver.Renewal{{Claim: a, TTL: 3 * time.Second}}
			}
			d.RenewAll(ctx, all)
			return all[0].Err == nil
		}
		// b is lost at node 1, and what asks for it again there hangs: a lost packet, say.
		if err := c[0].Connect().Evict(t.Context(), "b", "holder", "x"); err != nil {
			t.Fatal(err)
		}
		links[0].Next(locktest.OpTry, locktest.HangRequest)
		renew("both")
		time.Sleep(100 * time.Millisecond)
		links[2].Sever() // a minority is down
		if !renew("both") && !renew("a alone") && !renew("a alone") {
			t.Error("the other lease is lost, though two nodes of three serve it")
		}
		if answered > time.Second/2 {
			t.Errorf("the other lease is told of its renewal after %v", answered)
		}
	})
}
