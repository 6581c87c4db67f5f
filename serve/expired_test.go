package serve_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// An eviction at another instance is reported as one, with its reason, if the engine shows it to
// inspections. It does not matter whether anybody listens.
func TestEvictedElsewhere(t *testing.T) {
	t.Parallel()
	for _, heard := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.NewServer()
			s := newBubble(t, engine.Connect(), nil)
			other := newBubble(t, engine.Connect(), nil)
			if heard {
				go s.ServeHTTP(streamed{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, wire.Events, nil))
			}
			for _, after := range []string{"nobody", "b"} {
				name := "before-" + after
				other.want(200, wire.Acquire, `{"name":%q,"owner":"a","ttl_ms":60000,"call":1,"caller":"one"}`, name)
				if after != "nobody" {
					other.want(409, wire.Acquire, `{"name":%q,"owner":%q,"ttl_ms":60000,"queue":true,"call":1,"caller":"one"}`, name, after)
				}
				time.Sleep(6 * time.Second)
				other.want(200, wire.Evict, `{"name":%q,"owner":"a","reason":"it hangs"}`, name)
				if after != "nobody" {
					other.want(200, wire.Acquire, `{"name":%q,"owner":%q,"ttl_ms":60000,"call":2,"caller":"one"}`, name, after)
				}
				time.Sleep(6 * time.Second)
				found := s.history("kind=evicted,ended&name=" + name)
				if len(found.Entries) != 1 || found.Entries[0].Kind != wire.EventEvicted || found.Entries[0].Reason != "it hangs" {
					t.Errorf("heard %t, %s: told %+v", heard, name, found.Entries)
				}
			}
		})
	}
}

// A lease that ends after its TTL counts as expired only if no other instance can have renewed it.
// A look must have found so in the second half of the TTL since the last renewal here. The result
// is the same whether a look or a call finds it over.
func TestRenewedElsewhereIsNotExpired(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		about   string
		every   time.Duration // between looks
		at      time.Duration // after the first look, when it is granted
		first   time.Duration // for how long
		until   time.Duration // its end, when it is renewed
		renewed string        // where it is renewed, before it is released there
		called  bool          // by a call
		sole    bool          // nobody else uses the store
		want    string
	}{
		{"by a look, renewed elsewhere", 10 * time.Second, 1 * time.Second, 4 * time.Second, 1 * time.Second, "other", false, false, "granted a, ended a"},
		{"by a call, renewed elsewhere", 10 * time.Second, 1 * time.Second, 4 * time.Second, 1 * time.Second, "other", true, false, "granted a, ended a"},
		{"by a look, seen before it was renewed elsewhere", 20 * time.Second, 17 * time.Second, 14 * time.Second, 9 * time.Second, "other", false, false, "granted a, ended a"},
		{"by a look, renewed by nobody", 5 * time.Second, 1 * time.Second, 14 * time.Second, 0, "", false, false, "granted a, expired a"},
		{"by a call, renewed by nobody", 5 * time.Second, 1 * time.Second, 10 * time.Second, 0, "", true, false, "granted a, expired a"},
		{"by a call, with no look", -1, 1 * time.Second, 10 * time.Second, 0, "", true, false, "granted a, ended a"},
		{"by a look, not seen since it was renewed here", 20 * time.Second, 1 * time.Second, 30 * time.Second, 9 * time.Second, "here", false, false, "granted a, ended a"},
		{"by a look, which did not see it and which nobody else could renew", 20 * time.Second, 1 * time.Second, 4 * time.Second, 0, "", false, true, "granted a, expired a"},
		{"by a call, which nobody else could renew", 20 * time.Second, 1 * time.Second, 4 * time.Second, 0, "", true, true, "granted a, expired a"},
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.NewServer()
			s := newBubble(t, engine.Connect(), &serve.Options{History: serve.HistoryOptions{Every: c.every, Sole: c.sole}})
			other := newBubble(t, engine.Connect(), nil)
			time.Sleep(c.at)
			s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":%d,"call":1,"caller":"one"}`, c.first.Milliseconds())
			time.Sleep(c.first - c.until)
			switch c.renewed {
			case "other":
				other.want(200, wire.Renew, `{"name":"n","owner":"a","ttl_ms":120000,"call":2,"caller":"one"}`)
				time.Sleep(c.until + 300*time.Millisecond)
				other.want(200, wire.Release, `{"name":"n","owner":"a","call":3,"caller":"one"}`)
			case "here":
				s.want(200, wire.Renew, `{"name":"n","owner":"a","ttl_ms":5000,"call":2,"caller":"one"}`)
			}
			if c.called {
				time.Sleep(500 * time.Millisecond)
				s.want(410, wire.Release, `{"name":"n","owner":"a","call":4,"caller":"one"}`)
			}
			time.Sleep(30 * time.Second)
			if got := kinds(s.history("name=n")); got != c.want {
				t.Errorf("%s: told %s, want %s", c.about, got, c.want)
			}
		})
	}
}

