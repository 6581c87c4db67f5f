package leaseholdprom_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdprom"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// scrape asks as Prometheus does, and returns the sample of each series: of a histogram its count.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // in a bubble nothing may go on
	resp, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	series := make(map[string]float64)
	for name, f := range families {
		for _, m := range f.Metric {
			series[name+labels(m)] = value(m)
		}
	}
	return series
}

func labels(m *dto.Metric) (text string) {
	for _, l := range m.Label {
		text += " " + l.GetName() + "=" + l.GetValue()
	}
	return text
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Gauge.GetValue()
}

// A life is leases that come to different ends, and what was told of them.
type life struct {
	t      *testing.T
	locks  *leasehold.Locker
	server *memory.Server
	engine *locktest.Faulty
	told   chan leasehold.Event // renewals and ends
}

func live(t *testing.T, trace leasehold.Trace) *life {
	const ttl = 300 * time.Millisecond
	l := &life{t: t, server: memory.NewServer(), told: make(chan leasehold.Event, 10)}
	l.engine = locktest.NewFaulty(l.server.Connect())
	var err error
	l.locks, err = leasehold.New(l.engine, &leasehold.Options{TTL: ttl, Trace: leasehold.TraceAll(trace, func(_ context.Context, e leasehold.Event) {
		if e.Kind == leasehold.KindHold && e.Step.Ends() || e.Step == leasehold.StepRenewed {
			select {
			case l.told <- e:
			default:
			}
		}
	})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.locks.Close() })
	return l
}

func (l *life) acquire(name string) *leasehold.Lease {
	l.t.Helper()
	lease, err := l.locks.Acquire(l.t.Context(), name)
	if err != nil {
		l.t.Fatal(err)
	}
	return lease
}

// until waits until it is told of a step.
func (l *life) until(step leasehold.Step) {
	for (<-l.told).Step != step {
	}
}

// goOn releases one lease, renews another until it is lost, has a third evicted, and holds a fourth.
func (l *life) goOn() {
	l.acquire("a").Release(l.t.Context())
	l.until(leasehold.StepReleased)
	kept := l.acquire("b")
	l.until(leasehold.StepRenewed)
	if _, err := l.locks.TryAcquire(l.t.Context(), "b"); err == nil {
		l.t.Error("acquired twice")
	}
	l.engine.Always(locktest.OpRenew, locktest.LoseRequest)
	l.until(leasehold.StepLost)
	kept.Release(l.t.Context())
	l.engine.Always(locktest.OpRenew, nil)
	evicted := l.acquire("c")
	if err := l.server.Connect().Evict(l.t.Context(), "c", evicted.Owner(), "test"); err != nil {
		l.t.Fatal(err)
	}
	l.until(leasehold.StepEvicted)
	l.acquire("d")
}

func TestScrape(t *testing.T) { synctest.Test(t, testScrape) }

func testScrape(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry}); err == nil {
		t.Error("registered twice")
	}
	l := live(t, metrics.Trace)
	l.acquire("first").Release(t.Context())
	first := scrape(t, registry)
	l.until(leasehold.StepReleased)
	l.goOn()
	got := scrape(t, registry)
	for series := range got {
		if _, ok := first[series]; !ok {
			t.Errorf("%s does not start at zero", series)
		}
	}
	for series, want := range map[string]float64{
		"leasehold_acquire_seconds engine=memory outcome=granted": 5,
		"leasehold_acquire_seconds engine=memory outcome=refused": 1,
		"leasehold_hold_seconds end=released engine=memory":       2,
		"leasehold_hold_seconds end=lost engine=memory":           1,
		"leasehold_hold_seconds end=evicted engine=memory":        1,
		"leasehold_waiting engine=memory reason=call":             0,
		"leasehold_held engine=memory":                            1,
		"leasehold_lost_total cause=expired engine=memory":        1,
		"leasehold_lost_total cause=evicted engine=memory":        1,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s is %v (%t), want %v", series, v, ok, want)
		}
	}
	for _, series := range []string{"leasehold_renewal_slack_ratio engine=memory", "leasehold_renewal_failures_total engine=memory"} {
		if got[series] < 1 {
			t.Errorf("%s is %v, want at least 1", series, got[series])
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// Names are a label only as far as a function maps them to few.
func TestLockLabel(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry, Lock: func(name string) string { return name[:1] }})
	if err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(memory.New(), &leasehold.Options{Trace: metrics.Trace})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	for _, name := range []string{"a1", "a2", "b1"} {
		if _, err := locks.Acquire(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	got := scrape(t, registry)
	if got["leasehold_held engine=memory lock=a"] != 2 || got["leasehold_held engine=memory lock=b"] != 1 {
		t.Errorf("%v", got)
	}
}

// A function may cut a name inside a character. Label values are UTF-8.
func TestLockLabelIsUTF8(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry, Lock: func(name string) string { return name[:2] }})
	if err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(memory.New(), &leasehold.Options{Trace: metrics.Trace})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	if _, err := locks.Acquire(t.Context(), "aé"); err != nil {
		t.Fatal(err)
	}
	if got := scrape(t, registry); got["leasehold_held engine=memory lock=a\uFFFD"] != 1 {
		t.Errorf("%v", got)
	}
}

