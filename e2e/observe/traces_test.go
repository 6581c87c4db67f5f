package observe

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdotel"
	"github.com/leasehold-go/leasehold/engine/httplock"
)

// overHTTP starts a server that takes spans by OTLP over HTTP, and returns its address.
func (c *collector) overHTTP(t *testing.T) string {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var all coltrace.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &all)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		_, _ = spanService{c: c}.Export(r.Context(), &all)
	}))
	t.Cleanup(web.Close)
	return web.URL
}

// until returns the spans of a name, once there are so many.
func (c *collector) until(t *testing.T, name string, n int) (some []*trace.Span) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if some = c.named(name); len(some) >= n {
			return some
		}
		if time.Now().After(end) {
			t.Fatalf("%d spans %q came, want %d", len(some), name, n)
		}
	}
}

// A call to "leasehold serve" is a child of its caller's span: of one that the header names, and of that of a Go program, also
// when it waits.
func TestCallsAreTraced(t *testing.T) {
	t.Parallel()
	c := &collector{}
	proc := startProcess(t, "memory:", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.overHTTP(t), "OTEL_BSP_SCHEDULE_DELAY=100"})

	const traceID, spanID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proc.url+"/v1/acquire", strings.NewReader(`{"name":"a","ttl_ms":60000}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("traceparent", fmt.Sprintf("00-%s-%s-01", traceID, spanID))
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	s := c.until(t, "POST /v1/acquire", 1)[0]
	if hex.EncodeToString(s.TraceId) != traceID || hex.EncodeToString(s.ParentSpanId) != spanID || s.Kind != trace.Span_SPAN_KIND_SERVER {
		t.Errorf("a span %v", s)
	}
	for key, want := range map[string]string{
		"leasehold.call": "acquire", "leasehold.lock": "a", "leasehold.outcome": "granted", "leasehold.engine": "memory", "http.request.method": "POST",
	} {
		if got := attribute(s, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}

	connect := func() *leasehold.Locker {
		d, err := httplock.Connect(t.Context(), proc.url, &httplock.Options{Headers: leaseholdotel.Inject})
		if err != nil {
			t.Fatal(err)
		}
		locks, err := leasehold.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { locks.Close(); d.Close() })
		return locks
	}
	locks, rival := connect(), connect()
	first, err := rival.Acquire(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := sdktrace.NewTracerProvider().Tracer("shop").Start(t.Context(), "request")
	granted := make(chan error, 1)
	go func() { granted <- locks.Do(ctx, "b", func(context.Context) error { return nil }) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		state, err := rival.Inspect(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		if len(state.Waiters) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody waits")
		}
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	ours := span.SpanContext()
	wants := map[string]bool{"busy": true, "granted": true} // the first call, and the one that waited
	for end := time.Now().Add(time.Minute); len(wants) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, s := range c.named("POST /v1/acquire") {
			id, parent := ours.TraceID(), ours.SpanID()
			if string(s.TraceId) == string(id[:]) && string(s.ParentSpanId) == string(parent[:]) && attribute(s, "leasehold.lock") == "b" {
				delete(wants, attribute(s, "leasehold.outcome"))
			}
		}
	}
	if len(wants) > 0 {
		t.Errorf("no spans of the calls that were %v in %v", wants, c.named("POST /v1/acquire"))
	}
}
