package served

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// Steps of an instance's wall clock, in order.
var steps = []time.Duration{5 * time.Hour, -7 * time.Hour, 30 * 24 * time.Hour, -1000 * time.Hour, 0}

// set moves the instance's clock.
func (i *instance) set(t testing.TB, offset time.Duration) {
	t.Helper()
	if err := i.clock.Set(offset); err != nil {
		t.Fatal(err)
	}
}

// TestClockStepsOfInstances: while holders in three languages hold, wait and renew, the clocks of both
// instances are set forwards and backwards, each by something else. Nobody holds beside another, tokens
// grow, nobody waits for too long, and in the end nothing is left.
func TestClockStepsOfInstances(t *testing.T) {
	t.Parallel()
	s := serveBy(t, "redis://"+servers.StartRedis(t).Addr(), (*instance).startWithClock)
	c := hire(t, s)
	for round := range 3 * len(steps) {
		for n, i := range s.instances {
			i.set(t, steps[(round+3*n)%len(steps)])
		}
		if !c.isServed(1, time.Minute) {
			t.Fatalf("not all are served after step %d: %v", round, c.served)
		}
	}
	if c.refused() > 0 {
		t.Errorf("%d were refused after 10 s", c.refused())
	}
	c.quits()
	isFree(t, s)
}

// TestClockStepsKeepPromises: what one instance promises of leases, waits, events and limits holds
// over steps of its clock, whatever the store.
func TestClockStepsKeepPromises(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(t *testing.T) string{
		"memory": func(*testing.T) string { return "memory:" },
		"redis":  func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() },
		"postgresql": func(t *testing.T) string {
			return "postgres://postgres@" + servers.StartPostgres(t).Addr() + "/postgres"
		},
		"etcd": func(t *testing.T) string { return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &instance{command: os.Getenv(binaryEnv), store: store(t), port: servers.FreePorts(t, 1)[0], options: []string{"--rate", "400"}}
			i.startWithClock(t)
			t.Cleanup(i.kill)
			m := &moved{T: t, i: i, heard: make(map[string]bool)}
			m.listen()
			m.call(wire.Acquire, `{"name":"kept","owner":"keeper","ttl_ms":600000}`, 200)
			for n, offset := range steps {
				m.step(fmt.Sprint("n", n), func() { i.set(t, offset) })
			}
		})
	}
}

// A moved instance is one whose clock moves.
type moved struct {
	*testing.T
	i *instance

	mu    sync.Mutex
	heard map[string]bool // guarded by mu; events, by kind and name
}

// call makes a call and returns its answer.
func (m *moved) call(path, body string, status int) (g wire.Grant) {
	m.Helper()
	resp, err := http.Post("http://"+m.i.addr()+path, "application/json", strings.NewReader(body))
	if err != nil {
		m.Error(err)
		return g
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&g); err != nil {
		m.Error(err)
	}
	if resp.StatusCode != status {
		m.Errorf("%s %s: %d, want %d", path, body, resp.StatusCode, status)
	}
	return g
}

// slow is what this machine may be late by.
const slow = 5 * time.Minute

// about fails unless a length in milliseconds is at most most, and not much less.
func (m *moved) about(what string, ms int64, most time.Duration) {
	m.Helper()
	if d := wire.Duration(ms); d > most || d < most-slow {
		m.Errorf("%s: %v, want %v", what, d, most)
	}
}

