package serve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// parties are a driver each of whose claims is a party of its own, even if the owner is the same.
type parties struct {
	*locktest.Faulty
	claims int
}

func (d *parties) Claim(req driver.Request) (driver.Claim, error) {
	if req.Resource == "n" {
		d.claims++
	}
	req.Owner = fmt.Sprint(req.Owner, d.claims)
	return d.Faulty.Claim(req)
}

// A claim that is too heavy for the limit has certainly got nothing, so its owner may ask for less.
func TestTooHeavyForASessionIsNoDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, &session{Driver: memory.New()}, nil)
		const acquire = `{"name":"n","owner":"o","ttl_ms":60000,"mode":"shared","limit":2,"weight":%d}`
		s.want(422, wire.Acquire, acquire, 3)
		s.want(200, wire.Acquire, acquire, 2)
	})
}

// An acquire on an engine with sessions that has no answer may hold by this driver's claim alone.
// So the claim is kept: the owner's next call finds the lease, and otherwise it is given up.
func TestUnansweredAcquireOfASession(t *testing.T) {
	t.Parallel()
	const acquire, release = `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":%d}`, `{"name":"n","owner":"o","caller":"c","call":%d}`
	later := func(bubble, *parties) { time.Sleep(62 * time.Second) }
	for what, c := range map[string]struct{ before, then func(s bubble, d *parties) }{
		"is released": {nil, func(s bubble, _ *parties) { s.want(200, wire.Release, release, 4) }},
		"is repeated": {nil, func(s bubble, _ *parties) {
			s.want(200, wire.Acquire, acquire, 4)
			s.want(200, wire.Release, release, 5)
		}},
		"is forgotten": {nil, later},
		"of a used owner is released": {func(s bubble, _ *parties) {
			s.want(200, wire.Acquire, acquire, 1)
			s.want(200, wire.Release, release, 2)
		}, func(s bubble, _ *parties) { s.want(200, wire.Release, release, 4) }},
		"of a lost owner is released": {func(s bubble, _ *parties) {
			s.want(200, wire.Acquire, acquire, 1)
			s.want(200, wire.Evict, `{"name":"n","owner":"o1"}`)
			s.want(410, wire.Renew, acquire, 2)
		}, func(s bubble, _ *parties) { s.want(200, wire.Release, release, 4) }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &parties{Faulty: locktest.NewFaulty(&session{Driver: memory.New()})}
				s := newBubble(t, d, nil)
				if c.before != nil {
					c.before(s, d)
				}
				d.Next(locktest.OpTry, locktest.LoseReply)
				s.want(503, wire.Acquire, acquire, 3)
				s.want(409, wire.Acquire, `{"name":"n","owner":"p","ttl_ms":60000}`)
				c.then(s, d)
				s.want(200, wire.Acquire, `{"name":"n","owner":"p","ttl_ms":60000}`)
			})
		})
	}
	t.Run("is given up without an answer", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := &parties{Faulty: locktest.NewFaulty(&session{Driver: memory.New()})}
			s := newBubble(t, d, nil)
			d.Next(locktest.OpTry, locktest.LoseReply)
			d.Next(locktest.OpRelease, locktest.LoseRequest)
			s.want(503, wire.Acquire, `{"name":"n","ttl_ms":60000}`)
			later(s, d)
			s.want(200, wire.Acquire, `{"name":"n","owner":"p","ttl_ms":60000}`)
		})
	})
}

// An instance does not end a lease over a quorum that it has not heard of for its TTL, because
// another instance may have renewed it.
func TestLeaseOverAQuorumThatAnotherInstanceServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engines := []*memory.Server{memory.NewServer(), memory.NewServer(), memory.NewServer()}
		instance := func() bubble {
			var nodes []driver.Driver
			for _, e := range engines {
				nodes = append(nodes, e.Connect())
			}
			d, err := quorum.New(nodes, nil)
			if err != nil {
				t.Fatal(err)
			}
			return newBubble(t, d, nil)
		}
		a, b := instance(), instance()
		const call = `{"name":"n","owner":"o","ttl_ms":10000}`
		a.want(200, wire.Acquire, call)
		b.want(200, wire.Acquire, call)
		for range 4 {
			time.Sleep(3 * time.Second)
			b.want(200, wire.Renew, call)
		}
		b.want(409, wire.Acquire, `{"name":"n","owner":"p","ttl_ms":10000}`)
		b.want(200, wire.Renew, call)
	})
}
