package serve

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
)

// metrics counts calls, for /metrics in the text format of Prometheus.
type metrics struct {
	mu    sync.Mutex
	calls map[callKind]*callCount // guarded by mu
}

// A callKind is a call and what it came to.
type callKind struct{ call, outcome string }

type callCount struct {
	calls   uint64
	seconds float64
	buckets [len(bounds)]uint64
}

// bounds are of the histogram, in seconds.
var bounds = [...]float64{0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 30}

// counted are the calls that are told apart, with what each can come to; all else is "other", so that
// nobody makes as many counters as there are paths.
var counted = map[string][]string{
	wire.Acquire:  {wire.Granted, wire.Busy, wire.Lost, wire.Refused, wire.Unknown},
	wire.Renew:    {wire.Granted, wire.Lost, wire.Refused, wire.Unknown},
	wire.Release:  {wire.Done, wire.Lost, wire.Refused, wire.Unknown},
	wire.Note:     {wire.Done, wire.Lost, wire.Refused, wire.Unknown},
	wire.Evict:    {wire.Done, wire.Lost, wire.Refused, wire.Unknown},
	wire.Fence:    {wire.Done, wire.Refused, wire.Unknown},
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
	wire.Reset:    {wire.Done, wire.Busy, wire.Refused, wire.Unknown},
	wire.Rehearse: {wire.Done, wire.Busy, wire.Refused, wire.Unknown},
}

// shown is the outcome of what only reads.
const shown = "shown"

// nameOf is how a path is called.
func nameOf(path string) string { return strings.TrimPrefix(path, "/v1/") }

// init starts all counters at zero: of one that begins later, rates miss the first call.
func (m *metrics) init() {
	m.calls = make(map[callKind]*callCount)
	for path, outcomes := range counted {
		for _, o := range outcomes {
			m.calls[callKind{nameOf(path), o}] = &callCount{}
		}
	}
}

func (m *metrics) count(v *visit) {
	k := callKind{"other", cmp.Or(v.Outcome, shown)}
	if counted[v.r.URL.Path] != nil {
		k.call = v.Call
	}
	took := time.Since(v.began).Seconds()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[k]
	if c == nil {
		c = &callCount{}
		m.calls[k] = c
	}
	c.calls++
	c.seconds += took
	for i, bound := range bounds {
		if took <= bound {
			c.buckets[i]++
		}
	}
}

func (s *Server) showMetrics(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	b.WriteString("# HELP leasehold_call_seconds How long calls took, waits included.\n# TYPE leasehold_call_seconds histogram\n")
	s.metrics.write(&b)
	for _, g := range []struct {
		name, help string
		value      int
	}{
		{"leasehold_waiting_calls", "Calls that wait for other holders.", s.gate.count(waits)},
		{"leasehold_claims", "Claims that this instance knows of.", s.claims.count()},
		{"leasehold_listeners", "Event streams.", s.hub.count()},
		{"leasehold_draining", "1 when the instance is stopping.", number(s.draining.Err() != nil)},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n%s %d\n", g.name, g.help, g.name, g.name, g.value)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String())) // whose reader has gone
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func (m *metrics) write(b *strings.Builder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kinds := slices.SortedFunc(maps.Keys(m.calls), func(a, b callKind) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.outcome, b.outcome))
	})
	for _, k := range kinds {
		c, labels := m.calls[k], fmt.Sprintf("call=%q,outcome=%q", k.call, k.outcome)
		for i, bound := range bounds {
			fmt.Fprintf(b, "leasehold_call_seconds_bucket{%s,le=\"%g\"} %d\n", labels, bound, c.buckets[i])
		}
		fmt.Fprintf(b, "leasehold_call_seconds_bucket{%s,le=\"+Inf\"} %d\n", labels, c.calls)
		fmt.Fprintf(b, "leasehold_call_seconds_sum{%s} %g\nleasehold_call_seconds_count{%s} %d\n", labels, c.seconds, labels, c.calls)
	}
}
