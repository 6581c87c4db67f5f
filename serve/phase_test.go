package serve

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

var phaseNames = [...]string{unknown: "unknown", unsure: "unsure", queued: "queued", held: "held", lost: "lost", ended: "ended"}

var eventNames = [...]string{onGrant: "grant", onPlace: "place", onDoubt: "doubt", onLoss: "loss", onEnd: "end", onForget: "forget"}

// A stage is a claim in one phase, and the means to change it.
type stage struct {
	*testing.T
	s      *Server
	d      *memory.Driver
	other  driver.Claim // of another owner
	one    *claim
	number int64 // of the last call
}

func newStage(t *testing.T) *stage {
	d := memory.NewServer().Connect()
	s, err := New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		d.Close()
	})
	other, err := d.Claim(driver.Request{Resource: "a", Owner: "other", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	g := &stage{T: t, s: s, d: d, other: other}
	g.one = g.enter()
	return g
}

// enter keeps the claim from being forgotten.
func (g *stage) enter() *claim {
	one, _, err := g.s.claims.enter("a", "owner", order{}, false)
	if err != nil {
		g.Fatal(err)
	}
	return one
}

// call makes the owner's next call.
func (g *stage) call(path string, call any) (status int) {
	g.number++
	body, _ := json.Marshal(call)
	r := httptest.NewRequest("POST", path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	g.s.ServeHTTP(w, r)
	return w.Code
}

func (g *stage) claim() wire.Claim {
	return wire.Claim{Name: "a", Owner: "owner", Caller: "caller", Call: g.number + 1}
}

// free ends what the claim, or the other owner, has at the engine.
func (g *stage) free() {
	_ = g.d.Evict(g.Context(), "a", "owner", "")
	_ = g.other.Release(g.Context(), driver.End{})
}

// cause makes e happen.
func (g *stage) cause(e event) {
	acquire := wire.AcquireCall{Claim: g.claim(), TTL: 60_000, Queue: true}
	switch e {
	case onGrant:
		g.free()
		if status := g.call(wire.Acquire, acquire); status != 200 {
			g.Fatalf("acquire: %d", status)
		}
	case onPlace:
		if g.one.phase != queued {
			g.free()
			if _, err := g.other.Try(g.Context()); err != nil {
				g.Fatal(err)
			}
		}
		if status := g.call(wire.Acquire, acquire); status != 409 {
			g.Fatalf("acquire: %d", status)
		}
	case onDoubt:
		g.s.claims.lasts(g.one, e, time.Now().Add(time.Minute))
	case onLoss:
		_ = g.d.Evict(g.Context(), "a", "owner", "")
		if status := g.call(wire.Renew, wire.RenewCall{Claim: g.claim(), TTL: 60_000}); status != 410 {
			g.Fatalf("renew: %d", status)
		}
	case onEnd:
		g.call(wire.Release, wire.ReleaseCall{Claim: g.claim()})
	case onForget:
		g.s.quit(g.one)
		if !g.s.claims.close(g.one, time.Now().Add(time.Hour)) {
			g.Fatal("the claim is not over")
		}
		g.enter()
		g.s.forget(g.one)
		g.s.claims.drop(g.one)
	}
}

// Each cell of the table is what the code does. No lease is known for a claim that is neither held
// nor queued. If nobody calls, the claim is kept, or its owner is remembered as used up, or nothing
// stays.
func TestTheTableIsWhatHappens(t *testing.T) {
	t.Parallel()
	ways := map[phase][]event{unsure: {onDoubt}, queued: {onPlace}, held: {onGrant}, lost: {onGrant, onLoss}, ended: {onGrant, onEnd}}
	for from := range transitions {
		for e, to := range transitions[from] {
			if to == never {
				continue
			}
			t.Run(phaseNames[from]+"/"+eventNames[e], func(t *testing.T) {
				g := newStage(t)
				for _, before := range ways[phase(from)] {
					g.cause(before)
				}
				if g.one.phase != phase(from) {
					t.Fatalf("begins in phase %d, want %d", g.one.phase, from)
				}
				g.cause(event(e))
				g.check(to)
			})
		}
	}
}

func (g *stage) check(want phase) {
	if g.one.phase != want {
		g.Fatalf("ends in phase %d, want %d", g.one.phase, want)
	}
	if has := !g.one.lease.since.IsZero(); has && want != held && want != queued || !has && want == held {
		g.Errorf("a lease is known: %v", has)
	}
	c := g.s.claims
	if !c.quits(g.one) {
		g.Fatal("another has entered the claim")
	}
	c.leave(g.one, false)
	if kept := c.all[g.one.key] != nil; kept != (want == queued || want == held || want == lost || want == unsure) {
		g.Errorf("it is kept: %v", kept)
	}
	if _, used := c.ends.get(g.one.key); used != (want == ended && g.one.chosen) {
		g.Errorf("its owner is remembered as used up: %v", used)
	}
}
