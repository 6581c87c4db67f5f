// Package observe runs a service with all observers and reads back what they say of it.
package observe

import (
	"context"
	"net"
	"sync"
	"testing"

	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// A collector is where OTLP goes: it keeps what it is sent.
type collector struct {
	address string

	mu      sync.Mutex
	spans   []*trace.Span              // guarded by mu
	metrics map[string]*metrics.Metric // guarded by mu; the last of each
}

func newCollector(t *testing.T) *collector {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{address: listener.Addr().String(), metrics: make(map[string]*metrics.Metric)}
	server := grpc.NewServer()
	coltrace.RegisterTraceServiceServer(server, spanService{c: c})
	colmetrics.RegisterMetricsServiceServer(server, metricService{c: c})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

type spanService struct {
	coltrace.UnimplementedTraceServiceServer
	c *collector
}

// Export implements the service.
func (s spanService) Export(_ context.Context, r *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			s.c.spans = append(s.c.spans, scope.Spans...)
		}
	}
	return &coltrace.ExportTraceServiceResponse{}, nil
}

type metricService struct {
	colmetrics.UnimplementedMetricsServiceServer
	c *collector
}

// Export implements the service.
func (s metricService) Export(_ context.Context, r *colmetrics.ExportMetricsServiceRequest) (*colmetrics.ExportMetricsServiceResponse, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, resource := range r.ResourceMetrics {
		for _, scope := range resource.ScopeMetrics {
			for _, m := range scope.Metrics {
				s.c.metrics[m.Name] = m
			}
		}
	}
	return &colmetrics.ExportMetricsServiceResponse{}, nil
}

// named returns the spans of a name.
func (c *collector) named(name string) (some []*trace.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name {
			some = append(some, s)
		}
	}
	return some
}

// attribute returns what a span has as key, as text.
func attribute(s *trace.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// counts returns how much a metric counted, by the value of one attribute.
func (c *collector) counts(name, by string) map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, m := make(map[string]uint64), c.metrics[name]
	for _, p := range m.GetHistogram().GetDataPoints() {
		for _, a := range p.Attributes {
			if a.Key == by {
				all[a.Value.GetStringValue()] += p.Count
			}
		}
	}
	for _, p := range m.GetSum().GetDataPoints() {
		for _, a := range p.Attributes {
			if a.Key == by {
				all[a.Value.GetStringValue()] += uint64(p.GetAsInt())
			}
		}
	}
	return all
}