// A lease before whose end the next was granted was released elsewhere.
func TestLeaseBeforeWhoseEndTheNextBegan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s, other := newBubble(t, engine.Connect(), nil), newBubble(t, engine.Connect(), nil)
		time.Sleep(time.Second) // until the first look is over
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":7000,"caller":"c","call":1}`)
		time.Sleep(5 * time.Second) // a look sees it in the second half of its TTL
		other.want(200, wire.Release, `{"name":"n","owner":"a","caller":"c","call":2,"answered":1}`)
		other.want(200, wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000}`)
		time.Sleep(6 * time.Second)
		all := s.history("name=n")
		if got := kinds(all); got != "granted a, ended a, granted b" {
			t.Fatalf("told %s", got)
		}
		if end, next := all.Entries[1], all.Entries[0]; end.Time != next.Time || end.Silent != nil || *end.Held != 5000 {
			t.Errorf("ended: %+v; the next: %+v", end, next)
		}
		s.wantMetric(`leasehold_service_lost_total{cause="expired"} 0`)
	})
}

// An ageless engine does not tell since when leases are held.
type ageless struct{ *memory.Driver }

func (d ageless) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	for i := range states {
		ageLess(states[i])
	}
	return states, next, err
}

func (d ageless) Inspect(ctx context.Context, name string) (driver.State, error) {
	state, err := d.Driver.Inspect(ctx, name)
	ageLess(state)
	return state, err
}

func ageLess(s driver.State) {
	for i := range s.Holders {
		s.Holders[i].Held = 0
	}
}

// A lease did not expire if this instance renewed the next one before that time, whoever has it, and
// even if the engine does not tell when it began.
func TestLeaseBeforeWhoseEndTheNextWasRenewed(t *testing.T) {
	t.Parallel()
	for what, next := range map[string]string{"the same owner's": "a", "another owner's": "b"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				s := newBubble(t, ageless{engine.Connect()}, &serve.Options{History: serve.HistoryOptions{Every: 20 * time.Second}})
				other := newBubble(t, engine.Connect(), nil)
				time.Sleep(12 * time.Second) // the first look is over
				s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":14000,"caller":"c","call":1}`)
				time.Sleep(10 * time.Second) // a look sees it in the second half of its TTL
				other.want(200, wire.Release, `{"name":"n","owner":"a","caller":"c","call":2,"answered":1}`)
				other.want(200, wire.Acquire, `{"name":"n","owner":%q,"ttl_ms":60000,"caller":"c","call":3,"answered":2}`, next)
				s.want(200, wire.Renew, `{"name":"n","owner":%q,"ttl_ms":60000,"caller":"c","call":4,"answered":3}`, next)
				time.Sleep(20 * time.Second)
				if got := kinds(s.history("name=n")); got != "granted a, ended a, granted "+next {
					t.Errorf("told %s", got)
				}
				s.wantMetric(`leasehold_service_lost_total{cause="expired"} 0`)
			})
		})
	}
}

// An eviction is of one lease: if the owner's next lease expires, that is a loss.
func TestLeaseAfterAnEvictedOneExpires(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		t.Run(fmt.Sprintf("granted elsewhere: %t", elsewhere), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				s := newBubble(t, engine.Connect(), &serve.Options{History: serve.HistoryOptions{Sole: true}})
				granting := s
				if elsewhere {
					granting = newBubble(t, engine.Connect(), nil)
				}
				const lease = `{"name":"n","owner":"a","ttl_ms":500}`
				time.Sleep(time.Second) // until the first look is over
				s.want(200, wire.Acquire, lease)
				s.want(200, wire.Evict, `{"name":"n","owner":"a"}`)
				s.want(410, wire.Renew, lease)
				granting.want(200, wire.Acquire, lease)
				s.want(200, wire.Renew, lease)
				time.Sleep(600 * time.Millisecond)
				s.wantCode(wire.CodeLost, wire.Renew, lease)
				if !elsewhere {
					s.wantHistory("name=n", "granted a, evicted a, granted a, expired a")
				}
			})
		})
	}
}

