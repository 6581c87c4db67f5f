// Package leaseholdotel reports to OpenTelemetry what a [leasehold.Locker] does.
//
// Each wait for a lock is a span, and so is each hold. Both are children of the caller's span, and
// a hold is linked to its wait. Renewals and recalls are events of the hold.
//
// Metrics have the attribute leasehold.engine. Only spans have the lock's name, because there may
// be any number of names; see [Options.Lock].
//
// [Observer.Call] makes spans of calls to a service. [Inject] sends the caller's span to a service.
package leaseholdotel

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasehold-go/leasehold"
)

const scope = "github.com/leasehold-go/leasehold/adapter/leaseholdotel"

// Options configure an Observer. The zero value of each field is its default.
type Options struct {
	TracerProvider trace.TracerProvider // nil: otel.GetTracerProvider()
	MeterProvider  metric.MeterProvider // nil: otel.GetMeterProvider()
	// Engines are the names, as in driver.Features.Engine, whose counters New starts at zero. They
	// must be empty if Lock is set, because New does not know its values. nil: each engine's
	// counters start when a lock is first requested.
	Engines []string
	// Lock adds the attribute leasehold.lock to all metrics, and the metrics leasehold.used and
	// leasehold.limit. It maps a resource's name to the value, of which there must be few. nil: no
	// such attribute.
	Lock func(name string) string
}

// An Observer makes spans and metrics. It is safe for concurrent use.
type Observer struct {
	tracer  trace.Tracer
	metrics *metrics

	mu    sync.Mutex
	spans map[uint64]*spans // guarded by mu; by Event.ID, those that have not ended
}

// spans are the two spans of one lease.
type spans struct{ wait, hold trace.Span }

// New returns an Observer; nil options are the defaults. It returns [leasehold.ErrInvalidOption] if
// both Engines and Lock are set, or the error of an instrument.
func New(o *Options) (*Observer, error) {
	if o == nil {
		o = &Options{}
	}
	if o.Lock != nil && len(o.Engines) > 0 {
		return nil, fmt.Errorf("leaseholdotel: new: %w: Engines beside Lock", leasehold.ErrInvalidOption)
	}
	m, err := newMetrics(o)
	if err != nil {
		return nil, err
	}
	for _, engine := range o.Engines {
		m.start(context.Background(), leasehold.Event{Engine: engine})
	}
	return &Observer{
		tracer: cmp.Or(o.TracerProvider, otel.GetTracerProvider()).Tracer(scope), metrics: m,
		spans: make(map[uint64]*spans),
	}, nil
}

// Trace is a [leasehold.Trace]: pass it to Options.Trace.
func (o *Observer) Trace(ctx context.Context, e leasehold.Event) {
	o.metrics.trace(ctx, e)
	switch e.Kind {
	case leasehold.KindWait:
		o.waits(ctx, e)
	case leasehold.KindHold:
		o.holds(ctx, e)
	case leasehold.KindRenewal:
		o.renews(e)
	}
}

// attributes returns the attributes of the wait's and the hold's span.
func attributes(e leasehold.Event) trace.SpanStartEventOption {
	return trace.WithAttributes(
		attribute.String("leasehold.lock", e.Name), attribute.String("leasehold.mode", e.Mode.String()),
		attribute.String("leasehold.engine", e.Engine))
}

func (o *Observer) waits(ctx context.Context, e leasehold.Event) {
	if e.Step == leasehold.StepBegun {
		_, span := o.tracer.Start(ctx, "leasehold wait", attributes(e))
		o.mu.Lock()
		defer o.mu.Unlock()
		o.spans[e.ID] = &spans{wait: span}
		return
	}
	s := o.of(e)
	if s == nil {
		return
	}
	if e.Step == leasehold.StepQueued {
		s.wait.AddEvent("queued")
		return
	}
	s.wait.SetAttributes(attribute.String("leasehold.outcome", e.Step.String()), attribute.Int64("leasehold.token", int64(e.Token)))
	end(s.wait, e, e.Step == leasehold.StepFailed)
	if !e.Step.Holds() {
		o.forget(e)
	}
}

func (o *Observer) holds(ctx context.Context, e leasehold.Event) {
	s := o.of(e)
	switch {
	case s == nil:
	case e.Step == leasehold.StepBegun:
		_, s.hold = o.tracer.Start(ctx, "leasehold hold", attributes(e), trace.WithLinks(trace.Link{SpanContext: s.wait.SpanContext()}))
		s.hold.SetAttributes(attribute.Int64("leasehold.token", int64(e.Token)))
	case !e.Step.Ends():
		s.hold.AddEvent(e.Step.String())
	default:
		s.hold.SetAttributes(attribute.String("leasehold.end", e.Step.String()))
		if cause := e.Cause(); cause != "" {
			s.hold.SetAttributes(attribute.String("leasehold.cause", cause))
		}
		end(s.hold, e, e.Step != leasehold.StepReleased)
		o.forget(e)
	}
}

// renews adds the end of a renewal as an event to the span of the hold.
func (o *Observer) renews(e leasehold.Event) {
	s := o.of(e)
	if s == nil || !e.Step.Ends() {
		return
	}
	about := []attribute.KeyValue{attribute.Float64("leasehold.left", e.Left.Seconds())}
	if e.Err != nil {
		about = append(about, attribute.String("exception.message", e.Err.Error()))
	}
	s.hold.AddEvent("renewal "+e.Step.String(), trace.WithAttributes(about...))
}

// end ends a span with the outcome of e. bad marks the span as failed.
func end(s trace.Span, e leasehold.Event, bad bool) {
	switch {
	case bad && e.Err != nil:
		s.RecordError(e.Err)
		s.SetStatus(codes.Error, e.Err.Error())
	case e.Err != nil:
		s.SetAttributes(attribute.String("leasehold.reason", e.Err.Error()))
	}
	s.End()
}

// of returns the spans of an event's lease, or nil if they have ended.
func (o *Observer) of(e leasehold.Event) *spans {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spans[e.ID]
}

func (o *Observer) forget(e leasehold.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.spans, e.ID)
}
