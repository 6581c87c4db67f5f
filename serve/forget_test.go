package serve_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A keeping driver keeps something of each claim until the claim is released or forgotten, as
// engines do that listen for notices.
type keeping struct {
	*locktest.Faulty
	kept   map[*keptClaim]bool
	quorum bool // it does not resume, but its leases are no session's
}

func (d keeping) Features() driver.Features {
	f := d.Faulty.Features()
	f.Resumes = f.Resumes && !d.quorum
	return f
}

func (d keeping) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Faulty.Claim(req)
	kept := &keptClaim{c, d}
	if req.Resource == "n" { // others are never called
		d.kept[kept] = true
	}
	return kept, err
}

type keptClaim struct {
	driver.Claim
	d keeping
}

func (c *keptClaim) Release(ctx context.Context, how driver.End) error {
	err := c.Claim.Release(ctx, how)
	if err == nil || errors.Is(err, driver.ErrLost) {
		delete(c.d.kept, c)
	}
	return err
}

func (c *keptClaim) Forget() { delete(c.d.kept, c) }

// A removal that waits for the turn of an attempt without an answer leaves nothing either.
func TestRemovalLeavesNothingInTheDriver(t *testing.T) {
	t.Parallel()
	besideAnUnknownAttempt(t, `,"wait_ms":30000`, func(_ context.Context, s bubble) {
		s.wantCode(wire.CodeUnknown, wire.Remove, `{"name":"n","owner":"o","reason":"r"}`)
	})
}

// Nor does a call that gives up waiting for its turn at the moment when the attempt before it ends.
func TestCallsWithoutATurnLeaveNothingInTheDriver(t *testing.T) {
	t.Parallel()
	besideAnUnknownAttempt(t, "", func(ctx context.Context, s bubble) {
		s.serveFor(ctx, wire.Renew, `{"name":"n","owner":"o","ttl_ms":60000}`)
	})
}

// besideAnUnknownAttempt makes a call while an attempt to acquire is in flight. The call's context ends
// when the attempt does, which gets no answer. It does so often: in some runs, both leave the claim at
// once.
func besideAnUnknownAttempt(t *testing.T, more string, call func(ctx context.Context, s bubble)) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			d := keeping{locktest.NewFaulty(memory.New()), make(map[*keptClaim]bool), false}
			s := newBubble(t, d, nil)
			d.Next(locktest.OpTry, func(context.Context, func() error) error {
				time.Sleep(time.Second)
				return locktest.ErrInjected
			})
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				s.wantCode(wire.CodeUnknown, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000%s}`, more)
			}()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			call(ctx, s)
			if <-answered; len(d.kept) > 0 {
				t.Errorf("%d claims are kept", len(d.kept))
			}
		})
	}
}

// A call after which this instance keeps no claim leaves nothing in the driver either, whatever its
// outcome.
func TestCallsLeaveNothingInTheDriver(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		fails      []locktest.Op
		path, more string
		status     int
		quorum     bool
	}{
		"refused":                  {nil, wire.Acquire, `"ttl_ms":60000`, 409, false},
		"an unknown acquire":       {[]locktest.Op{locktest.OpTry}, wire.Acquire, `"ttl_ms":60000`, 503, false},
		"an unknown look":          {[]locktest.Op{locktest.OpRenew}, wire.Acquire, `"ttl_ms":60000`, 503, false},
		"a renewal of nothing":     {nil, wire.Renew, `"ttl_ms":60000`, 410, false},
		"an unknown renewal":       {[]locktest.Op{locktest.OpRenew}, wire.Renew, `"ttl_ms":60000`, 503, true},
		"a note of nothing":        {nil, wire.Note, `"note":"x"`, 410, false},
		"an unknown release":       {[]locktest.Op{locktest.OpRelease}, wire.Release, `"linger_ms":0`, 503, false},
		"an unknown late release":  {[]locktest.Op{locktest.OpRelease}, wire.Release, `"caller":"c","call":2`, 503, false},
		"a late release that asks": {[]locktest.Op{locktest.OpInspect}, wire.Release, `"caller":"c","call":2,"at_least_ms":60000`, 503, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := keeping{locktest.NewFaulty(engine.Connect()), make(map[*keptClaim]bool), c.quorum}
				other, s := newBubble(t, engine.Connect(), nil), newBubble(t, d, nil)
				other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
				for _, op := range c.fails {
					d.Always(op, locktest.LoseReply)
				}
				s.want(c.status, c.path, `{"name":"n","owner":"o",%s}`, c.more)
				if len(d.kept) > 0 {
					t.Errorf("%d claims are kept", len(d.kept))
				}
			})
		})
	}
}
