package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// readHistoryWithin is how long the history file may take to answer.
	readHistoryWithin = 3 * time.Second
	// lateAfter is how far the file may lag before a history warns of it.
	lateAfter = 10 * time.Second
	// mostGaps is how many gaps a history lists.
	mostGaps = 100
)

// instanceName identifies the instance for people.
func instanceName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s[%d]", host, os.Getpid())
}

func (s *Server) showHistory(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept-Encoding")
	v := w.(*visit)
	v.zips = takesGzip(r)
	if s.history == nil {
		s.failed(w, fmt.Errorf("%w: this instance keeps no history", driver.ErrUnsupported))
		return
	}
	q, err := s.historyQuery(r)
	if err != nil {
		s.rejected(w, err)
		return
	}
	if q.Name != "" {
		if v.Name = q.Name; !s.may(w, View, q.Name) {
			return
		}
	} else {
		q.Prefixes = v.client.views(q.Prefixes[0])
	}
	s.answer(w, http.StatusOK, s.history.answer(r.Context(), q))
}

// historyQuery parses a query. It does not yet restrict the prefix to what the client may view.
func (s *Server) historyQuery(r *http.Request) (q HistoryQuery, err error) {
	query := r.URL.Query()
	if q.Limit, err = limitOf(query.Get("limit")); err != nil {
		return q, err
	}
	if query.Has("name") {
		if q.Name = query.Get("name"); query.Has("prefix") {
			return q, errors.New("name and prefix exclude each other")
		} else if err := driver.CheckName(q.Name); err != nil {
			return q, err
		}
	}
	prefix := query.Get("prefix")
	if err := checkPrefix(prefix); err != nil {
		return q, err
	}
	q.Prefixes = []string{prefix}
	if q.Kinds, err = kindsOf(query.Get("kind"), wire.EntryKinds); err != nil {
		return q, err
	}
	var since, until error
	q.Since, since = agoOf(query, "since_ms")
	q.Until, until = agoOf(query, "until_ms")
	if err := errors.Join(since, until); err != nil {
		return q, err
	}
	q.Before, err = s.history.cursor(query.Get("after"))
	return q, err
}

// agoOf returns the instant that a field gives as an age; zero: the field is absent.
func agoOf(query url.Values, field string) (time.Time, error) {
	text := query.Get(field)
	if text == "" {
		return time.Time{}, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || ms > wire.Millis(maxTTL) {
		return time.Time{}, fmt.Errorf("%s is a number of milliseconds, at most %d", field, wire.Millis(maxTTL))
	}
	return time.Now().Add(-wire.Duration(ms)), nil
}

// cursor parses the cursor of a page.
func (r *recorder) cursor(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	seq, id, _ := strings.Cut(text, "-")
	n, err := strconv.ParseInt(seq, 10, 64)
	switch {
	case err != nil || n < 1:
		return 0, errors.New("after is to be a next that the service has told")
	case id != r.id:
		return 0, errors.New("after is of another instance's history, or of before this one started: begin anew")
	}
	return n, nil
}

// matches reports whether the query selects an entry.
func (q *HistoryQuery) matches(e *HistoryEntry) bool {
	switch {
	case q.Before > 0 && e.Seq >= q.Before, len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind), e.Time.Before(q.Since):
		return false
	case !q.Until.IsZero() && e.Time.After(q.Until):
		return false
	case e.Name == "": // about the instance
		return true
	case q.Name != "":
		return e.Name == q.Name
	}
	return slices.ContainsFunc(q.Prefixes, func(p string) bool { return strings.HasPrefix(e.Name, p) })
}

// kept is a snapshot of what a recorder has in memory.
type kept struct {
	often, rare []*HistoryEntry // in order
	since       time.Time
	seldom      time.Time // it has all rare entries since then
	from        time.Time // when figures begin to count
	first       int64
	watch       watch
	writing     writing
}

// now takes a snapshot. Entries do not change, so it shares them.
func (r *recorder) now() kept {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := kept{slices.Clone(r.often.all()), slices.Clone(r.rare.all()), r.since, r.seldom, r.minutes.from, r.first, r.watch, r.writing}
	if lost := m.writing.lost; lost != nil {
		m.writing.lost = new(*lost)
	}
	return m
}

// older returns the Seq below which entries are read from the file. The file has them all, and
// memory lacks some.
func (m *kept) older() int64 { return min(m.first, m.writing.has+1) }

// newestFirst iterates over all entries.
func (m *kept) newestFirst(each func(e *HistoryEntry) bool) {
	often, rare := m.often, m.rare
	for len(often)+len(rare) > 0 {
		next := &often
		if len(often) == 0 || len(rare) > 0 && rare[len(rare)-1].Seq > often[len(often)-1].Seq {
			next = &rare
		}
		e := (*next)[len(*next)-1]
		if *next = (*next)[:len(*next)-1]; !each(e) {
			return
		}
	}
}

