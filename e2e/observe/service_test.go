package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdotel"
	"github.com/leasehold-go/leasehold/adapter/leaseholdprom"
	"github.com/leasehold-go/leasehold/memory"
)

// A service takes a lock for each request, and has somebody evict the lease of one.
type service struct {
	locks  *leasehold.Locker
	server *memory.Server
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := s.locks.Do(r.Context(), r.URL.Path, func(ctx context.Context) error {
		lease, _ := leasehold.FromContext(ctx)
		switch r.URL.Query().Get("do") {
		case "evict":
			return s.server.Connect().Evict(ctx, lease.Name(), lease.Owner(), "an operator's reason")
		case "again": // while it is held
			_, err := s.locks.TryAcquire(r.Context(), r.URL.Path)
			return err
		}
		return nil
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
	}
}

// telemetry sends what it is told to a collector.
type telemetry struct {
	tracers *sdktrace.TracerProvider
	meters  *metric.MeterProvider
}

func newTelemetry(t *testing.T, address string) telemetry {
	t.Helper()
	spans, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	points, err := otlpmetricgrpc.New(t.Context(), otlpmetricgrpc.WithEndpoint(address), otlpmetricgrpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	return telemetry{sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans)), metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(points)))}
}

// end returns when all is sent.
func (o telemetry) end(ctx context.Context) error {
	return errors.Join(o.tracers.Shutdown(ctx), o.meters.Shutdown(ctx))
}

