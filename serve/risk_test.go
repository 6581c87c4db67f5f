package serve_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// lengthless does not report the length of leases, like some engines.
type lengthless struct{ *memory.Driver }

func (d lengthless) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	for i := range states {
		withoutLength(&states[i])
	}
	return states, next, err
}

func (d lengthless) Inspect(ctx context.Context, name string) (driver.State, error) {
	state, err := d.Driver.Inspect(ctx, name)
	withoutLength(&state)
	return state, err
}

func withoutLength(s *driver.State) {
	for i := range s.Holders {
		s.Holders[i].TTL = 0
	}
}

// If the store does not report the length of leases, it is known for leases that this instance
// grants and renews. For others it is known once a look has found that they were renewed; until
// then nothing is reported. A change of the length is no risk.
func TestRiskWhereTheStoreDoesNotSayLengths(t *testing.T) {
	t.Parallel()
	for _, here := range []bool{true, false} { // whether this instance renews a lease, which is kept between uses
		synctest.Test(t, func(t *testing.T) {
			engine := memory.NewServer()
			s := newBubble(t, lengthless{engine.Connect()}, nil)
			by := s
			if !here {
				by = newBubble(t, engine.Connect(), nil)
			}
			want := func(what, atRisk string, shown bool) {
				t.Helper()
				got := "absent"
				if n := s.figures().AtRisk; n != nil {
					got = string(rune('0' + *n))
				}
				metric := strings.Replace(atRisk, "absent", "NaN", 1)
				if m := string(s.get("/metrics")); got != atRisk || !strings.Contains(m, "leasehold_store_at_risk "+metric+"\n") {
					t.Errorf("here: %t: %s: %s are at risk, want %s, and so in the metrics", here, what, got, atRisk)
				}
				one := told[wire.State](s, wire.Show+"?name=n").Holders[0]
				all := told[wire.Locks](s, wire.List).Locks[0].Holders[0]
				if shown != (one.TTL > 0) || shown != (all.TTL > 0) || shown && (one.TTL > 30_000 || one.TTL < 4_000 || one.Since <= 0) {
					t.Errorf("here: %t: %s: shown with a length of %d and %d ms, %d ms ago", here, what, one.TTL, all.TTL, one.Since)
				}
			}
			renew := func(ms int) {
				by.want(200, wire.Renew, `{"name":"n","owner":"a","ttl_ms":%d}`, ms)
			}
			time.Sleep(time.Second)
			want0 := s.figures().AtRisk
			if want0 == nil || *want0 != 0 {
				t.Errorf("nothing is held: %v at risk", want0)
			}
			by.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":30000,"details":{"host":"h","kind":"keeps"}}`)
			by.want(200, wire.Acquire, `{"name":"z","owner":"m","ttl_ms":30000,"details":{"host":"h","kind":"manual"}}`)
			time.Sleep(6 * time.Second)
			want("granted", "0", true) // a look has found it young
			renew(30_000)
			time.Sleep(6 * time.Second) // with a look since
			want("renewed", "0", true)
			time.Sleep(19 * time.Second)
			want("not renewed for long", "1", true)
			renew(30_000)
			time.Sleep(6 * time.Second)
			want("renewed again", "0", true)
			renew(12_000)
			time.Sleep(5100 * time.Millisecond) // with a look since
			want("made shorter", "0", true)
		})
	}
}

// A holder stays at risk when another one of its name has ended, which makes the look ask again.
func TestRiskBesideALeaseThatHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s, other := newBubble(t, lengthless{engine.Connect()}, nil), newBubble(t, engine.Connect(), nil)
		time.Sleep(time.Second) // until the first look is over
		const acquire = `{"name":"n","owner":%q,"mode":"shared","ttl_ms":30000,"details":{"host":"h","kind":"keeps"}}`
		s.want(200, wire.Acquire, acquire, "a")
		other.want(200, wire.Acquire, acquire, "b")
		time.Sleep(18 * time.Second)
		other.want(200, wire.Release, `{"name":"n","owner":"b"}`)
		time.Sleep(2 * time.Second) // with a look, which finds b gone
		if n := s.figures().AtRisk; n == nil || *n != 1 {
			t.Errorf("at risk: %v", n)
		}
	})
}

// A lease that a look finds old may have any length, so the answer says for how long no renewal was
// seen. A lease whose holder was killed after its grant is at risk.
func TestALeaseThatNobodyRenewedWhereTheStoreDoesNotSayLengths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		by := newBubble(t, engine.Connect(), nil)
		by.want(200, wire.Acquire, `{"name":"old","owner":"a","ttl_ms":90000,"details":{"program":"p"}}`)
		time.Sleep(20 * time.Second)
		s := newBubble(t, lengthless{engine.Connect()}, nil)
		time.Sleep(time.Second)
		by.want(200, wire.Acquire, `{"name":"young","owner":"b","ttl_ms":60000,"details":{"program":"p"}}`)
		by.want(200, wire.Acquire, `{"name":"curl","owner":"c","ttl_ms":60000}`)
		show := func(name string) wire.Holder { return told[wire.State](s, wire.Show+"?name="+name).Holders[0] }
		time.Sleep(40 * time.Second)
		if old := show("old"); old.TTL != 0 || old.Unseen < 40_000 || old.Unseen > 42_000 {
			t.Errorf("the old one: %+v", old)
		}
		if one := show("young"); one.TTL < 50_000 || one.TTL > 60_000 || one.Since < 30_000 || one.Unseen != 0 {
			t.Errorf("the young one: %+v", one)
		}
		if one := show("curl"); one.TTL != 0 || one.Unseen < 30_000 {
			t.Errorf("the one that nobody may mean to renew: %+v", one)
		}
		if n := s.figures().AtRisk; n == nil || *n != 1 {
			t.Errorf("at risk: %v", n)
		}
		time.Sleep(40 * time.Second)
		by.want(200, wire.Acquire, `{"name":"short","owner":"d","ttl_ms":4000,"details":{"program":"p"}}`)
		for range 11 {
			time.Sleep(time.Second)
			by.want(200, wire.Renew, `{"name":"short","owner":"d","ttl_ms":4000}`)
		}
		by.want(200, wire.Release, `{"name":"short","owner":"d"}`)
		time.Sleep(6 * time.Second)
		silent := map[string]bool{}
		for _, e := range told[wire.Entries](s, wire.History).Entries {
			if e.Kind == wire.EventEnded {
				silent[e.Name] = e.Silent != nil
				if e.Name == "young" && (e.Silent == nil || *e.Silent < 50_000) {
					t.Errorf("the young one: %+v", e)
				}
			}
		}
		if !silent["young"] || silent["curl"] || silent["short"] || len(silent) != 4 {
			t.Errorf("ended after a silence: %v", silent)
		}
	})
}
