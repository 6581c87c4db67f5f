package serve

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
)

// metrics are the series of /metrics in the text format of Prometheus. Every series exists from the
// first scrape on. If a series began later, rate and increase would miss its first event.
type metrics struct {
	calls        durations // of clients, by call and outcome
	storeCalls   counter   // by call and outcome
	storeSeconds durations // by call
	grants       counter   // by mode
	evictions    counter
	recalls      counter
	lost         counter // by cause
	notices      counter // by outcome
}

// bounds are the buckets of the histograms, in seconds.
var bounds = [...]float64{0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 30}

// counted are the calls with counters of their own, and their outcomes. All other paths count as
// "other", so that clients cannot create counters by requesting paths.
var counted = map[string][]string{
	wire.Acquire:  {wire.Granted, wire.Busy, wire.Lost, wire.Refused, wire.Unknown},
	wire.Renew:    {wire.Granted, wire.Lost, wire.Refused, wire.Unknown},
	wire.Release:  {wire.Done, wire.Lost, wire.Refused, wire.Unknown},
	wire.Note:     {wire.Done, wire.Lost, wire.Refused, wire.Unknown},
	wire.Evict:    {wire.Done, wire.Lost, wire.Refused, wire.Unknown},
	wire.Fence:    {wire.Done, wire.Lost, wire.Refused, wire.Unknown},
	wire.Limit:    {wire.Done, wire.Refused, wire.Unknown},
	wire.Show:     {shown, wire.Refused, wire.Unknown},
	wire.List:     {shown, wire.Refused, wire.Unknown},
	wire.Features: {shown, wire.Refused},
	wire.Events:   {shown, wire.Refused, wire.Unknown},
	wire.Check:    {shown, wire.Refused, wire.Unknown},
	wire.History:  {shown, wire.Refused},
	wire.Overview: {shown, wire.Refused},
	wire.Me:       {shown, wire.Refused},
	wire.Reserve:  {wire.Granted, wire.Busy, wire.Refused, wire.Unknown},
	wire.Remove:   {wire.Done, wire.Busy, wire.Lost, wire.Refused, wire.Unknown},
	wire.Reset:    {wire.Done, wire.Busy, wire.Lost, wire.Refused, wire.Unknown},
	wire.Rehearse: {wire.Done, wire.Busy, wire.Refused, wire.Unknown},
	other:         {shown, wire.Done, wire.Refused},
}

const (
	// shown is the outcome of a call that only reads.
	shown = "shown"
	other = "other"
)

// nameOf returns the name of the call at a path.
func nameOf(path string) string { return strings.TrimPrefix(path, "/v1/") }

func (m *metrics) init() {
	m.calls.init("leasehold_call_seconds", "How long calls took, waits included.")
	for path, outcomes := range counted {
		for _, o := range outcomes {
			m.calls.begin(callLabels(nameOf(path), o))
		}
	}
	m.storeCalls.init("leasehold_store_calls_total", "Calls to the store.")
	m.storeSeconds.init("leasehold_store_call_seconds", "How long calls to the store took.")
	for _, call := range storeCalls {
		m.storeSeconds.begin(label("call", call))
		for _, o := range storeOutcomes {
			m.storeCalls.begin(callLabels(call, o.outcome))
		}
	}
	m.grants.init("leasehold_service_grants_total", "Leases that this instance granted.")
	m.grants.begin(label("mode", wire.Exclusive), label("mode", wire.Shared))
	m.evictions.init("leasehold_service_evictions_total", "Leases that this instance evicted.")
	m.evictions.begin("")
	m.recalls.init("leasehold_service_recalls_total", "Leases of this instance's clients whose holder was told that others wait.")
	m.recalls.begin("")
	m.lost.init("leasehold_service_lost_total", "Leases of this instance's clients that ended before they were released.")
	m.lost.begin(label("cause", causeExpired), label("cause", causeEvicted), label("cause", causeUnexplained))
	m.notices.init("leasehold_webhook_notices_total", "Notices for the webhook that came to an end.")
	m.notices.begin(label("outcome", noticeDelivered), label("outcome", noticeFailed), label("outcome", noticeDropped))
}

// label returns a label in the text format. Values have no special characters.
func label(name, value string) string { return name + `="` + value + `"` }

func callLabels(call, outcome string) string {
	return label("call", call) + "," + label("outcome", outcome)
}

