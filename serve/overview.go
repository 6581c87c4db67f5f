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

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// mostContended, mostHosts and mostOverviewEnds limit the lists of an overview.
const mostContended, mostHosts, mostOverviewEnds = 10, 20, 10

// A sight is what one look at the store has found for all names.
type sight struct {
	at     time.Time // when the answer had arrived
	rows   []row
	held   int // how many of rows are leases; the others are places
	limits []limited
}

// A limited is a name with a limit that an operator has set.
type limited struct {
	name  string
	limit int
	used  int64
}

// mostLimits is how many names with limits /metrics shows. Each is a series.
const mostLimits = 1000

// limitOf adds the limit of a name, if it has one.
func (s *sight) limitOf(state driver.State) {
	if state.Limit == 0 || len(s.limits) == mostLimits {
		return
	}
	one := limited{name: state.Resource, limit: state.Limit}
	for _, h := range state.Holders {
		one.used += int64(h.Weight)
	}
	s.limits = append(s.limits, one)
}

// A row is a lease or a place in a queue.
type row struct {
	name   string
	host   string
	waits  bool
	full   bool          // it waits only for room under a limit: neither a holder nor a waiter up to it is exclusive
	since  time.Time     // zero: unknown
	renews bool          // its details show a holder that means to renew it
	left   time.Duration // 0: unknown
	ttl    time.Duration // or a lower bound; 0: unknown
}

// holds adds a lease.
func (s *sight) holds(one *holding, h driver.Holder) {
	s.held++
	s.rows = append(s.rows, row{
		name: one.Name, host: eventHost(one.Event), since: one.since, left: h.Left, ttl: h.TTL,
		renews: one.Details != nil && one.Details.Renews(),
	})
}

func eventHost(e wire.Event) string {
	if e.Details == nil {
		return ""
	}
	return e.Details.Host
}

// knows adds the length of a lease if the engine does not tell it; 0: unknown. s may be nil.
func (s *sight) knows(one *holding, ttl time.Duration) {
	if s != nil && one.row > 0 {
		row := &s.rows[one.row-1]
		row.ttl = cmp.Or(row.ttl, ttl)
	}
}

// A risk counts leases that are meant to be renewed: late ones, which have used more than half
// their TTL, among those whose length is known.
type risk struct{ unknown, known, late int }

// add adds a lease. A lease that nobody means to renew is not at risk.
func (r *risk) add(one *row) {
	switch {
	case one.waits || !one.renews:
	case one.ttl == 0 || one.left == 0:
		r.unknown++
	default:
		r.known++
		r.late += number(one.left < one.ttl/2)
	}
}

// told returns how many leases may be lost soon; nil: it is known for none.
func (r *risk) told() *int {
	if r.known == 0 && r.unknown > 0 {
		return nil
	}
	return &r.late
}

// before returns t minus d; zero: d is unknown.
func before(t time.Time, d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return t.Add(-d)
}

func (s *Server) overview(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept-Encoding")
	v := w.(*visit)
	v.zips = takesGzip(r)
	prefix := r.URL.Query().Get("prefix")
	if err := checkPrefix(prefix); err != nil {
		s.rejected(w, err)
		return
	}
	if s.history == nil {
		s.failed(w, driver.ErrUnsupported)
		return
	}
	s.answer(w, http.StatusOK, s.shared.of(v.client.views(prefix), s.figures))
}

// manyRows is the number of rows from which figures are shared, for sharedFor, among clients that
// may view the same names.
const manyRows, sharedFor = 2000, time.Second

// sharedFigures are figures that were counted recently.
type sharedFigures struct {
	mu  sync.Mutex
	all map[string]shareOfFigures // guarded by mu; by views
}

type shareOfFigures struct {
	at time.Time
	f  wire.Figures
}

// of returns the figures from count, or shared ones.
func (s *sharedFigures) of(views []string, count func(views []string) (f wire.Figures, rows int)) wire.Figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(s.all, func(_ string, one shareOfFigures) bool { return now.Sub(one.at) > sharedFor })
	by := fmt.Sprintf("%q", views) // tells no views from a view of all names
	if one, ok := s.all[by]; ok {
		return one.f
	}
	f, rows := count(views)
	if rows > manyRows {
		s.all[by] = shareOfFigures{time.Now(), f}
	}
	return f
}

// figures counts the names that begin with one of views.
func (s *Server) figures(views []string) (f wire.Figures, rows int) {
	m, now := s.history.now(), time.Now()
	f = wire.Figures{
		Contended: []wire.Contended{}, Hosts: []wire.Host{}, Ends: []wire.Entry{}, Series: wire.Series{Step: wire.Millis(step), Points: []wire.Point{}},
		BeginsMS: wire.Millis(now.Sub(m.from)), Partial: m.watch.sight == nil, Store: m.watch.store,
	}
	in := func(name string) bool {
		return slices.ContainsFunc(views, func(p string) bool { return strings.HasPrefix(name, p) })
	}
	if seen := m.watch.sight; seen != nil {
		f.Age, f.Pause = new(wire.Millis(now.Sub(seen.at))), new(wire.Millis(max(s.history.every, m.watch.pause)))
		rows = len(seen.rows)
		f.AtRisk = countRows(&f, seen.rows, now, in)
	} else {
		countRows(&f, s.claims.rows(), now, in)
	}
	s.history.count(&f, &m, now, views, in)
	return f, rows
}

