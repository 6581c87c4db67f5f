package leaseholdotel

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve"
)

// traceparent writes and reads the HTTP header of that name, which passes a span to another
// process.
var traceparent propagation.TraceContext

// Call makes a span of each call to a service: give it to Options.Trace of package serve. The span
// is a child of the caller's, which the header traceparent names.
func (o *Observer) Call(r *http.Request, call string) (context.Context, func(serve.Call)) {
	ctx := traceparent.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := o.tracer.Start(ctx, r.Method+" "+r.URL.Path, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path), attribute.String("leasehold.call", call)))
	return ctx, func(c serve.Call) {
		if c.Status > 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", c.Status))
		}
		for _, a := range []struct{ key, value string }{
			{"leasehold.engine", c.Engine}, {"leasehold.client", c.Client}, {"leasehold.lock", c.Lock},
			{"leasehold.token", c.Token}, {"leasehold.outcome", c.Outcome}, {"leasehold.code", c.Code},
		} {
			if a.value != "" {
				span.SetAttributes(attribute.String(a.key, a.value))
			}
		}
		if c.Outcome == wire.Unknown || c.Status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, c.Code)
		}
		span.End()
	}
}

// Inject writes the span of ctx to the headers of a request: give it to Options.Headers of package
// httplock.
func Inject(ctx context.Context, h http.Header) {
	traceparent.Inject(ctx, propagation.HeaderCarrier(h))
}