// Causes of a loss.
const (
	causeExpired     = "expired" // not renewed in time
	causeEvicted     = "evicted"
	causeUnexplained = "unexplained" // its TTL was not over, and no eviction was reported
)

func (m *metrics) count(v *visit) {
	call := other
	if counted[v.r.URL.Path] != nil {
		call = v.Call
	}
	m.calls.count(callLabels(call, cmp.Or(v.Outcome, shown)), time.Since(v.began))
}

// started is when this program started, by its own clock. Dashboards show restarts by it.
var started = time.Now()

func (s *Server) showMetrics(w http.ResponseWriter, r *http.Request) {
	up, known := s.storeUp(r.Context())
	var b strings.Builder
	m := s.metrics
	m.calls.write(&b)
	m.storeSeconds.write(&b)
	for _, c := range []*counter{&m.storeCalls, &m.grants, &m.evictions, &m.recalls, &m.lost, &m.notices} {
		c.write(&b)
	}
	storeUp := math.NaN()
	if known {
		storeUp = float64(number(up))
	}
	for _, g := range append(s.history.gauges(time.Now(), s.opts.MetricLimits),
		figure{"leasehold_waiting_calls", "Calls that wait for other holders.", plain(s.gate.count(waits))},
		figure{"leasehold_claims", "Claims that this instance knows of.", plain(s.claims.count())},
		figure{"leasehold_listeners", "Event streams.", plain(s.hub.count())},
		figure{"leasehold_webhook_queue", "Notices for the webhook that are to be sent.", plain(s.webhook.count())},
		figure{"leasehold_draining", "1 when the instance is stopping.", plain(number(s.draining.Err() != nil))},
		figure{"leasehold_store_up", "1 when the store answered the last call that reached it.", plain(storeUp)},
		figure{"process_start_time_seconds", "When the process started, in seconds since 1970.", plain(float64(started.UnixMilli()) / 1000)},
	) {
		g.write(&b)
	}
	fmt.Fprintf(&b, "# HELP leasehold_build_info The build and the engine.\n# TYPE leasehold_build_info gauge\n")
	fmt.Fprintf(&b, "leasehold_build_info{version=%q,goversion=%q,engine=%q} 1\n", s.opts.Version, runtime.Version(), s.driver.Features().Engine)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String())) // the client has gone
}

// A figure is a gauge: a value, or one per label. NaN: unknown.
type figure struct {
	name, help string
	values     []value
}

type value struct {
	label string
	value float64
}

func plain[T int | float64](v T) []value { return []value{{value: float64(v)}} }

func (f *figure) write(b *strings.Builder) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", f.name, f.help, f.name)
	for _, v := range f.values {
		labels := ""
		if v.label != "" {
			labels = "{" + v.label + "}"
		}
		fmt.Fprintf(b, "%s%s %s\n", f.name, labels, strconv.FormatFloat(v.value, 'f', -1, 64))
	}
}

// gauges returns the gauges about the whole store and the history file. They are unknown until a
// look has seen the whole store. named adds the limits of names.
func (r *recorder) gauges(now time.Time, named bool) []figure {
	held, alone, full, atRisk, longest, age := math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()
	var used, limits []value
	seen, up, lag := r.glance(now)
	if seen != nil {
		age = now.Sub(seen.at).Seconds()
		if up {
			held = float64(seen.held)
			full, atRisk, longest = seen.tally(now)
			alone = float64(len(seen.rows)-seen.held) - full
		}
		if named {
			used, limits = seen.used(up)
		}
	}
	all := []figure{
		{"leasehold_store_held", "Leases in the store.", plain(held)},
		{"leasehold_store_waiting", "Places in the store's queues, by what they wait for.", []value{{label("reason", "exclusive"), alone}, {label("reason", "limit"), full}}},
		{"leasehold_store_at_risk", "Leases that were not renewed for more than half their length.", plain(atRisk)},
		{"leasehold_store_longest_wait_seconds", "For how long the first of them has waited.", plain(longest)},
		{"leasehold_store_look_age_seconds", "How long ago the store was asked what it holds.", plain(age)},
		{"leasehold_history_lag_seconds", "For how long the history file has not taken the first entry that it lacks.", plain(lag.Seconds())},
	}
	if named {
		all = append(all,
			figure{"leasehold_store_used", "Weight of the leases under a limit that an operator has set.", used},
			figure{"leasehold_store_limit", "Limits that operators have set.", limits},
		)
	}
	return all
}