// countRows counts the leases and waiters of a sight.
func countRows(f *wire.Figures, rows []row, now time.Time, in func(name string) bool) (atRisk *int) {
	var r risk
	names, hosts := make(map[string]*wire.Contended), make(map[string]*wire.Host)
	for _, one := range rows {
		if !in(one.name) {
			continue
		}
		name := names[one.name]
		if name == nil {
			name = &wire.Contended{Name: one.name}
			names[one.name] = name
		}
		host := &wire.Host{}
		if one.host != "" {
			if hosts[one.host] == nil {
				hosts[one.host] = &wire.Host{Host: one.host}
			}
			host = hosts[one.host]
		}
		if !one.waits {
			f.Held++
			host.Held++
			r.add(&one)
			continue
		}
		f.Waiting++
		host.Waiting++
		name.Waiting++
		if one.since.IsZero() {
			continue
		}
		waited := max(wire.Millis(now.Sub(one.since)), 0)
		if name.Longest = max(name.Longest, waited); waited > f.Longest || f.LongestName == "" {
			f.Longest, f.LongestName = waited, one.name
		}
	}
	f.Names = len(names)
	for _, name := range names {
		if name.Waiting > 0 {
			f.Contended = append(f.Contended, *name)
		}
	}
	slices.SortFunc(f.Contended, func(a, b wire.Contended) int {
		return cmp.Or(b.Waiting-a.Waiting, cmp.Compare(b.Longest, a.Longest), cmp.Compare(a.Name, b.Name))
	})
	f.Contended = f.Contended[:min(len(f.Contended), mostContended)]
	for _, host := range hosts {
		f.Hosts = append(f.Hosts, *host)
	}
	slices.SortFunc(f.Hosts, func(a, b wire.Host) int {
		return cmp.Or(b.Held-a.Held, b.Waiting-a.Waiting, cmp.Compare(a.Host, b.Host))
	})
	f.Hosts = f.Hosts[:min(len(f.Hosts), mostHosts)]
	return r.told()
}

// ends are the kinds of entries with which leases end.
var ends = map[string]bool{wire.EventReleased: true, wire.Expired: true, wire.EventEvicted: true, wire.EventEnded: true}

// count counts recent entries.
func (r *recorder) count(f *wire.Figures, m *kept, now time.Time, views []string, in func(name string) bool) {
	all := len(views) == 1 && views[0] == ""
	var routine, troubles []*HistoryEntry // entries of ends of leases
	some := make([]minute, steps)         // of some names, by age; number 1: it has entries
	for e := range m.newestFirst {
		if e.Name == "" || !in(e.Name) {
			continue
		}
		if list := &routine; ends[e.Kind] {
			if e.isTrouble() {
				list = &troubles
			}
			if len(*list) < mostOverviewEnds {
				*list = append(*list, e)
			}
		}
		if ago := now.Sub(e.Time); !all && ago >= 0 && ago < steps*step { // below 0: from a wrong clock
			one := &some[ago/step]
			one.number = 1
			one.count(e)
		}
	}
	for _, e := range overviewEnds(routine, troubles) {
		f.Ends = append(f.Ends, e.told(now))
	}
	reaches := func(d time.Duration) bool { return !m.since.After(m.from) || !m.since.After(now.Add(-d)) }
	minutes, grants, hour := some, some[0].grants, int(time.Hour/step)
	if all {
		r.mu.Lock()
		minutes, grants, hour = r.minutes.of(now), r.minutes.lately(now), hour+1
		r.mu.Unlock()
	}
	waits := waitsOf(minutes[:min(len(minutes), int(waitsFor/step))])
	lost, evicted := troublesOf(minutes[:min(len(minutes), hour)])
	if !all {
		minutes = m.known(now, minutes)
	}
	f.Series.Points = pointsOf(minutes)
	if all || !m.seldom.After(now.Add(-time.Hour)) {
		f.LostHour, f.EvictedHour = &lost, &evicted
	}
	if all || reaches(time.Minute) {
		f.GrantsMin = &grants
	}
	if all || reaches(waitsFor) {
		f.P50, f.P99 = quantile(&waits, 0.5), quantile(&waits, 0.99)
	}
}

// overviewEnds returns the last ends, newest first. Half of them may be older troubles, which
// frequent ordinary ends would displace.
func overviewEnds(routine, troubles []*HistoryEntry) []*HistoryEntry {
	troubles = troubles[:min(len(troubles), max(mostOverviewEnds/2, mostOverviewEnds-len(routine)))]
	all := slices.Concat(troubles, routine[:min(len(routine), mostOverviewEnds-len(troubles))])
	slices.SortFunc(all, func(a, b *HistoryEntry) int { return cmp.Compare(b.Seq, a.Seq) })
	return all
}

// pointsOf converts minutes, newest first.
func pointsOf(minutes []minute) []wire.Point {
	points := []wire.Point{}
	for i := range minutes {
		if minutes[i].number >= 0 {
			points = append(points, minutes[i].point(time.Duration(i)*step))
		}
	}
	return points
}

// known cuts the minutes of some names to those whose entries are still in memory, and marks the
// empty ones that lie in a gap.
func (m *kept) known(now time.Time, minutes []minute) []minute {
	for i := range minutes {
		to := now.Add(-time.Duration(i) * step)
		if i > 0 && to.Before(m.since) {
			return minutes[:i]
		}
		if minutes[i].number == 0 && m.blind(to.Add(-step), to) {
			minutes[i].number = -1
		}
	}
	return minutes
}

// blind reports whether there is a gap between from and to.
func (m *kept) blind(from, to time.Time) bool {
	return slices.ContainsFunc(m.rare, func(e *HistoryEntry) bool { return e.Kind == wire.Gap && !e.From.After(from) && !e.To.Before(to) })
}

// rows returns the leases and places that this instance has granted.
func (c *claims) rows() (all []row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for k, one := range c.all {
		if one.lasts(now) && one.phase != unsure {
			all = append(all, row{name: k.name, waits: one.phase == queued})
		}
	}
	return all
}
