package serve_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// series are those that /metrics has now, without their values.
func (s *service) series() (all []string) {
	for line := range strings.Lines(s.get("/metrics")) {
		if name, _, ok := strings.Cut(line, " "); ok && name != "#" {
			all = append(all, name)
		}
	}
	return all
}

// All counters start at zero: of one that appears at 1, increase sees nothing.
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
	s := startOn(t, memory.NewServer().Connect(), nil)
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

// Leases and waiters are those of the store, whoever made them, and unknown while it does not answer.
func TestGaugesAreOfTheStore(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	d := locktest.NewFaulty(engine.Connect())
	s := startOn(t, d, &serve.Options{History: serve.HistoryOptions{Every: 100 * time.Millisecond}})
	other := start(t, engine, nil)
	other.post(wire.Acquire, `{"name":"a","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	other.post(wire.Acquire, `{"name":"b","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	other.post(wire.Acquire, `{"name":"a","owner":"other","ttl_ms":60000,"queue":true}`).want(t, 409, wire.CodeBusy)
	shows := func(lines ...string) {
		t.Helper()
		eventually(t, strings.Join(lines, ", "), func() bool {
			text := s.get("/metrics")
			return !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(text, "\n"+l+"\n") })
		})
	}
	shows("leasehold_store_up 1", "leasehold_store_held 2", "leasehold_store_waiting 1", "leasehold_store_at_risk 0")
	d.Always(locktest.OpInspect, locktest.LoseRequest)
	shows("leasehold_store_up 0", "leasehold_store_held NaN", "leasehold_store_waiting NaN", "leasehold_store_longest_wait_seconds NaN")
	d.Always(locktest.OpInspect, nil)
	shows("leasehold_store_up 1", "leasehold_store_held 2")
}
