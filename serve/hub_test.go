package serve_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// asked counts the service's calls to an engine.
type asked struct {
	*memory.Driver
	lists, others atomic.Int64 // others: for names that begin with b/
	fails         atomic.Bool
	misses        atomic.Bool // the next List finds nothing
	mute          atomic.Bool // Inspect fails
}

func (d *asked) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	d.lists.Add(1)
	if d.fails.Load() {
		return nil, "", errors.New("no answer")
	}
	if d.misses.Swap(false) {
		return nil, "", nil
	}
	return d.Driver.List(ctx, prefix, after, limit)
}

func (d *asked) Inspect(ctx context.Context, name string) (driver.State, error) {
	if strings.HasPrefix(name, "b/") {
		d.others.Add(1)
	}
	if d.mute.Load() {
		return driver.State{}, errors.New("no answer")
	}
	return d.Driver.Inspect(ctx, name)
}

// The engine is not asked one by one for names without listeners, whether this instance grants them
// or somebody has listened to them before. Otherwise events for other listeners would be late.
func TestNamesThatNobodyHearsOfAreNotAskedFor(t *testing.T) {
	t.Parallel()
	d := &asked{Driver: memory.NewServer().Connect()}
	s := startOn(t, d, nil)
	grant := func(from, to int) {
		for i := from; i < to; i++ {
			s.post(wire.Acquire, `{"name":"b/%d","owner":"owner","ttl_ms":60000}`, i).want(t, 200, "")
		}
	}
	looks := func(what string) {
		t.Helper()
		before, lists := d.others.Load(), d.lists.Load()
		eventually(t, "three looks", func() bool { return d.lists.Load() > lists+3 })
		if n := d.others.Load() - before; n > 0 {
			t.Errorf("%s: asked %d times for a name that nobody listens to", what, n)
		}
	}
	s.listen("a/")
	grant(0, 20)
	looks("granted here")

	all, leave := s.hear("")
	grant(20, 21)
	if kind, e := all(); kind != wire.EventGranted || e.Name != "b/20" {
		t.Errorf("told %s %+v", kind, e)
	}
	leave()
	eventually(t, "the listener has left", func() bool { return strings.Contains(s.get("/metrics"), "leasehold_listeners 1\n") })
	lists := d.lists.Load()
	eventually(t, "a look that knows it", func() bool { return d.lists.Load() > lists+2 })
	looks("listened to before")
}