// A lease whose owner holds anew before a look finds its end has ended all the same, whether
// another instance grants both or this one.
func TestLeaseWhoseOwnerHoldsAnewHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s, other := newBubble(t, engine.Connect(), nil), newBubble(t, engine.Connect(), nil)
		time.Sleep(time.Second) // until the first look is over
		const acquire = `{"name":"n","owner":"a","ttl_ms":600000,"caller":"c","call":%d,"answered":%d}`
		const release = `{"name":"n","owner":"a","caller":"c","call":%d,"answered":%d}`
		other.want(200, wire.Acquire, acquire, 1, 0)
		time.Sleep(6 * time.Second)
		other.want(200, wire.Release, release, 2, 1)
		other.want(200, wire.Acquire, acquire, 3, 2)
		time.Sleep(6 * time.Second)
		all := s.history("name=n")
		if got := kinds(all); got != "granted a, ended a, granted a" {
			t.Fatalf("told %s", got)
		}
		if first, end := all.Entries[2], all.Entries[1]; end.Token != first.Token || end.Held == nil || *end.Held > 6100 {
			t.Errorf("ended: %+v", end)
		}
		other.want(200, wire.Release, release, 4, 3)
		time.Sleep(6 * time.Second)
		if all := s.history("name=n&kind=ended"); len(all.Entries) != 2 || all.Entries[0].Token == all.Entries[1].Token {
			t.Errorf("ended: %+v", all.Entries)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, memory.New(), &serve.Options{History: serve.HistoryOptions{Sole: true}})
		time.Sleep(500 * time.Millisecond) // until the first look is over
		for _, ttl := range []int{1000, 600_000} {
			s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":%d}`, ttl)
			time.Sleep(3 * time.Second)
		}
		time.Sleep(6 * time.Second)
		all := s.history("name=n")
		if got := kinds(all); got != "granted a, expired a, granted a" {
			t.Fatalf("told %s", got)
		}
		if e := all.Entries[1]; *e.Held != 1000 || e.Token != all.Entries[2].Token {
			t.Errorf("expired: %+v", e)
		}
		s.wantMetric(`leasehold_service_lost_total{cause="expired"} 1`)
	})
}

// numbered returns what happened to which lease, the oldest first. It numbers leases as they
// occur.
func numbered(all wire.Entries) string {
	var tokens, told []string
	for _, e := range slices.Backward(all.Entries) {
		if !slices.Contains(tokens, e.Token) {
			tokens = append(tokens, e.Token)
		}
		told = append(told, fmt.Sprint(e.Kind, " ", 1+slices.Index(tokens, e.Token)))
	}
	return strings.Join(told, ", ")
}

