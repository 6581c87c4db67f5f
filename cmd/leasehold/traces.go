package main

import (
	"context"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/leasehold-go/leasehold/adapter/leaseholdotel"
)

// tracesBound limits how long the end of the service waits for spans to be sent.
const tracesBound = 2 * time.Second

// traced reports whether OpenTelemetry's environment variables request traces.
func traced() bool {
	return (os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "") &&
		os.Getenv("OTEL_SDK_DISABLED") != "true" && os.Getenv("OTEL_TRACES_EXPORTER") != "none"
}

// trace makes the service export a span for each call, as OpenTelemetry's environment variables
// say. end sends the remaining spans.
func (s *service) trace(ctx context.Context) (end func(), err error) {
	if !traced() {
		return func() {}, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, usageErrorf("traces: %w", err)
	}
	about := resource.NewSchemaless(attribute.String("service.name", "leasehold"), attribute.String("service.version", s.opts.Version))
	said, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithHost())
	if err != nil { // the resource still has what could be detected
		s.opts.Log.Warn("traces do not say all", "error", err.Error())
	}
	if about, err = resource.Merge(about, said); err != nil {
		return nil, internalErrorf("traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { s.opts.Log.Warn("traces are not sent", "error", err.Error()) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	observer, err := leaseholdotel.New(&leaseholdotel.Options{TracerProvider: provider, MeterProvider: noop.NewMeterProvider()})
	if err != nil {
		return nil, internalErrorf("traces: %w", err)
	}
	s.opts.Trace = observer.Call
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), tracesBound)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			s.opts.Log.Warn("traces are not sent", "error", err.Error())
		}
	}, nil
}
