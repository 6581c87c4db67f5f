package leaseholdotel

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/leasehold-go/leasehold"
)

// metrics are the instruments of an Observer.
type metrics struct {
	lock    func(name string) string
	started sync.Map // sets of attributes, attribute.Distinct, whose counters have started
	reasons sync.Map // of uint64: by Event.ID, the reason that a wait is counted under

	acquire  metric.Float64Histogram   // by leasehold.outcome
	hold     metric.Float64Histogram   // by leasehold.end
	waiting  metric.Int64UpDownCounter // by leasehold.reason
	held     metric.Int64UpDownCounter
	used     metric.Int64UpDownCounter
	limit    metric.Int64Gauge
	slack    metric.Float64Histogram
	failures metric.Int64Counter
	lost     metric.Int64Counter // by leasehold.cause
	keeps    metric.Int64Counter // by leasehold.end
	recalls  metric.Int64Counter
	outranks metric.Int64Counter
}

// seconds are histogram boundaries from half a millisecond to an hour.
var seconds = metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)

// shares are histogram boundaries for the share of the TTL that is left at a renewal. It is two
// thirds if the renewal is on time.
var shares = metric.WithExplicitBucketBoundaries(.05, .1, .2, .33, .4, .5, .6, .7, .8, .9, 1)

func newMetrics(o *Options) (*metrics, error) {
	meter := cmp.Or(o.MeterProvider, otel.GetMeterProvider()).Meter(scope)
	m, errs := &metrics{lock: o.Lock}, make([]error, 12)
	m.acquire, errs[0] = meter.Float64Histogram("leasehold.acquire.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("How long calls that acquire a lock took, by what came of them."))
	m.hold, errs[1] = meter.Float64Histogram("leasehold.hold.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("How long locks were held, by how that ended."))
	m.waiting, errs[2] = meter.Int64UpDownCounter("leasehold.waiting", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that acquire a lock and have not returned, by what they wait for."))
	m.held, errs[3] = meter.Int64UpDownCounter("leasehold.held", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that are held, nested ones included."))
	m.slack, errs[4] = meter.Float64Histogram("leasehold.renewal.slack_ratio", metric.WithUnit("1"), shares,
		metric.WithDescription("What renewals found left of the lease, as a share of its TTL."))
	m.failures, errs[5] = meter.Int64Counter("leasehold.renewal.failures", metric.WithUnit("{renewal}"),
		metric.WithDescription("Renewals that failed. Each lease is tried again until it ends."))
	m.lost, errs[6] = meter.Int64Counter("leasehold.lost", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that ended before they were released, by cause."))
	m.keeps, errs[7] = meter.Int64Counter("leasehold.keeps", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that were kept after their release, by how that ended."))
	m.recalls, errs[8] = meter.Int64Counter("leasehold.recalls", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases, held or kept, that another process has waited for."))
	m.outranks, errs[9] = meter.Int64Counter("leasehold.outranked", metric.WithUnit("{lease}"),
		metric.WithDescription("Leaders that stepped down for a candidate of higher preference."))
	m.used, errs[10] = meter.Int64UpDownCounter("leasehold.used", metric.WithUnit("1"),
		metric.WithDescription("Weight of the shared leases that are held, nested ones included."))
	m.limit, errs[11] = meter.Int64Gauge("leasehold.limit", metric.WithUnit("1"),
		metric.WithDescription("The limit that the last call with one asked for."))
	return m, errors.Join(errs...)
}

// set returns the attributes of an event's metric: the common ones, then by.
func (m *metrics) set(e leasehold.Event, by ...attribute.KeyValue) attribute.Set {
	all := append(by, attribute.String("leasehold.engine", e.Engine))
	if m.lock != nil {
		all = append(all, attribute.String("leasehold.lock", strings.ToValidUTF8(m.lock(e.Name), "\uFFFD"))) // exporters send no others
	}
	return attribute.NewSet(all...)
}

// of returns the set as an option.
func (m *metrics) of(e leasehold.Event, by ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(m.set(e, by...))
}

// start starts all counters with the attributes of e at zero, once. Histograms cannot start at
// zero: they begin with their first value. So does the limit.
func (m *metrics) start(ctx context.Context, e leasehold.Event) {
	set := m.set(e)
	if _, already := m.started.LoadOrStore(set.Equivalent(), true); already {
		return
	}
	m.held.Add(ctx, 0, m.of(e))
	m.failures.Add(ctx, 0, m.of(e))
	m.recalls.Add(ctx, 0, m.of(e))
	m.outranks.Add(ctx, 0, m.of(e))
	m.uses(ctx, e, 0)
	for _, reason := range leasehold.Reasons() {
		m.waiting.Add(ctx, 0, m.of(e, attribute.String("leasehold.reason", reason)))
	}
	for _, s := range keepEnds {
		m.keeps.Add(ctx, 0, m.of(e, attribute.String("leasehold.end", s.String())))
	}
	for _, cause := range leasehold.Causes() {
		m.lost.Add(ctx, 0, m.of(e, attribute.String("leasehold.cause", cause)))
	}
}

// keepEnds are the steps that end the keeping of a lease.
var keepEnds = []leasehold.Step{leasehold.StepTaken, leasehold.StepGivenBack, leasehold.StepLost, leasehold.StepEvicted, leasehold.StepUnknown}

func (m *metrics) trace(ctx context.Context, e leasehold.Event) {
	switch e.Kind {
	case leasehold.KindWait:
		m.waits(ctx, e)
	case leasehold.KindHold:
		m.holds(ctx, e)
	case leasehold.KindRenewal:
		m.renews(ctx, e)
	case leasehold.KindKeep:
		m.keeping(ctx, e)
	}
}

func (m *metrics) waits(ctx context.Context, e leasehold.Event) {
	switch {
	case e.Step == leasehold.StepBegun:
		m.start(ctx, e)
		m.waitsFor(ctx, e, e.Reason())
		if m.lock != nil && e.Limit > 0 {
			m.limit.Record(ctx, int64(e.Limit), m.of(e))
		}
	case e.Step == leasehold.StepQueued:
		m.waitsFor(ctx, e, e.Reason())
	case e.Step.Ends():
		m.waitsFor(ctx, e, "")
		m.acquire.Record(ctx, e.Took.Seconds(), m.of(e, attribute.String("leasehold.outcome", e.Step.String())))
	}
}

// waitsFor counts a wait under reason, instead of its former reason. With "", the wait has ended.
func (m *metrics) waitsFor(ctx context.Context, e leasehold.Event, reason string) {
	count := func(by int64, reason string) {
		m.waiting.Add(ctx, by, m.of(e, attribute.String("leasehold.reason", reason)))
	}
	if was, waits := m.reasons.LoadAndDelete(e.ID); waits {
		count(-1, was.(string))
	}
	if reason != "" {
		m.reasons.Store(e.ID, reason)
		count(1, reason)
	}
}

// uses adds weight to what the shared leases of a lock use. The metric exists only with
// Options.Lock.
func (m *metrics) uses(ctx context.Context, e leasehold.Event, weight int) {
	if m.lock != nil {
		m.used.Add(ctx, int64(weight), m.of(e))
	}
}

func (m *metrics) holds(ctx context.Context, e leasehold.Event) {
	switch {
	case e.Step == leasehold.StepBegun:
		m.held.Add(ctx, 1, m.of(e))
		m.uses(ctx, e, e.Weight)
	case e.Step == leasehold.StepRecalled:
		m.recalls.Add(ctx, 1, m.of(e))
	case e.Step == leasehold.StepOutranked:
		m.outranks.Add(ctx, 1, m.of(e))
	}
	if !e.Step.Ends() {
		return
	}
	m.held.Add(ctx, -1, m.of(e))
	m.uses(ctx, e, -e.Weight)
	m.hold.Record(ctx, e.Took.Seconds(), m.of(e, attribute.String("leasehold.end", e.Step.String())))
	if cause := e.Cause(); cause != "" {
		m.lost.Add(ctx, 1, m.of(e, attribute.String("leasehold.cause", cause)))
	}
}

func (m *metrics) keeping(ctx context.Context, e leasehold.Event) {
	switch {
	case e.Step == leasehold.StepRecalled:
		m.recalls.Add(ctx, 1, m.of(e))
	case e.Step.Ends():
		m.keeps.Add(ctx, 1, m.of(e, attribute.String("leasehold.end", e.Step.String())))
	}
}

func (m *metrics) renews(ctx context.Context, e leasehold.Event) {
	switch e.Step {
	case leasehold.StepRenewed:
		m.slack.Record(ctx, e.Left.Seconds()/e.TTL.Seconds(), m.of(e))
	case leasehold.StepFailed:
		m.failures.Add(ctx, 1, m.of(e))
	}
}