// step has leases, waits and events begin before the clock is set, and looks at them after it.
func (m *moved) step(name string, set func()) {
	named := func(what, rest string) string { return `{"name":"` + name + what + `",` + rest + `}` }
	began := time.Now()
	m.call(wire.Acquire, named("/held", `"owner":"a","ttl_ms":600000`), 200)
	m.call(wire.Acquire, named("/short", `"owner":"a","ttl_ms":2000`), 200)
	m.call(wire.Acquire, named("/least", `"owner":"a","ttl_ms":600000,"at_least_ms":4000`), 200)
	waited := make(chan wire.Grant, 2)
	for _, what := range []string{"/short", "/held"} {
		go func() {
			waited <- m.call(wire.Acquire, named(what, `"owner":"b","ttl_ms":600000,"wait_ms":30000`), 200)
		}()
		m.queues(name+what, 1)
	}
	set()
	m.shows(name+"/held", time.Since(began))
	m.shows("kept", slow)
	g := m.call(wire.Renew, named("/held", `"owner":"a","ttl_ms":500000`), 200)
	m.about("left after a renewal", g.Left, 500*time.Second)
	m.call(wire.Renew, `{"name":"kept","owner":"keeper","ttl_ms":600000}`, 200)
	// Whoever is late is told so, and whoever waits for a lease that nobody renews gets it.
	if g := <-waited; g.Name != name+"/short" || wire.Duration(g.Waited) > slow {
		m.Errorf("waited %d ms for %s, want %s", g.Waited, g.Name, name+"/short")
	}
	m.call(wire.Renew, named("/short", `"owner":"a","ttl_ms":600000`), 410)
	m.call(wire.Release, named("/held", `"owner":"a"`), 200)
	g = <-waited
	m.about("left after a wait", g.Left, 10*time.Minute)
	m.about("waited", g.Waited, time.Since(began))
	m.call(wire.Release, named("/least", `"owner":"a"`), 200)
	m.call(wire.Acquire, named("/least", `"owner":"b","ttl_ms":600000,"wait_ms":30000`), 200)
	if took := time.Since(began); took < 4*time.Second {
		m.Errorf("granted after %v what was to be taken for 4 s at least", took)
	}
	m.call(wire.Acquire, named("/held", `"owner":"a","ttl_ms":600000`), 410) // a used owner
	for _, what := range []string{"granted " + name + "/held", "released " + name + "/held", "ended " + name + "/short"} {
		claimtest.Eventually(m.T, "the event "+what, func() bool { return m.hears(what) })
	}
}

// state is what the instance shows.
func (m *moved) state(name string) (s wire.State) {
	m.Helper()
	resp, err := http.Get("http://" + m.i.addr() + wire.Show + "?name=" + url.QueryEscape(name))
	if err != nil {
		m.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		m.Fatal(err)
	}
	return s
}

// queues returns when so many wait.
func (m *moved) queues(name string, n int) {
	m.Helper()
	claimtest.Eventually(m.T, "the queue", func() bool { return len(m.state(name).Waiters) == n })
}

// shows looks at a lease of ten minutes that is held for that long at most.
func (m *moved) shows(name string, held time.Duration) {
	m.Helper()
	s := m.state(name)
	if len(s.Holders) != 1 {
		m.Errorf("%s: %d holders", name, len(s.Holders))
		return
	}
	m.about("left of "+name, s.Holders[0].Left, 10*time.Minute)
	if d := wire.Duration(s.Holders[0].Held); d < 0 || d > held+slow {
		m.Errorf("%s is held for %v", name, d)
	}
	for _, w := range s.Waiters {
		m.about("waited for "+name, w.Waited, slow)
	}
}

func (m *moved) hears(what string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard[what]
}

// listen notes events until the test ends, and returns when they are told.
func (m *moved) listen() {
	m.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.i.addr()+wire.Events, nil)
	if err != nil {
		m.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		m.Fatal(err)
	}
	ended := make(chan struct{})
	m.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		defer resp.Body.Close()
		m.hear(bufio.NewScanner(resp.Body))
		if ctx.Err() == nil {
			m.Error("the events have ended")
		}
	}()
	claimtest.Eventually(m.T, "events", func() bool { return m.hears("open ") })
}

func (m *moved) hear(lines *bufio.Scanner) {
	for kind := ""; lines.Scan(); {
		if k, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = k
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e wire.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			m.Errorf("%q: %v", data, err)
		}
		m.mu.Lock()
		m.heard[kind+" "+e.Name] = true
		m.mu.Unlock()
	}
}