// The history tells the end of a lease with its own token, whatever its owner holds by then, and
// whichever instance granted it.
func TestEndsAreToldOfTheLeaseThatEnded(t *testing.T) {
	t.Parallel()
	const evict, short, long = `{"name":"n","owner":"a","reason":"r"}`, 1000, 600_000
	const lasts = `{"name":"n","owner":"a","ttl_ms":%d,"caller":"c","call":%d,"answered":%d}`
	const release = `{"name":"n","owner":"a","caller":"c","call":%d,"answered":%d}`
	evicting := func(s bubble, d *locktest.Faulty, code string) (applies, answers chan struct{}) {
		applies, answers = make(chan struct{}), make(chan struct{})
		d.Next(locktest.OpEvict, func(_ context.Context, apply func() error) error {
			<-applies
			err := apply()
			<-answers
			return err
		})
		go s.wantCode(code, wire.Evict, evict)
		synctest.Wait()
		return applies, answers
	}
	for what, c := range map[string]struct {
		does    func(s, other bubble, d *locktest.Faulty)
		want    string
		expired int
	}{
		"a release after a look": {func(s, other bubble, _ *locktest.Faulty) {
			s.want(200, wire.Acquire, lasts, long, 1, 0)
			other.want(200, wire.Release, release, 2, 1)
			other.want(200, wire.Acquire, lasts, long, 3, 2)
			time.Sleep(6 * time.Second)
			s.want(200, wire.Release, release, 4, 3)
		}, "granted 1, ended 1, granted 2, released 2", 0},
		"a release before a look": {func(s, other bubble, _ *locktest.Faulty) {
			s.want(200, wire.Acquire, lasts, short, 1, 0)
			time.Sleep(1500 * time.Millisecond)
			other.want(200, wire.Acquire, lasts, long, 2, 1)
			s.want(200, wire.Renew, lasts, long, 3, 2)
			s.want(200, wire.Release, release, 4, 3)
		}, "granted 1, expired 1, released 2", 1},
		"an eviction before a look": {func(s, other bubble, _ *locktest.Faulty) {
			s.want(200, wire.Acquire, lasts, short, 1, 0)
			time.Sleep(1500 * time.Millisecond)
			other.want(200, wire.Acquire, lasts, long, 2, 1)
			s.want(200, wire.Evict, evict)
		}, "granted 1, expired 1, evicted 2", 1},
		"an eviction elsewhere, after a renewal and before a look": {func(s, other bubble, _ *locktest.Faulty) {
			s.want(200, wire.Acquire, lasts, long, 1, 0)
			other.want(200, wire.Release, release, 2, 1)
			other.want(200, wire.Acquire, lasts, long, 3, 2)
			s.want(200, wire.Renew, lasts, long, 4, 3)
			other.want(200, wire.Evict, evict)
			time.Sleep(6 * time.Second)
			s.wantCode(wire.CodeEvicted, wire.Renew, lasts, long, 5, 4)
		}, "granted 1, ended 1, evicted 2", 0},
		"a grant during an eviction": {func(s, other bubble, d *locktest.Faulty) {
			s.want(200, wire.Acquire, lasts, long, 1, 0)
			other.want(200, wire.Release, release, 2, 1)
			other.want(200, wire.Acquire, lasts, long, 3, 2)
			applies, answers := evicting(s, d, "")
			s.want(200, wire.Acquire, lasts, long, 4, 3)
			close(applies)
			close(answers)
		}, "granted 1, ended 1, granted 2, evicted 2", 0},
		"a grant during an eviction that finds no lease": {func(s, other bubble, d *locktest.Faulty) {
			s.want(200, wire.Acquire, lasts, long, 1, 0)
			applies, answers := evicting(s, d, wire.CodeLost)
			other.want(200, wire.Release, release, 2, 1)
			close(applies)
			synctest.Wait()
			s.want(200, wire.Acquire, lasts, long, 3, 2)
			close(answers)
		}, "granted 1, granted 2, ended 1", 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := locktest.NewFaulty(engine.Connect())
				s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Sole: true}})
				other := newBubble(t, engine.Connect(), nil)
				time.Sleep(time.Second) // until the first look is over
				c.does(s, other, d)
				time.Sleep(6 * time.Second)
				if got := numbered(s.history("name=n")); got != c.want {
					t.Errorf("told %s, want %s", got, c.want)
				}
				s.wantMetric(`leasehold_service_lost_total{cause="expired"} %d`, c.expired)
			})
		})
	}
}

// A lease that an instance renews after its owner has got it anew elsewhere ends once.
func TestLeaseThatIsRenewedHereAfterItWasGrantedAnewElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s := newBubble(t, engine.Connect(), &serve.Options{History: serve.HistoryOptions{Sole: true}})
		other := newBubble(t, engine.Connect(), nil)
		time.Sleep(time.Second) // until the first look is over
		other.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":7000}`)
		time.Sleep(8 * time.Second)
		other.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":7000}`)
		s.want(200, wire.Renew, `{"name":"n","owner":"a","ttl_ms":7000}`)
		time.Sleep(14 * time.Second)
		s.wantHistory("name=n", "granted a, ended a, granted a, expired a")
	})
}

// A terse engine tells no fences to operators, and does not report the ends of leases by itself.
type terse struct{ *locktest.Faulty }

func (d terse) Claim(req driver.Request) (driver.Claim, error) {
	req.Lost = nil
	return d.Faulty.Claim(req)
}

func (d terse) Inspect(ctx context.Context, name string) (driver.State, error) {
	state, err := d.Faulty.Inspect(ctx, name)
	for i := range state.Holders {
		state.Holders[i].Fence = 0
	}
	return state, err
}

