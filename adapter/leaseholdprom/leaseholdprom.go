// Package leaseholdprom counts for Prometheus what a [leasehold.Locker] does.
//
// Metrics are labeled by engine. The name of the lock is not a label, because there may be any
// number of names; see [Options.Lock]. A dashboard and alerts are in docs/observe.
//
// All series of an engine start at zero together, so that rate and increase include the first loss.
// They start in New for the engines in [Options.Engines], else when a lock is first requested.
// There are about 290 per engine, and with Options.Lock per value of that label.
package leaseholdprom

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-go/leasehold"
)

// Options configure a Collector. The zero value of each field is its default.
type Options struct {
	// Lock adds the label lock to all metrics, and the metrics leasehold_used and leasehold_limit. It
	// maps a resource's name to the value, of which there must be few: each is a series of every
	// metric until the process ends. nil: no such label.
	Lock func(name string) string
	// Engines are the names, as in driver.Features.Engine, whose series New starts at zero. They
	// must be empty if Lock is set, because New does not know its values. nil: each engine's series
	// start when a lock is first requested.
	Engines []string
	// Registerer is where New registers the Collector; nil: prometheus.DefaultRegisterer.
	Registerer prometheus.Registerer
}

// A Collector collects the metrics of one or more Lockers. It is safe for concurrent use.
type Collector struct {
	lock    func(name string) string
	started sync.Map // of [2]string: label values whose series have started
	reasons sync.Map // of uint64: by Event.ID, the reason that a wait is counted under

	acquire  *prometheus.HistogramVec // by outcome
	hold     *prometheus.HistogramVec // by end
	waiting  *prometheus.GaugeVec     // by reason
	held     *prometheus.GaugeVec
	used     *prometheus.GaugeVec
	limit    *prometheus.GaugeVec
	slack    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	lost     *prometheus.CounterVec // by cause
	keeps    *prometheus.CounterVec // by end
	recalls  *prometheus.CounterVec
	outranks *prometheus.CounterVec
}

// seconds are histogram buckets from half a millisecond to an hour.
var seconds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

// shares are histogram buckets for the share of the TTL that is left at a renewal. It is two thirds
// if the renewal is on time.
var shares = []float64{.05, .1, .2, .33, .4, .5, .6, .7, .8, .9, 1}

// New registers a Collector and returns it; nil options are the defaults. It returns
// [leasehold.ErrInvalidOption] if both Engines and Lock are set, or the error of Register, for
// example if a Collector is registered already.
func New(o *Options) (*Collector, error) {
	if o == nil {
		o = &Options{}
	}
	if o.Lock != nil && len(o.Engines) > 0 {
		return nil, fmt.Errorf("leaseholdprom: new: %w: Engines beside Lock", leasehold.ErrInvalidOption)
	}
	c := &Collector{lock: o.Lock}
	histogram := func(name, help string, buckets []float64, by ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, c.labels(by...))
	}
	gauge := func(name, help string, by ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, c.labels(by...))
	}
	counter := func(name, help string, by ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, c.labels(by...))
	}
	c.acquire = histogram("leasehold_acquire_seconds", "How long calls that acquire a lock took, by what came of them.", seconds, "outcome")
	c.hold = histogram("leasehold_hold_seconds", "How long locks were held, by how that ended.", seconds, "end")
	c.waiting = gauge("leasehold_waiting", "Calls that acquire a lock and have not returned, by what they wait for.", "reason")
	c.held = gauge("leasehold_held", "Leases that are held, nested ones included.")
	c.used = gauge("leasehold_used", "Weight of the shared leases that are held, nested ones included.")
	c.limit = gauge("leasehold_limit", "The limit that the last call with one asked for.")
	c.slack = histogram("leasehold_renewal_slack_ratio", "What renewals found left of the lease, as a share of its TTL.", shares)
	c.failures = counter("leasehold_renewal_failures_total", "Renewals that failed. Each lease is tried again until it ends.")
	c.lost = counter("leasehold_lost_total", "Leases that ended before they were released, by cause.", "cause")
	c.keeps = counter("leasehold_keeps_total", "Leases that were kept after their release, by how that ended.", "end")
	c.recalls = counter("leasehold_recalls_total", "Leases, held or kept, that another process has waited for.")
	c.outranks = counter("leasehold_outranked_total", "Leaders that stepped down for a candidate of higher preference.")
	for _, engine := range o.Engines {
		c.start(leasehold.Event{Engine: engine})
	}
	return c, cmp.Or(o.Registerer, prometheus.DefaultRegisterer).Register(c)
}

// labels returns the label names of a metric: the common ones, then by.
func (c *Collector) labels(by ...string) []string {
	all := append([]string{"engine"}, by...)
	if c.lock != nil {
		all = append(all, "lock")
	}
	return all
}

// of returns the label values of an event's metric: the common ones, then by.
func (c *Collector) of(e leasehold.Event, by ...string) []string {
	all := append([]string{cmp.Or(e.Engine, "unknown")}, by...)
	if c.lock != nil {
		all = append(all, strings.ToValidUTF8(c.lock(e.Name), "\uFFFD")) // others panic
	}
	return all
}

