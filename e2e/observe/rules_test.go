package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdprom"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A shop is a process with locks, whose metrics are recorded.
type shop struct {
	*recording
	locks  *leasehold.Locker
	server *memory.Server
	engine *locktest.Faulty
	lock   func(name string) string // of the exporter's options
	rival  *leasehold.Locker        // of another process, which nobody records
}

// newShop is for a synctest bubble.
func newShop(t *testing.T, lock func(name string) string) *shop {
	t.Helper()
	s := &shop{recording: newRecording(t), server: memory.NewServer(), lock: lock}
	s.start()
	var err error
	if s.rival, err = leasehold.New(s.server.Connect(), nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// start starts the process, with an exporter of its own.
func (s *shop) start() {
	s.t.Helper()
	registry := prometheus.NewRegistry()
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry, Lock: s.lock})
	if err != nil {
		s.t.Fatal(err)
	}
	s.target = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	s.engine = locktest.NewFaulty(s.server.Connect())
	if s.locks, err = leasehold.New(s.engine, &leasehold.Options{Trace: metrics.Trace}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) close() {
	s.locks.Close()
	s.rival.Close()
}

func (s *shop) acquire(locks *leasehold.Locker, name string, opts ...leasehold.Option) *leasehold.Lease {
	s.t.Helper()
	lease, err := locks.Acquire(s.t.Context(), name, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return lease
}

// evict takes a lease from its holder.
func (s *shop) evict(lease *leasehold.Lease) {
	s.t.Helper()
	if err := s.server.Connect().Evict(s.t.Context(), lease.Name(), lease.Owner(), "test"); err != nil {
		s.t.Fatal(err)
	}
	<-lease.Context().Done()
}

// trade takes and releases a lock each 5 s.
func (s *shop) trade(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		if err := s.locks.Do(s.t.Context(), "trade", func(context.Context) error { return nil }); err != nil {
			s.t.Error(err)
		}
	}
}

// A life is what happens to a process.
type life struct {
	name   string
	live   func(s *shop)
	alerts []string
}

// Lives of processes, and the alerts that have fired in each, by name and cause.
var lives = []life{
	{"calm", func(s *shop) {
		go s.trade(20 * time.Minute)
		s.acquire(s.locks, "kept")
		s.pass(20 * time.Minute)
	}, nil},
	{"evicted for the first time", func(s *shop) {
		lease := s.acquire(s.locks, "a")
		s.pass(10 * time.Minute)
		s.evict(lease)
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdLeasesLost", cause="evicted"}`}},
	{"evicted between the first call and the next scrape", func(s *shop) {
		s.pass(10 * time.Minute)
		s.evict(s.acquire(s.locks, "a"))
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdLeasesLost", cause="evicted"}`}},
	{"evicted before the first scrape", func(s *shop) {
		s.evict(s.acquire(s.locks, "a"))
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdLeasesLost", cause="evicted"}`}},
	{"cut off with one lease", func(s *shop) {
		lease := s.acquire(s.locks, "a")
		s.pass(10 * time.Minute)
		s.engine.Always(locktest.OpRenew, locktest.HangRequest)
		<-lease.Context().Done()
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdLeasesLost", cause="expired"}`, `{alertname="LeaseholdRenewalsFail"}`}},
	{"held for as long as allowed", func(s *shop) {
		s.acquire(s.locks, "a", leasehold.MaxHold(5*time.Minute))
		s.pass(20 * time.Minute)
	}, nil},
	{"every second renewal hangs", func(s *shop) {
		s.acquire(s.locks, "a")
		hang := true
		s.engine.Always(locktest.OpRenew, func(ctx context.Context, apply func() error) error {
			if hang = !hang; hang {
				return locktest.HangRequest(ctx, apply)
			}
			return apply()
		})
		s.pass(20 * time.Minute)
	}, []string{`{alertname="LeaseholdRenewalsFail"}`, `{alertname="LeaseholdSlackBelowAThird"}`}},
	{"every second renewal hangs, of a lease of twenty minutes", func(s *shop) {
		s.acquire(s.locks, "a", leasehold.TTL(20*time.Minute))
		hang := 0
		s.engine.Always(locktest.OpRenew, func(ctx context.Context, apply func() error) error {
			if hang = (hang + 1) % 10; hang > 0 {
				return locktest.HangRequest(ctx, apply)
			}
			return apply()
		})
		s.pass(60 * time.Minute)
	}, []string{`{alertname="LeaseholdRenewalsFail"}`, `{alertname="LeaseholdSlackBelowAThird"}`}},
	{"one long wait", func(s *shop) {
		held := s.acquire(s.rival, "a")
		s.pass(5 * time.Minute)
		go func() {
			if _, err := s.locks.Acquire(s.t.Context(), "a"); err != nil {
				s.t.Error(err)
			}
		}()
		s.pass(time.Minute)
		held.Release(s.t.Context())
		s.pass(20 * time.Minute)
	}, []string{`{alertname="LeaseholdWaitsAreLong"}`}},
}

// What is over counts no more: the alerts that have fired in the last five minutes of lives.
var endings = []life{
	{"lost before a pause of Prometheus", func(s *shop) {
		lease := s.acquire(s.locks, "a")
		s.pass(time.Minute)
		s.evict(lease)
		s.pass(10 * time.Minute)
		s.miss(10 * time.Minute)
		s.pass(10 * time.Minute)
	}, nil},
	{"lost again, by a process that was restarted", func(s *shop) {
		s.evict(s.acquire(s.locks, "a"))
		s.pass(20 * time.Minute)
		s.locks.Close()
		s.start()
		lease := s.acquire(s.locks, "a")
		s.pass(every)
		s.evict(lease)
		s.pass(4 * time.Minute)
	}, []string{`{alertname="LeaseholdLeasesLost", cause="evicted"}`}},
}

// Each rule fires in the lives that it is for, and in no other. What it goes by is what a Locker has
// exported, from its first sample on.
func TestRulesFire(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	alerts, err := filepath.Abs(docs + "alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&file, "rule_files: [%q]\nevaluation_interval: %v\ntests:\n", alerts, every)
	for _, l := range lives {
		file.WriteString(l.group(t, "2h"))
	}
	for _, l := range endings {
		file.WriteString(l.group(t, "5m"))
	}
	promtool(t, "test", "rules", fileOf(t, file.String()))
}

// group is a group of promtool's tests, which looks for the alerts of the last hours or minutes.
func (l life) group(t *testing.T, last string) (group string) {
	t.Helper()
	want := make(map[string]float64)
	for _, a := range l.alerts {
		want[a] = 1
	}
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, nil)
		l.live(s)
		s.close()
		expr := fmt.Sprintf(`count by (alertname, cause) (last_over_time(ALERTS{alertstate="firing"}[%s]))`, last)
		group = strings.Replace(s.group(expectation{expr, want}), "  - ", fmt.Sprintf("  - name: %q\n    ", l.name), 1)
	})
	return group
}

func fileOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A panel is one of the dashboard.
type panel struct {
	Title   string
	Targets []struct{ Expr string }
}

func panels(t *testing.T, dashboard string) []panel {
	t.Helper()
	text, err := os.ReadFile(docs + dashboard)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$engine", ".*", "$instance", ".*").Replace(string(text))
	var shown struct{ Panels []panel }
	if err := json.Unmarshal([]byte(all), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown.Panels) < 8 {
		t.Fatalf("few panels: %v", shown.Panels)
	}
	return shown.Panels
}

// Each panel shows something of a process that trades, and the first of whatever happens to it.
func TestPanelsShow(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	fmt.Fprintf(&file, "evaluation_interval: %v\ntests:\n", every)
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, func(string) string { return "shop" })
		go s.trade(20 * time.Minute)
		lease := s.acquire(s.locks, "a")
		kept := s.acquire(s.locks, "kept")
		s.acquire(s.locks, "limited", leasehold.Limit(3))
		s.pass(5 * time.Minute)
		s.evict(lease)
		s.engine.Next(locktest.OpRenew, locktest.LoseRequest)
		s.engine.Next(locktest.OpTry, locktest.LoseRequest)
		if _, err := s.locks.TryAcquire(t.Context(), "b"); err == nil {
			t.Error("granted by an engine that did not answer")
		}
		s.pass(5 * time.Minute)
		kept.Release(t.Context())
		var expected []expectation
		for _, p := range panels(t, "dashboard.json") {
			for _, target := range p.Targets {
				// NaN is none.
				expected = append(expected, expectation{fmt.Sprintf("count(max_over_time((%s >= 0)[2m:15s])) > bool 0", target.Expr), map[string]float64{"": 1}})
			}
		}
		ever := func(title, label string, want map[string]float64) {
			for _, p := range panels(t, "dashboard.json") {
				if p.Title == title {
					expr := fmt.Sprintf("count by (%s) (max_over_time((%s)[10m:15s]) > 0)", label, p.Targets[0].Expr)
					expected = append(expected, expectation{expr, want})
					return
				}
			}
			t.Errorf("there is no panel %q", title)
		}
		ever("Calls by outcome", "outcome", map[string]float64{`{outcome="granted"}`: 1, `{outcome="failed"}`: 1})
		ever("How leases end", "end", map[string]float64{`{end="released"}`: 1, `{end="evicted"}`: 1})
		ever("Leases lost", "cause", map[string]float64{`{cause="evicted"}`: 1})
		ever("Renewals that fail", "engine", map[string]float64{`{engine="memory"}`: 1})
		time.Sleep(20 * time.Minute) // the trade
		s.close()
		file.WriteString(s.group(expected...))
	})
	promtool(t, "test", "rules", fileOf(t, file.String()))
}