// watched is a service that everything watches which can.
func watched(t *testing.T, to telemetry, registry *prometheus.Registry, log io.Writer) *service {
	t.Helper()
	observer, err := leaseholdotel.New(&leaseholdotel.Options{
		TracerProvider: to.tracers, MeterProvider: to.meters,
		Lock: func(string) string { return "orders" },
	})
	if err != nil {
		t.Fatal(err)
	}
	collected, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{server: memory.NewServer()}
	s.locks, err = leasehold.New(s.server.Connect(), &leasehold.Options{Trace: leasehold.TraceAll(
		collected.Trace, observer.Trace, leasehold.LogTrace(slog.New(slog.NewJSONHandler(log, nil))),
	)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The spans, metrics and logs of one service say the same.
func TestServiceIsWatched(t *testing.T) {
	c, registry := newCollector(t), prometheus.NewRegistry()
	to := newTelemetry(t, c.address)
	var log bytes.Buffer
	s := watched(t, to, registry, &log)
	tracer := to.tracers.Tracer("shop")
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/orders/", func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tracer.Start(r.Context(), "request")
		defer span.End()
		s.ServeHTTP(w, r.WithContext(ctx))
	})
	web := httptest.NewServer(mux)
	defer web.Close()
	for _, path := range []string{"/orders/1", "/orders/1", "/orders/2?do=evict", "/orders/3?do=again"} {
		resp, err := http.Get(web.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	s.locks.Close()
	if err := to.end(t.Context()); err != nil {
		t.Fatal(err)
	}

	outcomes, ends := map[string]uint64{"granted": 4, "refused": 1}, map[string]uint64{"released": 3, "evicted": 1}
	wantSpans(t, c, outcomes, ends)
	wantCounts(t, c, outcomes, ends)
	if got := scraped(t, web.URL+"/metrics", "leasehold_acquire_seconds", "outcome"); !maps.Equal(got, outcomes) {
		t.Errorf("Prometheus counts %v, want %v", got, outcomes)
	}
	if got := scraped(t, web.URL+"/metrics", "leasehold_hold_seconds", "end"); !maps.Equal(got, ends) {
		t.Errorf("Prometheus counts %v, want %v", got, ends)
	}
	if waits, holds := logged(t, &log); !maps.Equal(waits, outcomes) || !maps.Equal(holds, ends) {
		t.Errorf("the log has %v and %v, want %v and %v", waits, holds, outcomes, ends)
	}
}

// wantCounts checks what OTLP counts: nothing is held any more, and nobody waits.
func wantCounts(t *testing.T, c *collector, outcomes, ends map[string]uint64) {
	t.Helper()
	none := map[string]uint64{"memory": 0}
	for _, want := range []struct {
		metric, by string
		counts     map[string]uint64
	}{
		{"leasehold.acquire.duration", "leasehold.outcome", outcomes},
		{"leasehold.hold.duration", "leasehold.end", ends},
		{"leasehold.lost", "leasehold.cause", map[string]uint64{"evicted": 1, "expired": 0, "max_hold": 0, "engine": 0}},
		{"leasehold.renewal.failures", "leasehold.engine", none},
		{"leasehold.held", "leasehold.engine", none},
		{"leasehold.used", "leasehold.engine", none},
		{"leasehold.waiting", "leasehold.reason", map[string]uint64{"call": 0, "process": 0, "exclusive": 0, "limit": 0}},
	} {
		if got := c.counts(want.metric, want.by); !maps.Equal(got, want.counts) {
			t.Errorf("OTLP has %s as %v, want %v", want.metric, got, want.counts)
		}
	}
}

// wantSpans: each request has its wait and its hold, which is linked to the wait.
func wantSpans(t *testing.T, c *collector, outcomes, ends map[string]uint64) {
	t.Helper()
	requests := make(map[string]bool) // ids of spans
	for _, s := range c.named("request") {
		requests[string(s.SpanId)] = true
	}
	waits, gotOutcomes, gotEnds := make(map[string]string), make(map[string]uint64), make(map[string]uint64)
	for _, s := range c.named("leasehold wait") {
		waits[string(s.SpanId)] = attribute(s, "leasehold.lock")
		gotOutcomes[attribute(s, "leasehold.outcome")]++
		if !requests[string(s.ParentSpanId)] || attribute(s, "leasehold.engine") != "memory" {
			t.Errorf("a wait without a request: %v", s)
		}
	}
	for _, s := range c.named("leasehold hold") {
		gotEnds[attribute(s, "leasehold.end")]++
		if !requests[string(s.ParentSpanId)] || len(s.Links) != 1 || waits[string(s.Links[0].SpanId)] != attribute(s, "leasehold.lock") {
			t.Errorf("a hold without its request or its wait: %v", s)
		}
		if evicted := attribute(s, "leasehold.end") == "evicted"; evicted != strings.Contains(s.Status.GetMessage(), "an operator's reason") {
			t.Errorf("the status of a hold: %v", s)
		}
	}
	if !maps.Equal(gotOutcomes, outcomes) || !maps.Equal(gotEnds, ends) {
		t.Errorf("spans of %v and %v, want %v and %v", gotOutcomes, gotEnds, outcomes, ends)
	}
}

// scraped returns the counts of a histogram by one label.
func scraped(t *testing.T, url, name, by string) map[string]uint64 {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]uint64)
	for _, m := range families[name].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == by && m.Histogram.GetSampleCount() > 0 {
				all[l.GetValue()] += m.Histogram.GetSampleCount()
			}
		}
	}
	return all
}

// logged counts the ends of waits and holds that a log tells.
func logged(t *testing.T, log *bytes.Buffer) (waits, holds map[string]uint64) {
	t.Helper()
	waits, holds = make(map[string]uint64), make(map[string]uint64)
	for words := json.NewDecoder(log); words.More(); {
		var record struct{ Msg, Engine, Name string }
		if err := words.Decode(&record); err != nil {
			t.Fatal(err)
		}
		var kind, step string
		if _, err := fmt.Sscanf(record.Msg, "lock %s %s", &kind, &step); err != nil || record.Engine != "memory" || !strings.HasPrefix(record.Name, "/orders/") {
			t.Errorf("a record: %+v", record)
		}
		map[string]map[string]uint64{"wait": waits, "hold": holds}[kind][step]++
	}
	return waits, holds
}