// A stream opens when all later events are reported, not before. While the engine does not list
// leases, an end goes unnoticed.
func TestStreamIsNotOpenBeforeTheEngineAnswers(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	d := &asked{Driver: engine.Connect()}
	s, other := startOn(t, d, nil), start(t, engine, nil)
	other.post(wire.Acquire, `{"name":"n","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	d.fails.Store(true)
	resp, err := http.Get(s.url + wire.Events)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := make(chan string, 100)
	go func() {
		for all := bufio.NewScanner(resp.Body); all.Scan(); {
			lines <- all.Text()
		}
		close(lines)
	}()
	next := func() string {
		for line := range lines {
			if kind, ok := strings.CutPrefix(line, "event: "); ok {
				return kind
			}
		}
		return "the end"
	}
	seen := d.lists.Load()
	eventually(t, "the engine is asked again", func() bool { return d.lists.Load() > seen+1 })
	for len(lines) > 0 {
		if line := <-lines; strings.HasPrefix(line, "event: ") {
			t.Fatalf("before the engine has answered: %s", line)
		}
	}
	d.fails.Store(false)
	if kind := next(); kind != wire.EventOpen {
		t.Fatalf("told %s", kind)
	}
	other.post(wire.Release, `{"name":"n","owner":"owner"}`).want(t, 200, "")
	if kind := next(); kind != wire.EventEnded {
		t.Errorf("told %s", kind)
	}
}

// If many leases end at once, all ends are reported.
func TestManyEndsAreTold(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	next := a.listen("")
	const many = 500
	for i := range many {
		b.post(wire.Acquire, `{"name":"n/%d","owner":"owner","ttl_ms":30000}`, i).want(t, 200, "")
	}
	kinds := map[string]int{}
	for range many {
		kind, _ := next()
		kinds[kind]++
	}
	for i := range many {
		b.post(wire.Release, `{"name":"n/%d","owner":"owner"}`, i).want(t, 200, "")
	}
	for range many {
		kind, _ := next()
		kinds[kind]++
	}
	if fmt.Sprint(kinds) != fmt.Sprintf("map[ended:%d granted:%[1]d]", many) {
		t.Errorf("told %v", kinds)
	}
}

// An instance that has neither granted nor renewed a lease reports its release at once.
func TestReleaseOfALeaseGrantedElsewhereIsTold(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	next := b.listen("")
	a.post(wire.Acquire, `{"name":"n","owner":"owner","ttl_ms":60000,"note":"by a"}`).want(t, 200, "")
	kind, granted := next()
	if kind != wire.EventGranted {
		t.Fatalf("told %s", kind)
	}
	b.post(wire.Release, `{"name":"n","owner":"owner"}`).want(t, 200, "")
	if kind, e := next(); kind != wire.EventReleased || e != granted {
		t.Errorf("told %s %+v, want released %+v", kind, e, granted)
	}
	a.post(wire.Acquire, `{"name":"n","owner":"other","ttl_ms":60000}`).want(t, 200, "")
	next()
	b.post(wire.Acquire, `{"name":"n","owner":"waiter","ttl_ms":60000,"queue":true}`).want(t, 409, "busy")
	b.post(wire.Release, `{"name":"n","owner":"waiter"}`).want(t, 200, "") // a place, no lease
	b.post(wire.Release, `{"name":"n","owner":"other"}`).want(t, 200, "")
	if kind, e := next(); kind != wire.EventReleased || e.Handle != wire.Handle("other") {
		t.Errorf("told %s %+v", kind, e)
	}
}

// For the history alone, only a few of many ended leases are asked for one by one: with nobody
// listening, or with a listener to other names.
func TestHistoryDoesNotAskForEachEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many, few = 500, 20
		engine := memory.NewServer()
		d := &asked{Driver: engine.Connect()}
		s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
		for _, owner := range []string{"a", "b"} { // during the second, somebody listens to other names
			time.Sleep(7 * time.Second)
			for i := range many {
				other.want(200, wire.Acquire, `{"name":"b/%03d","owner":%q,"ttl_ms":60000}`, i, owner)
			}
			time.Sleep(7 * time.Second)
			for i := range many { // at the same instant
				other.want(200, wire.Release, `{"name":"b/%03d","owner":%q}`, i, owner)
			}
			time.Sleep(7 * time.Second)
			if n := d.others.Swap(0); n > few {
				t.Errorf("%s: asked %d times", owner, n)
			}
			if got := kinds(s.history("name=b/000")); !strings.HasSuffix(got, "granted "+owner+", ended "+owner) {
				t.Errorf("told %s", got)
			}
			go s.ServeHTTP(streamed{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, wire.Events+"?prefix=a/", nil))
		}
	})
}

// A lease that a look has not found is asked for again. If the engine shows it then, or does not
// answer, it has not ended.
func TestLeaseThatALookHasMissed(t *testing.T) {
	t.Parallel()
	for name, mute := range map[string]bool{"and the engine shows it": false, "and the engine does not answer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := &asked{Driver: engine.Connect()}
				s, other := newBubble(t, d, often), newBubble(t, engine.Connect(), nil)
				time.Sleep(lookedBy)
				other.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
				time.Sleep(lookedBy)
				d.mute.Store(mute)
				d.misses.Store(true)
				time.Sleep(lookedBy)
				if d.misses.Load() {
					t.Fatal("no look has missed it")
				}
				d.mute.Store(false)
				other.want(200, wire.Release, `{"name":"n","owner":"a"}`)
				d.misses.Store(true)
				other.want(200, wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000}`)
				s.wantHistory("name=n", "granted a, ended a, granted b")
			})
		})
	}
}