// Limits are seen by lock: what is used, and who waits for room and who to be alone.
func TestLimits(t *testing.T) { synctest.Test(t, testLimits) }

func testLimits(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry, Lock: func(name string) string { return name }})
	if err != nil {
		t.Fatal(err)
	}
	engine := memory.NewServer()
	locker := func() *leasehold.Locker {
		l, err := leasehold.New(engine.Connect(), &leasehold.Options{Trace: metrics.Trace})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	locks, others := locker(), locker()
	defer locks.Close()
	defer others.Close()
	var calls sync.WaitGroup
	defer calls.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := func(l *leasehold.Locker, opts ...leasehold.Option) {
		calls.Go(func() {
			if _, err := l.Acquire(ctx, "gpu", opts...); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
	}
	lease, err := locks.Acquire(t.Context(), "gpu", leasehold.Limit(5), leasehold.Weight(3))
	if err != nil {
		t.Fatal(err)
	}
	want := func(counts map[string]float64) {
		t.Helper()
		got := scrape(t, registry)
		for name, n := range counts {
			series, reason, _ := strings.Cut(name, " ")
			if reason != "" {
				reason = " reason=" + reason
			}
			if v, ok := got["leasehold_"+series+" engine=memory lock=gpu"+reason]; !ok || v != n {
				t.Errorf("%s is %v (%t), want %v", name, v, ok, n)
			}
		}
	}
	wait(locks, leasehold.Limit(5), leasehold.Weight(4))
	wait(others)
	wait(others)
	want(map[string]float64{"used": 3, "limit": 5, "waiting call": 0, "waiting limit": 1, "waiting exclusive": 1, "waiting process": 1})
	cancel()
	calls.Wait()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(map[string]float64{"used": 0, "limit": 5, "waiting limit": 0, "waiting exclusive": 0, "waiting process": 0})
}

// What an engine's first lock starts is there before, for engines that are named.
func TestEnginesStartAtZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry, Engines: []string{"memory"}})
	if err != nil {
		t.Fatal(err)
	}
	before := scrape(t, registry)
	if v, ok := before["leasehold_lost_total cause=expired engine=memory"]; !ok || v != 0 {
		t.Errorf("%v", before)
	}
	locks, err := leasehold.New(memory.New(), &leasehold.Options{Trace: metrics.Trace})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	if _, err := locks.Acquire(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if after := scrape(t, registry); len(after) != len(before) {
		t.Errorf("%d series became %d", len(before), len(after))
	}
	_, err = leaseholdprom.New(&leaseholdprom.Options{
		Registerer: prometheus.NewRegistry(), Engines: []string{"memory"}, Lock: func(string) string { return "" },
	})
	if !errors.Is(err, leasehold.ErrInvalidOption) {
		t.Errorf("Engines beside Lock: %v", err)
	}
}

// What is kept, recalled and outranked is counted, and a hold that goes on is held.
func TestKeepsAndRecalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry})
		if err != nil {
			t.Fatal(err)
		}
		server := memory.NewServer()
		open := func(o leasehold.Options) *leasehold.Locker {
			locks, err := leasehold.New(server.Connect(), &o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { locks.Close() })
			return locks
		}
		locks, others := open(leasehold.Options{Trace: metrics.Trace, Keep: time.Second}), open(leasehold.Options{})
		cycle := func(locks *leasehold.Locker) {
			if err := locks.Do(t.Context(), "a", func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		cycle(locks)
		cycle(locks)
		cycle(others)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var leaders sync.WaitGroup
		for i, l := range []*leasehold.Locker{locks, others} {
			leaders.Go(func() {
				l.Lead(ctx, "b", func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(time.Second)
					return nil
				}, leasehold.Preference(i))
			})
			synctest.Wait()
		}
		defer leaders.Wait()
		defer cancel()
		got := scrape(t, registry)
		for series, want := range map[string]float64{
			"leasehold_acquire_seconds engine=memory outcome=taken": 1,
			"leasehold_keeps_total end=taken engine=memory":         1,
			"leasehold_keeps_total end=given_back engine=memory":    1,
			"leasehold_keeps_total end=lost engine=memory":          0,
			"leasehold_recalls_total engine=memory":                 2,
			"leasehold_outranked_total engine=memory":               1,
			"leasehold_held engine=memory":                          1, // until the leader's callback returns
		} {
			if v, ok := got[series]; !ok || v != want {
				t.Errorf("%s is %v (%t), want %v", series, v, ok, want)
			}
		}
	})
}
