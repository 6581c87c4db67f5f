package serve_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// placeless lists no waiters, as some engines do, or nothing at all.
type placeless struct {
	*memory.Driver
	fails atomic.Bool
}

func (d *placeless) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	for i := range states {
		states[i].Waiters = nil
	}
	if d.fails.Load() {
		err = errors.New("no answer")
	}
	return states, next, err
}

// A place that no look has seen ends some time after the last call of its caller. It is kept while
// the caller calls.
func TestPlacesThatNoLookSawEnd(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &placeless{Driver: memory.New()}
			d.fails.Store(fails)
			s := newBubble(t, d, nil)
			s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000}`)
			for _, owner := range []string{"b", "c", "d", "w"} {
				s.want(409, wire.Acquire, `{"name":"n","owner":%q,"ttl_ms":60000,"wait_ms":100}`, owner)
			}
			for range 10 {
				time.Sleep(10 * time.Second)
				s.want(409, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"wait_ms":100}`)
			}
			got := kinds(s.history("kind=waiting,left"))
			for _, want := range []string{"left b", "left c", "left d"} {
				if strings.Count(got, want) != 1 {
					t.Errorf("looks fail: %t: told %s, want %s once", fails, got, want)
				}
			}
			if strings.Count(got, "waiting") != 4 || strings.Count(got, "left") != 3 {
				t.Errorf("looks fail: %t: told %s", fails, got)
			}
			s.want(200, wire.Release, `{"name":"n","owner":"a"}`)
			s.want(200, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":600000,"queue":true}`)
			if all := s.history("kind=granted"); *all.Entries[0].Waited < 100_000 {
				t.Errorf("granted after %d ms", *all.Entries[0].Waited)
			}
		})
	}
}

// A waiter that gives up may say for how long its lease would have kept the name. It has none, so
// its place goes, and nothing stays taken.
func TestPlaceGoesWithAReleaseThatKeepsALease(t *testing.T) {
	t.Parallel()
	const queues = `{"name":"n","owner":"w","ttl_ms":60000,"queue":true,"at_least_ms":60000%s}`
	for what, c := range map[string]struct{ before, more, release string }{
		"alone":                    {"", "", `"at_least_ms":60000`},
		"kept out for late calls":  {"", `,"caller":"c","call":1`, `"at_least_ms":60000,"caller":"c","call":3`},
		"lost its lease unnoticed": {`{"name":"n","owner":"w","ttl_ms":1000,"at_least_ms":60000}`, "", `"linger_ms":0`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newBubble(t, memory.New(), nil)
				if c.before != "" {
					s.want(200, wire.Acquire, "%s", c.before)
					time.Sleep(1500 * time.Millisecond)
				}
				s.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
				s.want(409, wire.Acquire, queues, c.more)
				s.want(200, wire.Release, `{"name":"n","owner":"w",%s}`, c.release)
				if places := told[wire.State](s, "/v1/lock?name=n").Waiters; len(places) > 0 {
					t.Errorf("waiting: %+v", places)
				}
				s.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
				s.want(200, wire.Acquire, `{"name":"n","owner":"next","ttl_ms":60000}`)
			})
		})
	}
}

// A waiter that is removed, queues again at another instance and then gives up is not reported as
// removed.
func TestGivingUpAfterARemovalIsNoRemoval(t *testing.T) {
	t.Parallel()
	for _, later := range []time.Duration{0, time.Millisecond} { // a look sees the place at once, and does not know its age
		synctest.Test(t, func(t *testing.T) { givesUpAfterARemoval(t, later) })
	}
}

func givesUpAfterARemoval(t *testing.T, later time.Duration) {
	engine := memory.NewServer()
	here, there := newBubble(t, engine.Connect(), often), newBubble(t, engine.Connect(), often)
	here.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":600000}`)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		here.wantCode(wire.CodeEvicted, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"wait_ms":60000}`)
	}()
	synctest.Wait()
	here.want(200, wire.Remove, `{"name":"n","owner":"w","reason":"wrong branch"}`)
	<-answered
	time.Sleep(20*time.Second + later) // the claim here is forgotten
	there.want(409, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"queue":true}`)
	time.Sleep(lookedBy)
	here.want(200, wire.Release, `{"name":"n","owner":"w"}`)
	all := here.wantHistory("kind=waiting,left", "waiting w, left w, waiting w, left w")
	for i, want := range []string{"", "wrong branch"} { // newest first
		if e := all.Entries[2*i]; e.Reason != want {
			t.Errorf("%s: reason %q, want %q", e.Kind, e.Reason, want)
		}
	}
}

// Places whose release had no answer are not released again when their claims are forgotten: they have ended by then, and
// a store that hangs would hold up the end of the service for each.
func TestPlacesWithoutAnAnswerAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := locktest.NewFaulty(memory.New())
		s := newBubble(t, d, nil)
		s.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":600000}`)
		d.Always(locktest.OpRelease, locktest.HangRequest)
		for range 3 {
			s.want(409, wire.Acquire, `{"name":"n","ttl_ms":60000,"wait_ms":1000}`)
		}
		before := d.Calls(locktest.OpRelease)
		time.Sleep(time.Minute)
		if n := d.Calls(locktest.OpRelease) - before; n > 0 {
			t.Errorf("%d releases of places that have ended", n)
		}
	})
}

// untold is an engine that tells nobody of a loss.
type untold struct{ *memory.Driver }

func (d untold) Claim(req driver.Request) (driver.Claim, error) {
	req.Lost = nil
	return d.Driver.Claim(req)
}

// A lease that does not linger because it was lost is lost, although the release of a place has no answer.
func TestLossIsToldThoughNoPlaceIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := locktest.NewFaulty(untold{memory.New()})
		s := newBubble(t, d, nil)
		s.want(200, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":1500,"at_least_ms":60000}`)
		time.Sleep(1600 * time.Millisecond) // claims are forgotten each second
		d.Next(locktest.OpRelease, locktest.LoseRequest)
		s.want(410, wire.Release, `{"name":"n","owner":"w"}`)
		if n := d.Calls(locktest.OpRelease); n != 1 {
			t.Errorf("%d releases of a place, want 1", n)
		}
	})
}