// If an eviction hits a lease while a call here waits for the store's answer about it, that call
// reports the eviction. If this instance has evicted it, it is recorded once.
func TestEvictionBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	const lease = `{"name":"n","owner":"o","ttl_ms":60000}`
	elsewhere := func(_, there bubble) { there.want(200, wire.Acquire, lease) }
	for what, c := range map[string]struct {
		granted func(here, there bubble)
		op      locktest.Op // answered late
		path    string
		told    string
	}{
		"to a repeated acquire": {elsewhere, locktest.OpRenew, wire.Acquire, "evicted 1"},
		"to a renewal":          {elsewhere, locktest.OpRenew, wire.Renew, "evicted 1"},
		"about the mode": {func(here, there bubble) {
			here.want(200, wire.Acquire, lease)
			there.want(200, wire.Evict, `{"name":"n","owner":"o"}`)
			there.want(200, wire.Acquire, lease)
		}, locktest.OpInspect, wire.Acquire, "evicted 1, evicted 2"}, // the first one there
	} {
		for how, by := range map[string]struct{ there, terse bool }{
			"evicted here": {}, "evicted there": {there: true}, "evicted here, by a terse engine": {terse: true},
		} {
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					engine := memory.NewServer()
					d := locktest.NewFaulty(engine.Connect())
					connected := driver.Driver(d)
					if by.terse {
						connected = terse{d}
					}
					here := newBubble(t, connected, &serve.Options{History: serve.HistoryOptions{Every: time.Hour}})
					there := newBubble(t, engine.Connect(), nil)
					time.Sleep(time.Second) // until the first look is over
					c.granted(here, there)
					time.Sleep(time.Second) // earlier evictions are earlier
					goes, answered := make(chan struct{}), make(chan struct{})
					d.Next(c.op, func(_ context.Context, apply func() error) error {
						err := apply()
						<-goes
						return err
					})
					go func() {
						defer close(answered)
						here.wantCode(wire.CodeEvicted, c.path, lease)
					}()
					synctest.Wait()
					time.Sleep(time.Second) // the call is earlier
					evicting := here
					if by.there {
						evicting = there
					}
					evicting.want(200, wire.Evict, `{"name":"n","owner":"o","reason":"r"}`)
					close(goes)
					<-answered
					here.wantCode(wire.CodeEvicted, wire.Renew, lease)
					want := c.told
					if by.terse {
						want, _, _ = strings.Cut(want, ",") // an eviction without a token counts for the lease that is known
					}
					if got := numbered(here.history("name=n&kind=evicted,ended,expired")); got != want && !by.there {
						t.Errorf("told %s, want %s", got, want)
					}
				})
			})
		}
	}
}

// A lease is evicted while its owner acquires again, before the engine grants another. The owner is
// told of the eviction, and the new lease does not stay with nobody.
func TestEvictionBeforeTheNextGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		d := locktest.NewFaulty(engine.Connect())
		here, there := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
		const lease = `{"name":"n","owner":"o","ttl_ms":60000}`
		here.want(200, wire.Acquire, lease)
		time.Sleep(time.Second)
		goes, answered := make(chan struct{}), make(chan struct{})
		d.Next(locktest.OpTry, func(_ context.Context, apply func() error) error { <-goes; return apply() })
		go func() {
			defer close(answered)
			here.wantCode(wire.CodeEvicted, wire.Acquire, lease)
		}()
		synctest.Wait()
		time.Sleep(time.Second) // the call is earlier
		there.want(200, wire.Evict, `{"name":"n","owner":"o","reason":"r"}`)
		close(goes)
		<-answered
		there.want(200, wire.Acquire, `{"name":"n","owner":"next","ttl_ms":60000}`)
	})
}

// If a waiter's lease is evicted before the answer that grants it, the waiter has neither the lease
// nor its place.
func TestWaiterThatIsEvictedBeforeTheAnswerHasNoPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		d := locktest.NewFaulty(engine.Connect())
		here := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Every: -1}})
		there := newBubble(t, engine.Connect(), nil)
		const waiter = `{"name":"n","owner":"a","ttl_ms":60000,"queue":true}`
		there.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
		here.want(409, wire.Acquire, waiter)
		there.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
		goes, answered := make(chan struct{}), make(chan struct{})
		d.Next(locktest.OpTry, func(_ context.Context, apply func() error) error {
			err := apply()
			<-goes
			return err
		})
		go func() {
			defer close(answered)
			here.wantCode(wire.CodeEvicted, wire.Acquire, waiter)
		}()
		synctest.Wait()
		here.want(200, wire.Evict, `{"name":"n","owner":"a"}`)
		close(goes)
		<-answered
		if n := here.figures().Waiting; n > 0 {
			t.Errorf("%d waiting", n)
		}
		there.want(200, wire.Acquire, `{"name":"n","owner":"next","ttl_ms":60000}`)
		here.want(409, wire.Acquire, waiter)
		if got := kinds(here.history("name=n")); got != "waiting a, evicted a, waiting a" {
			t.Errorf("told %s", got)
		}
	})
}
