package serve_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A reservation is a lease of a person. Others see who has it and why, its owner can end it, and
// the history distinguishes it from other grants.
func TestReserve(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	name := func(*http.Request) (*serve.Client, error) {
		return &serve.Client{Name: "anna", Rules: []serve.Rule{{Prefix: "n", Rights: []serve.Right{serve.View, serve.Lock, serve.Evict}}}}, nil
	}
	s := start(t, engine, &serve.Options{Client: name})
	a := s.post(wire.Reserve, `{"name":"n","reason":"migrating the database"}`).want(t, 200, "")
	if a.grant.Owner == "" || a.grant.Token == "" || a.grant.TTL != 8*60*60*1000 {
		t.Fatalf("granted %+v", a.grant)
	}
	busy := s.post(wire.Acquire, `{"name":"n","ttl_ms":1000}`).want(t, 409, "busy")
	if d := details.Of(busy.Holder.Note); !strings.Contains(busy.Holder.Note, "migrating the database") || d.Kind != "" && (d.User != "anna" || d.Kind != details.Reserved) {
		t.Errorf("held by %+v", busy.Holder)
	}
	s.post(wire.Reserve, `{"name":"n","reason":"me too","wait_ms":10}`).want(t, 409, "busy")
	all := s.history("name=n&kind=reserved,granted")
	if len(all.Entries) != 1 || all.Entries[0].Kind != wire.Reserved || all.Entries[0].By != "anna" || all.Entries[0].Reason != "migrating the database" || all.Entries[0].Details == nil || all.Entries[0].Details.User != "anna" {
		t.Errorf("%+v", all.Entries)
	}
	s.post(wire.Reset, `{"name":"n"}`).want(t, 409, "busy")
	s.post(wire.Release, `{"name":"n","owner":%q}`, a.grant.Owner).want(t, 200, "")
	s.post(wire.Reserve, `{"name":"n","reason":"again","user":"bob","for_ms":60000,"wait_ms":20000}`).want(t, 200, "")
	if all := s.history("kind=reserved"); all.Entries[0].Details.User != "bob" {
		t.Errorf("%+v", all.Entries[0])
	}
	for body, code := range map[string]string{
		`{"name":"n"}`: "invalid", `{"name":"n","reason":" "}`: "invalid", `{"name":"n","reason":"r","for_ms":-1}`: "invalid",
		`{"name":"","reason":"r"}`: "invalid_name", `{"name":"other","reason":"r"}`: "denied",
	} {
		if a := s.post(wire.Reserve, "%s", body); a.Code != code || a.Outcome != wire.Refused {
			t.Errorf("%s: %s", body, a.text)
		}
	}
}

// hanging ties leases to a session.
type hanging struct{ driver.Driver }

func (d hanging) Features() driver.Features {
	f := d.Driver.Features()
	f.SessionTTL, f.Resumes = f.MinTTL+1, false
	return f
}

// A name is reserved for its whole length only once the answer can tell its owner.
func TestReservationWithoutAnAnswerIsShort(t *testing.T) {
	t.Parallel()
	const reserve, acquire = `{"name":"n","reason":"r","for_ms":3600000}`, `{"name":"n","owner":"other","ttl_ms":60000}`
	for what, c := range map[string]struct {
		lost   []locktest.Op
		status int
		free   bool // a minute later
	}{
		"reserved": {nil, 200, false},
		"no answer to acquire, nor to its release": {[]locktest.Op{locktest.OpTry, locktest.OpRelease}, 503, true},
		"no answer to its extension":               {[]locktest.Op{locktest.OpRenew}, 503, true},
		"no answer to that, nor to its release":    {[]locktest.Op{locktest.OpRenew, locktest.OpRelease}, 503, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := locktest.NewFaulty(memory.New())
				s := newBubble(t, d, nil)
				for _, op := range c.lost {
					fault := locktest.LoseReply
					if op == locktest.OpRelease {
						fault = locktest.LoseRequest
					}
					d.Next(op, fault)
				}
				s.want(c.status, wire.Reserve, reserve)
				if time.Sleep(62 * time.Second); c.free {
					s.want(200, wire.Acquire, acquire)
					return
				}
				s.want(409, wire.Acquire, acquire)
				time.Sleep(time.Hour)
				s.want(200, wire.Acquire, acquire)
			})
		})
	}
}

// An extension that the store cannot answer yet is no refusal: the name is held.
func TestReservationThatCannotBeExtendedYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := locktest.NewFaulty(memory.New())
		s := newBubble(t, d, nil)
		d.Next(locktest.OpRenew, func(context.Context, func() error) error { return driver.ErrNotYet })
		d.Next(locktest.OpRelease, locktest.LoseRequest)
		s.wantCode(wire.CodeUnknown, wire.Reserve, `{"name":"n","reason":"r","for_ms":3600000}`)
		s.want(409, wire.Acquire, `{"name":"n","owner":"other","ttl_ms":60000}`)
	})
}

// If leases depend on a session of the instance, hours cannot be promised to anybody.
func TestReserveNeedsLeasesOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := startOn(t, hanging{memory.New()}, nil)
	s.post(wire.Reserve, `{"name":"n","reason":"r"}`).want(t, 501, "unsupported")
	if me := ask[wire.Identity](t, s.url+wire.Me); me.Reserves {
		t.Errorf("%+v", me)
	}
}