// used returns the limits that operators have set, and what is used of each. known means that the
// sight is up to date.
func (s *sight) used(known bool) (used, limits []value) {
	for _, one := range s.limits {
		lock, uses, limit := label("lock", labelEscapes.Replace(one.name)), float64(one.used), float64(one.limit)
		if !known {
			uses, limit = math.NaN(), math.NaN()
		}
		used, limits = append(used, value{lock, uses}), append(limits, value{lock, limit})
	}
	return used, limits
}

// labelEscapes are the escapes of the text format.
var labelEscapes = strings.NewReplacer("\\", `\\`, "\"", `\"`, "\n", `\n`)

// glance returns what the last look at the whole store has seen, or nil, and whether the store was
// up then or later. lag is how long the file has not accepted an entry; 0: it has, or there is no
// file.
func (r *recorder) glance(now time.Time) (seen *sight, up bool, lag time.Duration) {
	if r == nil {
		return nil, false, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.writing.since.IsZero() {
		lag = now.Sub(r.writing.since)
	}
	return r.watch.sight, r.watch.store == wire.StoreUp, lag
}

// tally returns how many places wait for room under a limit, how many leases may be lost soon, and
// for how many seconds the longest waiter has waited; 0: nobody waits; NaN: the engine does not tell.
func (s *sight) tally(now time.Time) (full, atRisk, longest float64) {
	var r risk
	waited, known := time.Duration(0), len(s.rows) == s.held
	for i := range s.rows {
		one := &s.rows[i]
		r.add(one)
		full += float64(number(one.full))
		if one.waits && !one.since.IsZero() {
			waited, known = max(waited, now.Sub(one.since)), true
		}
	}
	atRisk, longest = math.NaN(), math.NaN()
	if n := r.told(); n != nil {
		atRisk = float64(*n)
	}
	if known {
		longest = waited.Seconds()
	}
	return full, atRisk, longest
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// A series has values by labels.
type series[V any] struct {
	name, help string

	mu  sync.Mutex
	all map[string]V // guarded by mu
}

func (s *series[V]) init(name, help string) {
	s.name, s.help, s.all = name, help, make(map[string]V)
}

// durations are histograms.
type durations struct{ series[*callCount] }

type callCount struct {
	calls   uint64
	seconds float64
	buckets [len(bounds)]uint64
}

// begin starts a histogram at zero, before anything is counted.
func (d *durations) begin(labels string) { d.all[labels] = &callCount{} }

func (d *durations) count(labels string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.all[labels]
	if c == nil {
		c = &callCount{}
		d.all[labels] = c
	}
	c.calls++
	c.seconds += took.Seconds()
	for i, bound := range bounds {
		if took.Seconds() <= bound {
			c.buckets[i]++
		}
	}
}

func (d *durations) write(b *strings.Builder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s histogram\n", d.name, d.help, d.name)
	for _, labels := range slices.Sorted(maps.Keys(d.all)) {
		c := d.all[labels]
		for i, bound := range bounds {
			fmt.Fprintf(b, "%s_bucket{%s,le=\"%g\"} %d\n", d.name, labels, bound, c.buckets[i])
		}
		fmt.Fprintf(b, "%s_bucket{%s,le=\"+Inf\"} %d\n", d.name, labels, c.calls)
		fmt.Fprintf(b, "%s_sum{%s} %g\n%s_count{%s} %d\n", d.name, labels, c.seconds, d.name, labels, c.calls)
	}
}

type counter struct{ series[uint64] }

// begin starts counters at zero, before anything is counted.
func (c *counter) begin(labels ...string) {
	for _, l := range labels {
		c.all[l] = 0
	}
}

func (c *counter) count(labels string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[labels]++
}

func (c *counter) write(b *strings.Builder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s counter\n", c.name, c.help, c.name)
	for _, labels := range slices.Sorted(maps.Keys(c.all)) {
		if labels == "" {
			fmt.Fprintf(b, "%s %d\n", c.name, c.all[labels])
		} else {
			fmt.Fprintf(b, "%s{%s} %d\n", c.name, labels, c.all[labels])
		}
	}
}