// Trace is a [leasehold.Trace]: pass it to Options.Trace.
func (c *Collector) Trace(_ context.Context, e leasehold.Event) {
	switch e.Kind {
	case leasehold.KindWait:
		c.waits(e)
	case leasehold.KindHold:
		c.holds(e)
	case leasehold.KindRenewal:
		c.renews(e)
	case leasehold.KindKeep:
		c.keeping(e)
	}
}

// start starts all series with the labels of e at zero, once.
func (c *Collector) start(e leasehold.Event) {
	var labels [2]string
	copy(labels[:], c.of(e))
	if _, already := c.started.LoadOrStore(labels, true); already {
		return
	}
	for s := leasehold.StepGranted; s <= leasehold.StepFailed; s++ {
		c.acquire.WithLabelValues(c.of(e, s.String())...)
	}
	for s := leasehold.StepReleased; s <= leasehold.StepUnknown; s++ {
		c.hold.WithLabelValues(c.of(e, s.String())...)
	}
	for _, s := range keepEnds {
		c.keeps.WithLabelValues(c.of(e, s.String())...)
	}
	for _, cause := range leasehold.Causes() {
		c.lost.WithLabelValues(c.of(e, cause)...)
	}
	for _, reason := range leasehold.Reasons() {
		c.waiting.WithLabelValues(c.of(e, reason)...)
	}
	c.held.WithLabelValues(c.of(e)...)
	c.used.WithLabelValues(c.of(e)...)
	c.slack.WithLabelValues(c.of(e)...)
	c.failures.WithLabelValues(c.of(e)...)
	c.recalls.WithLabelValues(c.of(e)...)
	c.outranks.WithLabelValues(c.of(e)...)
}

// keepEnds are the steps that end the keeping of a lease.
var keepEnds = []leasehold.Step{leasehold.StepTaken, leasehold.StepGivenBack, leasehold.StepLost, leasehold.StepEvicted, leasehold.StepUnknown}

func (c *Collector) waits(e leasehold.Event) {
	switch {
	case e.Step == leasehold.StepBegun:
		c.start(e)
		c.waitsFor(e, e.Reason())
		if e.Limit > 0 {
			c.limit.WithLabelValues(c.of(e)...).Set(float64(e.Limit))
		}
	case e.Step == leasehold.StepQueued:
		c.waitsFor(e, e.Reason())
	case e.Step.Ends():
		c.waitsFor(e, "")
		c.acquire.WithLabelValues(c.of(e, e.Step.String())...).Observe(e.Took.Seconds())
	}
}

// waitsFor counts a wait under reason, instead of its former reason. With "", the wait has ended.
func (c *Collector) waitsFor(e leasehold.Event, reason string) {
	if was, waits := c.reasons.LoadAndDelete(e.ID); waits {
		c.waiting.WithLabelValues(c.of(e, was.(string))...).Dec()
	}
	if reason != "" {
		c.reasons.Store(e.ID, reason)
		c.waiting.WithLabelValues(c.of(e, reason)...).Inc()
	}
}

func (c *Collector) holds(e leasehold.Event) {
	switch {
	case e.Step == leasehold.StepBegun:
		c.held.WithLabelValues(c.of(e)...).Inc()
		c.used.WithLabelValues(c.of(e)...).Add(float64(e.Weight))
	case e.Step == leasehold.StepRecalled:
		c.recalls.WithLabelValues(c.of(e)...).Inc()
	case e.Step == leasehold.StepOutranked:
		c.outranks.WithLabelValues(c.of(e)...).Inc()
	}
	if !e.Step.Ends() {
		return
	}
	c.held.WithLabelValues(c.of(e)...).Dec()
	c.used.WithLabelValues(c.of(e)...).Sub(float64(e.Weight))
	c.hold.WithLabelValues(c.of(e, e.Step.String())...).Observe(e.Took.Seconds())
	if cause := e.Cause(); cause != "" {
		c.lost.WithLabelValues(c.of(e, cause)...).Inc()
	}
}

func (c *Collector) keeping(e leasehold.Event) {
	switch {
	case e.Step == leasehold.StepRecalled:
		c.recalls.WithLabelValues(c.of(e)...).Inc()
	case e.Step.Ends():
		c.keeps.WithLabelValues(c.of(e, e.Step.String())...).Inc()
	}
}

func (c *Collector) renews(e leasehold.Event) {
	switch e.Step {
	case leasehold.StepRenewed:
		c.slack.WithLabelValues(c.of(e)...).Observe(e.Left.Seconds() / e.TTL.Seconds())
	case leasehold.StepFailed:
		c.failures.WithLabelValues(c.of(e)...).Inc()
	}
}

func (c *Collector) all() []prometheus.Collector {
	all := []prometheus.Collector{c.acquire, c.hold, c.waiting, c.held, c.slack, c.failures, c.lost, c.keeps, c.recalls, c.outranks}
	if c.lock != nil {
		all = append(all, c.used, c.limit)
	}
	return all
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.all() {
		m.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.all() {
		m.Collect(to)
	}
}
