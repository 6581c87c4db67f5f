package quorum_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
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

// hangsForB is a node whose batches answer the renewal of b only when their time is over.
type hangsForB struct {
	*memory.Driver
	hangs bool
}

type ofName struct {
	driver.Claim
	name string
}

func (n *hangsForB) Claim(req driver.Request) (driver.Claim, error) {
	c, err := n.Driver.Claim(req)
	return ofName{c, req.Resource}, err
}

func (n *hangsForB) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		r := &renewals[i]
		c := r.Claim.(ofName)
		if n.hangs && c.name == "b" {
			<-ctx.Done()
		}
		r.Answer(c.Renew(ctx, r.TTL))
	}
}

// A renewal that hangs at nodes which renew in batches holds up no other of its batch, nor the next
// one of another lease.
func TestHungRenewalHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const given = time.Second
		var nodes []driver.Driver
		for i := range 3 {
			nodes = append(nodes, &hangsForB{memory.New(), i < 2})
		}
		d, err := quorum.New(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		start := time.Now()
		answered := make(chan time.Duration, 2)
		var all []driver.Renewal
		for _, name := range []string{"a", "b"} {
			c, err := d.Claim(driver.Request{Resource: name, Owner: "holder", TTL: time.Minute})
			if err == nil {
				_, err = c.Try(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // all calls are over
			all = append(all, driver.Renewal{Claim: c, TTL: time.Minute})
		}
		all[0].Answered = func() { answered <- time.Since(start) }
		ctx, cancel := context.WithTimeout(t.Context(), given)
		defer cancel()
		over := make(chan bool)
		go func() { defer close(over); d.RenewAll(ctx, all) }()
		if took := <-answered; took > given/2 || all[0].Err != nil {
			t.Errorf("the other is answered after %v: %v", took, all[0].Err)
		}
		if _, err := all[0].Claim.Renew(ctx, time.Minute); err != nil || time.Since(start) > given/2 {
			t.Errorf("its next renewal is answered after %v: %v", time.Since(start), err)
		}
		<-over
	})
}
