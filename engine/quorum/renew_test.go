package quorum_test

import (
	"context"
	"errors"
	"fmt"
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

// A renewer is a node that renews in batches. Its renewals are subject to renew, if that is not nil.
type renewer struct {
	*memory.Driver
	renew func(ctx context.Context, name string) error
}

type ofName struct {
	driver.Claim
	name string
	node *renewer
}

func (n *renewer) Claim(req driver.Request) (driver.Claim, error) {
	c, err := n.Driver.Claim(req)
	return ofName{c, req.Resource, n}, err
}

func (c ofName) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if c.node.renew != nil {
		if err := c.node.renew(ctx, c.name); err != nil {
			return driver.Grant{}, err
		}
	}
	return c.Claim.Renew(ctx, ttl)
}

func (n *renewer) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		r := &renewals[i]
		r.Answer(r.Claim.Renew(ctx, r.TTL))
	}
}

// hangsFor makes the renewals of one name hang until their time is over.
func hangsFor(hung string) func(ctx context.Context, name string) error {
	return func(ctx context.Context, name string) error {
		if name == hung {
			<-ctx.Done()
		}
		return ctx.Err()
	}
}

// held returns renewals of leases that were granted just now.
func held(t *testing.T, d driver.Driver, names ...string) (all []driver.Renewal) {
	t.Helper()
	for _, name := range names {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "holder", TTL: time.Minute})
		if err == nil {
			_, err = c.Try(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, driver.Renewal{Claim: c, TTL: time.Minute})
	}
	synctest.Wait() // all calls are over
	return all
}

// A renewal that hangs at nodes which renew in batches holds up no other of its batch, nor the next
// one of another lease.
func TestHungRenewalHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const given = time.Second
		d, err := quorum.New([]driver.Driver{
			&renewer{memory.New(), hangsFor("b")}, &renewer{memory.New(), hangsFor("b")}, &renewer{memory.New(), nil},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		start := time.Now()
		answered := make(chan time.Duration, 2)
		all := held(t, d, "a", "b")
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

// A renewal that all nodes have answered without a majority is over, though another of its batch
// hangs at a node.
func TestUndecidedRenewalIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const given = time.Second
		unreachable := errors.New("unreachable")
		nodes := []*renewer{{Driver: memory.New()}, {Driver: memory.New()}, {Driver: memory.New()}}
		d, err := quorum.New([]driver.Driver{nodes[0], nodes[1], nodes[2]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		all := held(t, d, "a", "b")
		if err := nodes[1].Evict(t.Context(), "a", "holder", "x"); err != nil {
			t.Fatal(err)
		}
		nodes[2].renew = func(_ context.Context, name string) error {
			if name == "a" {
				return unreachable
			}
			return nil
		}
		nodes[0].renew, nodes[1].renew = hangsFor("b"), hangsFor("b")
		start, took := time.Now(), time.Duration(0)
		all[0].Answered = func() { took = time.Since(start) }
		ctx, cancel := context.WithTimeout(t.Context(), given)
		defer cancel()
		d.RenewAll(ctx, all)
		if took > given/2 || !errors.Is(all[0].Err, unreachable) {
			t.Errorf("what one node renewed, one lost and one could not say is answered after %v: %v", took, all[0].Err)
		}
	})
}

// Renewals that hang at nodes which renew one by one hold up no others, however many they are.
func TestManyHungRenewalsHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const given, hung = 2 * time.Second, 100
		hangs := func(ctx context.Context, name string) error {
			if name != "last" {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		var nodes []driver.Driver
		var names []string
		for range 3 {
			nodes = append(nodes, struct{ driver.Driver }{&renewer{memory.New(), hangs}})
		}
		d, err := quorum.New(nodes, &quorum.Options{NoFencing: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for i := range hung {
			names = append(names, fmt.Sprint(i))
		}
		all := held(t, d, append(names, "last")...)
		start, took := time.Now(), time.Duration(0)
		all[hung].Answered = func() { took = time.Since(start) }
		ctx, cancel := context.WithTimeout(t.Context(), given)
		defer cancel()
		d.RenewAll(ctx, all)
		if took > given/2 || all[hung].Err != nil {
			t.Errorf("the last is answered after %v: %v", took, all[hung].Err)
		}
	})
}