// answer returns a page of the history.
func (r *recorder) answer(ctx context.Context, q HistoryQuery) wire.Entries {
	m, now := r.now(), time.Now()
	answer := wire.Entries{Entries: []wire.Entry{}, Instance: instanceName(), History: r.id, Gaps: m.gaps(q.Since), Complete: r.sole}
	begins, next := m.since, int64(0)
	full := false
	for e := range m.newestFirst {
		if r.file != nil && e.Seq < m.older() { // the file has it, and whatever was between
			break
		}
		if !q.matches(e) {
			continue
		}
		if full = len(answer.Entries) == q.Limit; full {
			break
		}
		answer.Entries = append(answer.Entries, e.told(now))
		next = e.Seq
	}
	if r.file != nil {
		if began := r.file.State().Began; !began.IsZero() && began.Before(begins) {
			begins = began
		}
		if late := m.writing.since; !late.IsZero() && now.Sub(late) > lateAfter {
			answer.Warning = "the history file is not written: what does not fit into memory will be missing in it"
		}
	}
	if r.file != nil && !full {
		full, next = r.answerFromFile(ctx, q, &m, &answer, next)
	}
	if full {
		answer.Next = fmt.Sprintf("%d-%s", next, r.id)
	}
	// Together they are the present time by the clock, which may have been set since it began.
	age := max(now.Sub(begins), 0)
	answer.Begins, answer.BeginsMS = stamp(now.Add(-age)), wire.Millis(age)
	answer.Complete = answer.Complete && len(answer.Gaps) == 0
	return answer
}

// answerFromFile adds entries that are older than those in memory. full means that there are more.
func (r *recorder) answerFromFile(ctx context.Context, q HistoryQuery, m *kept, answer *wire.Entries, last int64) (full bool, next int64) {
	ctx, cancel := context.WithTimeout(ctx, readHistoryWithin)
	defer cancel()
	type page struct {
		entries []HistoryEntry
		next    int64
	}
	rest := q
	if older := m.older(); rest.Before == 0 || rest.Before > older {
		rest.Before = older
	}
	rest.Limit = max(q.Limit-len(answer.Entries), 1) // if the page is full, to learn whether there is another
	p, err := abandon.Call(ctx, func() (page, error) {
		entries, next, err := r.file.Read(ctx, rest)
		return page{entries, next}, err
	})
	if err != nil {
		r.log.Warn("the history file cannot be read", "error", err.Error())
		answer.Warning = "the history file does not answer: what is older is missing here"
		return false, 0
	}
	if len(answer.Entries) == q.Limit {
		return len(p.entries) > 0 || p.next > 0, last
	}
	now := time.Now()
	for i := range p.entries {
		e := p.entries[i].told(now)
		answer.Entries = append(answer.Entries, e)
		if gap := (wire.Span{From: e.From, To: e.To}); e.Kind == wire.Gap && !slices.Contains(answer.Gaps, gap) && len(answer.Gaps) < mostGaps {
			answer.Gaps = append(answer.Gaps, gap)
		}
	}
	return p.next > 0, p.next
}

// gaps returns the times after since in which the instance did not see everything, newest first.
func (m *kept) gaps(since time.Time) []wire.Span {
	all := []wire.Span{}
	if m.watch.open {
		all = append(all, wire.Span{From: stamp(m.watch.looked)})
	}
	if lost := m.writing.lost; lost != nil {
		all = append(all, wire.Span{From: stamp(lost.From), To: stamp(lost.To)})
	}
	for _, e := range slices.Backward(m.rare) {
		if e.Kind == wire.Gap && e.To.After(since) && len(all) < mostGaps {
			all = append(all, wire.Span{From: stamp(e.From), To: stamp(e.To)})
		}
	}
	return all
}

// stamp formats an instant for people.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// told converts an entry for an answer.
func (e *HistoryEntry) told(now time.Time) wire.Entry {
	t := wire.Entry{
		Seq: strconv.FormatInt(e.Seq, 10), Kind: e.Kind, Time: stamp(e.Time), Ago: max(wire.Millis(now.Sub(e.Time)), 0),
		Name: e.Name, Owner: e.Who, Handle: e.WhoID, Token: e.Token, Mode: e.Mode, Held: e.Held, Waited: e.Waited,
		Silent: e.Silent, Reason: e.Reason, By: e.By, From: stamp(e.From), To: stamp(e.To),
	}
	t.Note, t.Details = wire.Said(e.Note)
	return t
}
