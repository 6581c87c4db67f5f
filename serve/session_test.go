package serve_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// A session is an engine whose leases outlive their TTL, like leases that depend on a session,
// until they are released.
type session struct {
	*memory.Driver
	releasing, goOn chan struct{}
}

func (d *session) Features() driver.Features {
	f := d.Driver.Features()
	f.Resumes = false
	return f
}

func (d *session) Claim(req driver.Request) (driver.Claim, error) {
	ttl := req.TTL
	req.TTL = time.Hour
	c, err := d.Driver.Claim(req)
	return &sessionClaim{c, d, ttl}, err
}

type sessionClaim struct {
	driver.Claim
	d   *session
	ttl time.Duration
}

func (c *sessionClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	g.TTL = c.ttl
	return g, err
}

func (c *sessionClaim) Release(ctx context.Context, how driver.End) error {
	select {
	case c.d.releasing <- struct{}{}:
		<-c.d.goOn
	default: // nobody waits for it
	}
	return c.Claim.Release(ctx, how)
}

// On an engine that would keep it, a lease whose TTL is over is released. If an acquire of its
// owner comes at the same moment, it gets a new lease, and not the one that is being released.
func TestOwnerComesWhileItsLeaseIsGivenUp(t *testing.T) {
	t.Parallel()
	d := &session{memory.New(), make(chan struct{}), make(chan struct{})}
	s := startOn(t, d, nil)
	first := s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":500}`).want(t, 200, "")
	select {
	case <-d.releasing:
	case <-time.After(20 * time.Second):
		t.Fatal("what nobody renewed is not given up")
	}
	again := make(chan answer, 1)
	go func() {
		a, err := post(s.url+wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
		if err != nil {
			t.Error(err)
		}
		again <- a
	}()
	var got answer
	select { // it is served at once, or waits
	case got = <-again:
		close(d.goOn)
		eventually(t, "the first lease is given up", func() bool { return len(s.state("n").Holders) == 0 })
	case <-time.After(time.Second):
		close(d.goOn)
		got = <-again
	}
	got.want(t, 200, "")
	if other := s.post(wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000}`); other.status != 409 {
		t.Errorf("two hold: %s beside %s", other.text, got.text)
	}
	if got.grant.Token == first.grant.Token {
		t.Errorf("granted what was given up: %s", got.text)
	}
}

// An engine that ties leases to a session has one driver's claim per lease or place. A repeated
// acquire that asks for something else keeps it. It is made again once the claim is over.
func TestRepeatedAcquireKeepsTheClaimOfASession(t *testing.T) {
	t.Parallel()
	d := &session{Driver: memory.New()}
	s := startOn(t, d, nil)
	acquire := func(owner, more string) answer {
		return s.post(wire.Acquire, `{"name":"n","owner":%q%s}`, owner, more)
	}
	first := acquire("a", `,"ttl_ms":60000`).want(t, 200, "")
	for _, owner := range []string{"b", "c"} {
		acquire(owner, `,"ttl_ms":60000,"queue":true`).want(t, 409, "busy")
	}
	for _, more := range []string{`,"note":"x"`, `,"queue":true`, `,"wanted":true`} {
		if again := acquire("a", `,"ttl_ms":60000`+more); again.status != 200 || again.grant.Token != first.grant.Token {
			t.Errorf("%s: answered %d: %s, want token %s", more, again.status, again.text, first.grant.Token)
		}
	}
	for _, owner := range []string{"a", "b"} {
		acquire(owner, `,"ttl_ms":50000`).want(t, 501, "unsupported")
		acquire(owner, `,"ttl_ms":60000,"mode":"shared"`).want(t, 400, "invalid")
	}
	acquire("b", `,"ttl_ms":60000,"queue":true,"note":"x"`).want(t, 409, "busy")
	if st := s.state("n"); len(st.Holders) != 1 || st.Holders[0].Handle != wire.Handle("a") || len(st.Waiters) != 2 || st.Waiters[0].Handle != wire.Handle("b") {
		t.Fatalf("held and waited for by others: %+v", st)
	}
	s.post(wire.Evict, `{"name":"n","owner":"a"}`).want(t, 200, "")
	s.post(wire.Renew, `{"name":"n","owner":"a","ttl_ms":60000}`).want(t, 410, "evicted")
	acquire("a", `,"ttl_ms":50000,"queue":true`).want(t, 409, "busy")
	waits := func(owner string) {
		t.Helper()
		if st := s.state("n"); !slices.ContainsFunc(st.Waiters, func(w wire.Waiter) bool { return w.Handle == wire.Handle(owner) }) {
			t.Errorf("the owner whose lease was lost does not wait: %+v", st)
		}
	}
	waits("a")
	acquire("b", `,"ttl_ms":60000`).want(t, 200, "") // its claim has a place, so that queue is as before
	s.post(wire.Evict, `{"name":"n","owner":"b"}`).want(t, 200, "")
	acquire("b", `,"ttl_ms":50000,"queue":true`).want(t, 409, "busy") // another TTL: only a claim that is new may ask for it
	waits("b")
}
