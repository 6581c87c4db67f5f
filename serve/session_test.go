package serve_test

import (
	"context"
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
