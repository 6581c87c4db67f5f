package serve_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// If an owner that shares asks for an exclusive lease, no answer says that it has one. This holds
// for the instance that granted the lease and for another, and for its place in the queue.
func TestOneOwnerHoldsInOneMode(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	here, there := start(t, engine, nil), start(t, engine, nil)
	const shared, alone = `{"name":"n","owner":"a","ttl_ms":60000,"mode":"shared"}`, `{"name":"n","owner":"a","ttl_ms":60000}`
	here.post(wire.Acquire, shared).want(t, 200, "")
	here.post(wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000,"mode":"shared"}`).want(t, 200, "")
	for _, s := range []*service{here, there} {
		s.post(wire.Acquire, alone).want(t, 400, "invalid")
		s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000,"mode":"shared","limit":1}`).want(t, 400, "invalid")
	}
	// It still has its lease, and a call that states no mode renews it.
	there.post(wire.Renew, alone).want(t, 200, "")
	there.post(wire.Acquire, alone).want(t, 400, "invalid")
	for _, s := range []*service{here, there} {
		s.post(wire.Acquire, shared).want(t, 200, "")
	}
	there.post(wire.Release, `{"name":"n","owner":"a"}`).want(t, 200, "")

	here.post(wire.Acquire, `{"name":"p","owner":"x","ttl_ms":60000}`).want(t, 200, "")
	here.post(wire.Acquire, `{"name":"p","owner":"a","ttl_ms":60000,"mode":"shared","queue":true}`).want(t, 409, "busy")
	here.post(wire.Acquire, `{"name":"p","owner":"a","ttl_ms":60000,"queue":true}`).want(t, 400, "invalid")
	here.post(wire.Release, `{"name":"p","owner":"x"}`).want(t, 200, "")
	there.post(wire.Acquire, `{"name":"p","owner":"a","ttl_ms":60000}`).want(t, 400, "invalid")
	there.post(wire.Acquire, `{"name":"p","owner":"a","ttl_ms":60000,"mode":"shared"}`).want(t, 200, "")
}

// If other instances have served calls of an owner meanwhile, its mode is checked as for a new
// claim.
func TestModeOfCallsElsewhereInBetween(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	const claim = `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","mode":"%s","call":%d}`
	a.post(wire.Acquire, claim, "exclusive", 1).want(t, 200, "")
	b.post(wire.Release, `{"name":"n","owner":"o","caller":"c","call":2,"answered":1}`).want(t, 200, "")
	b.post(wire.Acquire, claim, "shared", 3).want(t, 200, "")
	a.post(wire.Acquire, claim, "exclusive", 4).want(t, 400, "invalid")
	b.post(wire.Acquire, claim, "shared", 5).want(t, 200, "")

	// Its caller does not number its calls.
	const uncounted = `{"name":"m","owner":"o","ttl_ms":60000,"mode":"%s"}`
	c := start(t, engine, nil)
	a.post(wire.Acquire, uncounted, "exclusive").want(t, 200, "")
	b.post(wire.Release, `{"name":"m","owner":"o"}`).want(t, 200, "")
	c.post(wire.Acquire, uncounted, "shared").want(t, 200, "")
	a.post(wire.Acquire, uncounted, "exclusive").want(t, 400, "invalid")
	c.post(wire.Acquire, uncounted, "shared").want(t, 200, "")

	// This instance has renewed the lease of the other mode since.
	const renewed = `{"name":"r","owner":"o","ttl_ms":60000,"mode":"%s"}`
	a.post(wire.Acquire, renewed, "exclusive").want(t, 200, "")
	b.post(wire.Release, `{"name":"r","owner":"o"}`).want(t, 200, "")
	c.post(wire.Acquire, renewed, "shared").want(t, 200, "")
	a.post(wire.Renew, `{"name":"r","owner":"o","ttl_ms":60000}`).want(t, 200, "")
	a.post(wire.Acquire, renewed, "exclusive").want(t, 400, "invalid")
	c.post(wire.Acquire, renewed, "shared").want(t, 200, "")
}

// Another caller of the same owner, without an earlier call, is not told that it holds exclusively
// either.
func TestModeOfAnotherCaller(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	const claim = `{"name":"n","owner":"%s","ttl_ms":60000,"caller":"%s","mode":"%s","call":1}`
	s.post(wire.Acquire, claim, "o", "c", "shared").want(t, 200, "")
	s.post(wire.Acquire, claim, "p", "d", "shared").want(t, 200, "")
	s.post(wire.Acquire, claim, "o", "e", "exclusive").want(t, 400, "invalid")
	s.post(wire.Acquire, claim, "o", "f", "shared").want(t, 200, "")
}

// A refusal because of the mode does not shorten the lease that the owner has. While the engine
// does not tell the mode, there is neither a refusal nor a shorter lease.
func TestRefusalOfAnotherModeKeepsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		d := locktest.NewFaulty(engine.Connect())
		here, there := newBubble(t, engine.Connect(), nil), newBubble(t, d, nil)
		const shared = `{"name":"n","owner":"a","ttl_ms":1000,"mode":"shared"}`
		here.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
		synctest.Wait() // until the first looks are over
		d.Next(locktest.OpInspect, locktest.LoseRequest)
		there.wantCode(wire.CodeUnknown, wire.Acquire, shared)
		there.wantCode(wire.CodeInvalid, wire.Acquire, shared)
		time.Sleep(2 * time.Second)
		here.want(409, wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000}`)
	})
}
