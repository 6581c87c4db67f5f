package serve_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// An owner that shares, and asks to be alone under the same owner, is not told that it is: neither
// by the instance that granted it, nor by another, nor by what its place in the queue comes to.
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
	// It still has what it had, and who names no mode of what it has renews it.
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

// An owner that others have served meanwhile is asked for its mode as one that is new here.
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

	// Its caller does not count its calls.
	const uncounted = `{"name":"m","owner":"o","ttl_ms":60000,"mode":"%s"}`
	c := start(t, engine, nil)
	a.post(wire.Acquire, uncounted, "exclusive").want(t, 200, "")
	b.post(wire.Release, `{"name":"m","owner":"o"}`).want(t, 200, "")
	c.post(wire.Acquire, uncounted, "shared").want(t, 200, "")
	a.post(wire.Acquire, uncounted, "exclusive").want(t, 400, "invalid")
	c.post(wire.Acquire, uncounted, "shared").want(t, 200, "")
}

// Another caller of the same owner, who has made no call before, is not told that it is alone either.
func TestModeOfAnotherCaller(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	const claim = `{"name":"n","owner":"%s","ttl_ms":60000,"caller":"%s","mode":"%s","call":1}`
	s.post(wire.Acquire, claim, "o", "c", "shared").want(t, 200, "")
	s.post(wire.Acquire, claim, "p", "d", "shared").want(t, 200, "")
	s.post(wire.Acquire, claim, "o", "e", "exclusive").want(t, 400, "invalid")
	s.post(wire.Acquire, claim, "o", "f", "shared").want(t, 200, "")
}