// A reset ends holds without an owner, and nothing that somebody holds.
func TestReset(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Reset, `{"name":"n"}`).want(t, 409, "busy")
	s.post(wire.Release, `{"name":"n","owner":"a","linger_ms":60000}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000}`).want(t, 409, "busy")
	s.post(wire.Reset, `{"name":"n"}`).want(t, 200, "")
	s.post(wire.Reset, `{"name":"n"}`).want(t, 200, "") // there is nothing to reset
	s.post(wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000}`).want(t, 200, "")
	s.wantHistory("name=n", "granted a, released a, reset, granted b")
	s.post(wire.Reset, `{"name":""}`).want(t, 400, "invalid_name")
}

// A reset with a token ends the holds with that token or a smaller one. It spares a run that has finished since.
func TestResetOfThePeriodThatIsMeant(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	run := func(owner string) (token string) {
		s.post(wire.Acquire, `{"name":"n","owner":%q,"ttl_ms":60000}`, owner).want(t, 200, "")
		s.post(wire.Release, `{"name":"n","owner":%q,"linger_ms":60000}`, owner).want(t, 200, "")
		return ask[wire.State](t, s.url+wire.Show+"?name=n").Holders[0].Token
	}
	first := run("a")
	s.post(wire.Reset, `{"name":"n"}`).want(t, 200, "")
	second := run("b")
	s.post(wire.Reset, `{"name":"n","token":%q}`, first).want(t, 410, "lost")
	s.post(wire.Acquire, `{"name":"n","owner":"c","ttl_ms":60000}`).want(t, 409, "busy")
	s.post(wire.Reset, `{"name":"n","token":"b"}`).want(t, 400, "invalid")
	s.post(wire.Reset, `{"name":"n","token":%q}`, second).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"n","owner":"c","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Reset, `{"name":"n","token":%q}`, second).want(t, 409, "busy")
}

// reusedAtOnce grants a name again as soon as its hold without an owner has ended.
type reusedAtOnce struct {
	*memory.Driver
	grant func()
}

func (d *reusedAtOnce) Evict(ctx context.Context, name, owner, reason string) error {
	err := d.Driver.Evict(ctx, name, owner, reason)
	d.grant()
	return err
}

// The history has one entry for a reset, whichever call makes it. It succeeds even if a waiter is
// granted the name at once.
func TestResetIsOneInTheHistory(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	d := &reusedAtOnce{Driver: engine.Connect()}
	s, other := startOn(t, d, often), start(t, engine, nil)
	next := 0
	d.grant = func() {
		if next++; next == 1 {
			other.post(wire.Acquire, `{"name":"n1","owner":"next","ttl_ms":60000}`).want(t, 200, "")
		}
	}
	for i, path := range []string{wire.Reset, wire.Evict} {
		s.post(wire.Acquire, `{"name":"n%d","owner":"a","ttl_ms":60000}`, i+1).want(t, 200, "")
		s.post(wire.Release, `{"name":"n%d","owner":"a","linger_ms":60000}`, i+1).want(t, 200, "")
		s.post(path, `{"name":"n%d"}`, i+1).want(t, 200, "")
	}
	if got := kinds(s.history("kind=reset,evicted")); got != "reset, reset" {
		t.Errorf("told %s", got)
	}
	s.post(wire.Reset, `{"name":"n1"}`).want(t, 409, "busy")
}

// slowlyInspected answers an Inspect late, with what was then, and counts evictions.
type slowlyInspected struct {
	*memory.Driver
	took    time.Duration
	evicted int
}

func (d *slowlyInspected) Inspect(ctx context.Context, name string) (driver.State, error) {
	state, err := d.Driver.Inspect(ctx, name)
	time.Sleep(d.took)
	return state, err
}

func (d *slowlyInspected) Evict(ctx context.Context, name, owner, reason string) error {
	d.evicted++
	return d.Driver.Evict(ctx, name, owner, reason)
}

// A reset ends nothing if what it has seen is old: another run may have finished since.
func TestResetEndsNothingAfterAStandstill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &slowlyInspected{Driver: memory.New()}
		s := newBubble(t, d, nil)
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
		s.want(200, wire.Release, `{"name":"n","owner":"a","linger_ms":60000}`)
		d.took = 4 * time.Second
		s.wantCode(wire.CodeUnknown, wire.Reset, `{"name":"n","token":"9223372036854775807"}`)
		if d.took = 0; d.evicted > 0 {
			t.Errorf("%d evictions", d.evicted)
		}
		s.want(200, wire.Reset, `{"name":"n","token":"9223372036854775807"}`)
	})
}

// A reset whose eviction takes too long ends nothing, because another run may have finished since.
func TestResetIsNotServedLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := locktest.NewFaulty(memory.New())
		s := newBubble(t, d, nil)
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
		s.want(200, wire.Release, `{"name":"n","owner":"a","linger_ms":60000}`)
		d.Next(locktest.OpEvict, func(ctx context.Context, apply func() error) error {
			select {
			case <-time.After(4 * time.Second):
				return apply()
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		s.wantCode(wire.CodeUnknown, wire.Reset, `{"name":"n"}`)
		s.want(409, wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000}`)
		s.want(200, wire.Reset, `{"name":"n"}`)
	})
}

// A reset is in the history even if the instance could not look at the name again.
func TestResetWithoutASecondLookIsInTheHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := locktest.NewFaulty(memory.New())
		s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Every: time.Hour}})
		time.Sleep(time.Second) // until the first look is over
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
		s.want(200, wire.Release, `{"name":"n","owner":"a","linger_ms":60000}`)
		d.Next(locktest.OpInspect, nil, locktest.LoseRequest)
		s.wantCode(wire.CodeUnknown, wire.Reset, `{"name":"n"}`)
		s.want(200, wire.Reset, `{"name":"n"}`)
		if got := kinds(s.history("kind=reset")); got != "reset" {
			t.Errorf("told %s", got)
		}
	})
}
