package serve_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
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

// series returns the series that /metrics has now, without their values.
func (s *service) series() (all []string) {
	for line := range strings.Lines(s.get("/metrics")) {
		if name, _, ok := strings.Cut(line, " "); ok && name != "#" {
			all = append(all, name)
		}
	}
	return all
}

// All counters start at zero: if one appeared with 1, increase would miss it.
func TestCountersStartAtZero(t *testing.T) {
	t.Parallel()
	s := startOn(t, memory.NewServer().Connect(), nil)
	before := s.series()
	for _, name := range []string{
		`leasehold_store_calls_total{call="try",outcome="unknown"}`, `leasehold_service_grants_total{mode="shared"}`,
		`leasehold_service_lost_total{cause="expired"}`, `leasehold_service_lost_total{cause="evicted"}`,
		`leasehold_service_lost_total{cause="unexplained"}`, "leasehold_service_evictions_total", "leasehold_service_recalls_total",
		`leasehold_webhook_notices_total{outcome="delivered"}`, `leasehold_webhook_notices_total{outcome="failed"}`,
		`leasehold_webhook_notices_total{outcome="dropped"}`,
	} {
		if !strings.Contains(s.get("/metrics"), name+" 0\n") {
			t.Errorf("%s does not start at zero", name)
		}
	}
	if !strings.Contains(s.get("/metrics"), `leasehold_call_seconds_count{call="acquire",outcome="unknown"} 0`) {
		t.Error(s.get("/metrics"))
	}
	s.post(wire.Acquire, `{"name":"a","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"a","owner":"other","ttl_ms":60000,"wait_ms":0}`).want(t, 409, wire.CodeBusy)
	s.post(wire.Renew, `{"name":"a","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Renew, `{"name":"a","owner":"nobody","ttl_ms":60000}`).want(t, 410, wire.CodeLost)
	s.post(wire.Note, `{"name":"a","owner":"owner","note":"x"}`).want(t, 200, "")
	s.post(wire.Fence, `{"name":"b","token":"1"}`).want(t, 200, "")
	s.post(wire.Limit, `{"name":"b","limit":5}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"b","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Evict, `{"name":"b","owner":"owner"}`).want(t, 200, "")
	s.post(wire.Release, `{"name":"a","owner":"owner"}`).want(t, 200, "")
	s.post(wire.Release, `{`).want(t, 400, wire.CodeInvalid)
	s.get(wire.List)
	s.get(wire.Show + "?name=a")
	for _, name := range s.series() {
		if !slices.Contains(before, name) {
			t.Errorf("%s does not start at zero", name)
		}
	}
}

// The page about observing names each metric of the service.
func TestPageNamesTheMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), &serve.Options{MetricLimits: true})
	page, err := os.ReadFile("../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`# TYPE (\S+)`).FindAllStringSubmatch(s.get("/metrics"), -1) {
		if !strings.Contains(string(page), "`"+m[1]+"`") {
			t.Errorf("docs/observe.md does not name %s", m[1])
		}
	}
}

// A place waits for room under a limit, or for an exclusive holder or waiter. The use of an
// operator's limit is shown if the option asks for it.
func TestGaugesOfLimits(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	every := serve.HistoryOptions{Every: 100 * time.Millisecond}
	plain := start(t, engine, &serve.Options{History: every})
	s := start(t, engine, &serve.Options{History: every, MetricLimits: true})
	ask := func(status int, name, owner, more string) {
		t.Helper()
		code := map[int]string{409: wire.CodeBusy}[status]
		s.post(wire.Acquire, `{"name":%q,"owner":%q,"ttl_ms":60000,"queue":true%s}`, name, owner, more).want(t, status, code)
	}
	name := "gpu \"a\\b\""
	s.post(wire.Limit, `{"name":%q,"limit":5}`, name).want(t, 200, "")
	ask(200, name, "one", `,"mode":"shared","weight":3`)
	ask(409, name, "two", `,"mode":"shared","weight":3`)
	ask(409, name, "three", `,"mode":"shared"`)
	ask(409, name, "alone", ``)
	ask(409, name, "behind", `,"mode":"shared"`)
	ask(200, "plain", "one", ``)
	ask(409, "plain", "two", `,"mode":"shared"`)
	used := []string{`leasehold_store_used{lock="gpu \"a\\b\""} 3`, `leasehold_store_limit{lock="gpu \"a\\b\""} 5`}
	s.shows(used...)
	for _, one := range []*service{s, plain} {
		one.shows(`leasehold_store_waiting{reason="limit"} 2`, `leasehold_store_waiting{reason="exclusive"} 3`)
	}
	if strings.Contains(plain.get("/metrics"), "gpu") {
		t.Error("the metrics show a name that nobody asked for")
	}
}

// shows waits for lines of the metrics.
func (s *service) shows(lines ...string) {
	s.t.Helper()
	eventually(s.t, strings.Join(lines, ", "), func() bool {
		text := s.get("/metrics")
		return !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(text, "\n"+l+"\n") })
	})
}

// The gauges of leases and waiters cover the whole store, whoever created them. They are unknown
// while the store does not answer.
func TestGaugesAreOfTheStore(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	d := locktest.NewFaulty(engine.Connect())
	s := startOn(t, d, &serve.Options{History: serve.HistoryOptions{Every: 100 * time.Millisecond}})
	other := start(t, engine, nil)
	other.post(wire.Acquire, `{"name":"a","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	other.post(wire.Acquire, `{"name":"b","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	other.post(wire.Acquire, `{"name":"a","owner":"other","ttl_ms":60000,"queue":true}`).want(t, 409, wire.CodeBusy)
	s.shows("leasehold_store_up 1", "leasehold_store_held 2", `leasehold_store_waiting{reason="exclusive"} 1`, "leasehold_store_at_risk 0")
	d.Always(locktest.OpInspect, locktest.LoseRequest)
	s.shows("leasehold_store_up 0", "leasehold_store_held NaN", `leasehold_store_waiting{reason="exclusive"} NaN`, `leasehold_store_waiting{reason="limit"} NaN`, "leasehold_store_longest_wait_seconds NaN")
	d.Always(locktest.OpInspect, nil)
	s.shows("leasehold_store_up 1", "leasehold_store_held 2")
}

// A store that cannot be inspected counts as up once it has refused to renew a lease that nobody
// holds.
func TestStoreThatCannotBeInspectedIsUp(t *testing.T) {
	t.Parallel()
	s := startOn(t, struct{ driver.Driver }{memory.New()}, nil)
	s.shows("leasehold_store_up 1")
}

// waitless is an engine that does not know how long its waiters have waited.
type waitless struct{ *memory.Driver }

func (d waitless) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	for _, state := range states {
		for i := range state.Waiters {
			state.Waiters[i].Waited = 0
		}
	}
	return states, next, err
}

// If somebody waits and nobody knows for how long, the longest wait is unknown, and not zero.
func TestWaitOfUnknownLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, waitless{memory.New()}, often)
		shows := func(line string) {
			t.Helper()
			time.Sleep(time.Second) // for a look
			if text := s.get("/metrics"); !bytes.Contains(text, []byte("\n"+line+"\n")) {
				t.Errorf("not %q, but %q", line, regexp.MustCompile(`(?m)^leasehold_store_longest.*`).Find(text))
			}
		}
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000}`)
		shows("leasehold_store_longest_wait_seconds 0")
		s.want(409, wire.Acquire, `{"name":"n","owner":"b","ttl_ms":600000,"queue":true}`)
		shows("leasehold_store_longest_wait_seconds NaN")
	})
}
