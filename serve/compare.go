package serve

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// look lists the engine's leases and reports what has changed. It reports nothing from an
// incomplete answer. It returns what it saw, how long the engine took, and whether the answer was
// complete.
func (h *hub) look(ctx context.Context, g gaze) (s seen, took time.Duration, whole bool) {
	ask, cancel := context.WithTimeout(ctx, 2*callBound)
	defer cancel()
	began := time.Now()
	s, fit, err := h.list(ask, strings.ToValidUTF8(g.prefix, ""), g.all) // a common prefix may end within a character
	took = time.Since(began)
	if g.all && ctx.Err() == nil {
		slow := err != nil && errors.Is(ask.Err(), context.DeadlineExceeded)
		many := err == nil && !fit
		defer func() { h.s.history.saw(began, lookShare*took, s.sight, many, many || s.damaged, slow) }()
	}
	if err != nil {
		return seen{}, took, false
	}
	if g.heard && (fit || g.prefix == g.narrow) {
		h.follows(fit)
	}
	if fit {
		h.askAgain(ask, s, g)
		h.compare(s, g.prefix)
	} else if g.all {
		h.narrows(g)
	}
	return s, took, true
}

// seen is the result of a look.
type seen struct {
	began  time.Time // before the first call to the engine
	asked  time.Time // before the call whose answer add adds
	at     time.Time // after it
	held   map[lease]*holding
	places map[lease]*waitedAt
	ousted map[lease]driver.Eviction // evictions that the engine reports
	fences map[string]uint64         // of names that askAgain has asked about
	sight  *sight                    // of all names; nil: the look did not cover them, or was incomplete

	damaged bool // there are records that cannot be read: what is missing may be there
}

// list returns all leases of names that begin with prefix. fit means that the names are no more
// than the hub follows.
func (h *hub) list(ctx context.Context, prefix string, all bool) (s seen, fit bool, err error) {
	s = seen{began: time.Now(), held: make(map[lease]*holding), places: make(map[lease]*waitedAt), ousted: make(map[lease]driver.Eviction), fences: make(map[string]uint64)}
	type answer struct {
		driver.State
		asked, at time.Time
	}
	var answers []answer
	last := make(map[string]int) // the last answer for a name, which may be on several pages
	for after := ""; ; {
		one := answer{asked: time.Now()}
		states, next, err := h.s.operator.List(ctx, prefix, after, wire.MaxPage)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return seen{}, false, err
		}
		s.damaged = s.damaged || err != nil
		one.at = time.Now()
		for _, one.State = range states {
			if i, again := last[one.Resource]; again {
				answers[i] = one
				continue
			}
			last[one.Resource] = len(answers)
			answers = append(answers, one)
		}
		if len(answers) > mostFollowed {
			return seen{}, false, nil
		}
		if after = next; after == "" {
			break
		}
	}
	sees := &sight{at: time.Now()}
	for i := range answers {
		s.asked, s.at = answers[i].asked, answers[i].at
		s.add(answers[i].State, sees)
	}
	if s.at = sees.at; all && !s.damaged {
		s.sight = sees
	}
	return s, true, nil
}

// narrows forgets leases of names that nobody listens to, because there are too many names to
// compare.
func (h *hub) narrows(g gaze) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !g.heard {
		h.forget()
		return
	}
	if strings.HasPrefix(h.prefix, g.narrow) {
		return // it covers only names that are listened to
	}
	for l := range h.known {
		if !strings.HasPrefix(l.name, g.narrow) {
			h.lose(l)
		}
	}
	for l, one := range h.places {
		if !strings.HasPrefix(l.name, g.narrow) {
			h.losePlace(l, one)
		}
	}
	h.prefix = g.narrow
}

// mostAsked is how many names one look asks about for the history alone, to find evictions and what
// the list has missed. Of the others the history says only that a lease or a wait is over.
const mostAsked = 20

// askAgain asks about each name of which a lease has disappeared and that somebody listens to, because
// a holder whose end is reported stops. If there are too many, the next look asks about the rest. It
// also asks about a few other names, for the history: first those of leases that this instance has
// granted or renewed.
func (h *hub) askAgain(ctx context.Context, s seen, g gaze) {
	began, others := time.Now(), 0
	keep := func(all []lease) {
		for _, l := range all {
			held, waits := h.asKnown(l)
			if held != nil {
				held.row = 0
				s.held[l] = held
			}
			if waits != nil {
				s.places[l] = waits
			}
		}
	}
	all := h.notIn(s, g.prefix)
	oursFirst := func(a, b string) int { return number(all[b].ours) - number(all[a].ours) }
	for _, name := range slices.SortedFunc(maps.Keys(all), oursFirst) {
		gone, late := all[name], time.Since(began) > askFor
		if !gone.held || !g.heard || !strings.HasPrefix(name, g.narrow) {
			if others++; late || others > mostAsked {
				switch {
				case s.damaged && others > mostAsked:
					keep(h.doubts(name, gone, s))
				case s.damaged:
					keep(gone.all)
				}
				continue
			}
		}
		found := s
		found.asked = time.Now()
		if late {
			keep(gone.all)
			h.soonIfHeard()
		} else if state, err := h.s.operator.Inspect(ctx, name); err != nil {
			keep(gone.all)
		} else {
			found.at = time.Now()
			found.add(state, nil)
			s.fences[name] = state.Fence
		}
	}
}

// doubts forgets what is missing of a name that was not asked about. While records cannot be read
// it may not have ended, and keeping it could fill the memory. The history has an open gap. If a
// look finds a lease again, its grant is recorded once more.
//
// doubts returns the leases that stay known, because this instance's last grant or renewal is not
// over. It leaves those that ran out to compare.
func (h *hub) doubts(name string, gone *missing, s seen) (stay []lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.touched[name] {
		return nil
	}
	for _, l := range gone.all {
		one := h.known[l]
		if last := one.last(); last != nil && s.began.Before(last.ends) {
			stay = append(stay, l)
		} else if !one.ranOut(s.began, h.sole()) {
			h.lose(l)
		}
		if one := h.places[l]; one != nil {
			h.losePlace(l, one)
		}
	}
	return stay
}

// add adds the leases and places of a resource, to the sight as well. nil: the sight keeps the rows
// that it has.
func (s *seen) add(state driver.State, sees *sight) {
	counts := sees != nil
	if !counts {
		sees = &sight{}
	}
	sees.limitOf(state)
	for _, e := range state.Evicted {
		s.ousted[lease{state.Resource, wire.HandleOf(e.Owner)}] = e
	}
	alone := false // an earlier holder or waiter is exclusive
	for _, h := range state.Holders {
		alone = alone || h.Mode == driver.Exclusive
		if h.Owner.Reveal() != "" { // otherwise it lingers, and its end was reported
			e := eventOf(state.Resource, h)
			one := &holding{Event: e.Event, note: e.note, since: before(s.at, h.Held)}
			if was := s.held[e.lease()]; counts {
				one.row = len(sees.rows) + 1
			} else if was != nil {
				one.row = was.row
			}
			one.end = end{h.Left, s.asked, s.at}
			one.begins(h)
			s.held[e.lease()] = one
			sees.holds(one, h)
		}
	}
	for _, w := range state.Waiters {
		e := eventOf(state.Resource, driver.Holder{Owner: w.Owner, Mode: w.Mode, Note: w.Note})
		e.Token = ""
		s.places[e.lease()] = &waitedAt{Event: e.Event, note: e.note, since: before(s.at, w.Waited), fence: state.Fence, seen: true}
		alone = alone || w.Mode == driver.Exclusive
		sees.rows = append(sees.rows, row{name: e.Name, host: eventHost(e.Event), waits: true, full: !alone, since: before(s.at, w.Waited)})
	}
}

// missing is what a look has not found of a name.
type missing struct {
	all  []lease // known leases and places
	held bool    // there are leases among them
	ours bool    // this instance has granted or renewed one of them
}

// notIn returns the known leases and places of names with prefix that are not in s.
func (h *hub) notIn(s seen, prefix string) map[string]*missing {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string]*missing)
	add := func(l lease, held, ours bool) {
		if h.touched[l.name] || !strings.HasPrefix(l.name, prefix) || s.held[l] != nil {
			return
		}
		if all[l.name] == nil {
			all[l.name] = &missing{}
		}
		one := all[l.name]
		one.all, one.held, one.ours = append(one.all, l), one.held || held, one.ours || ours
	}
	var pace breath
	for l, one := range h.known {
		pace.let(&h.mu)
		add(l, true, one.term != nil)
	}
	for l, one := range h.places {
		if pace.let(&h.mu); one.seen && s.places[l] == nil {
			add(l, false, false)
		}
	}
	return all
}

// compare reports the difference between what was known and what is seen. It omits names that this
// instance has reported on meanwhile, and names of which nothing was known.
func (h *hub) compare(s seen, prefix string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, before := h.known == nil || !h.compared, h.prefix
	if h.known == nil {
		h.known = make(map[lease]*holding)
	}
	keeps := h.recorded() && h.compared && before == "" // what is known of names outside prefix stays
	var gone []lease
	var pace breath
	for l := range h.known {
		pace.let(&h.mu)
		switch _, ok := s.held[l]; {
		case !strings.HasPrefix(l.name, prefix):
			if !keeps { // nobody listens to it any more
				h.lose(l)
			}
		case !ok && !h.touched[l.name]:
			gone = append(gone, l)
		}
	}
	next := h.begunAfter(gone, s.held)
	for _, l := range gone {
		pace.let(&h.mu)
		if one := h.known[l]; one != nil && !h.touched[l.name] {
			began := next[l.name]
			if one.Mode != driver.Exclusive.String() {
				began = time.Time{} // it may have been held beside the others
			}
			h.end(l, one, s, began)
			h.lose(l)
		}
	}
	h.comparePlaces(s, prefix, keeps, first)
	for l, one := range s.held {
		pace.let(&h.mu)
		was := h.known[l]
		switch {
		case h.touched[l.name]:
		case was != nil && !isLater(one.Token, was.Token):
			was.learns(one.end)
			s.sight.knows(one, was.length())
			if was.since.IsZero() {
				was.since = one.since
			}
			if was.calls {
				term, calls := h.s.claims.termOf(l, was.Token)
				was.term, was.calls = cmp.Or(term, was.term), calls
			}
		default:
			isNew := was != nil || !first && strings.HasPrefix(l.name, before)
			if one.term, one.calls = h.s.claims.termOf(l, one.Token); one.calls && isNew {
				continue // the call in progress reports it, and knows more
			}
			if was != nil { // the owner holds anew
				h.end(l, was, s, h.beganBy(l, one))
				h.lose(l)
			}
			s.sight.knows(one, one.length())
			if h.known[l] = one; isNew {
				e := told{wire.EventGranted, one.Event, more{note: one.note, time: one.since, waited: h.waitedBefore(l, one.since)}}
				h.record(e)
				h.hear(e, true)
			}
			delete(h.places, l)
		}
	}
	h.compared = true
	if !keeps {
		h.prefix = prefix
	}
}

// begunAfter returns, for the names of leases that are gone, when the first of the present holders began.
// Requires mu.
func (h *hub) begunAfter(gone []lease, held map[lease]*holding) map[string]time.Time {
	if len(gone) == 0 {
		return nil
	}
	first := make(map[string]time.Time, len(gone))
	for _, l := range gone {
		first[l.name] = time.Time{}
	}
	var pace breath
	for l, one := range held {
		pace.let(&h.mu)
		at, ok := first[l.name]
		if !ok {
			continue
		}
		if began := h.beganBy(l, one); !began.IsZero() && (at.IsZero() || began.Before(at)) {
			first[l.name] = began
		}
	}
	return first
}

// beganBy returns a time by which a lease had begun: as the engine tells, or because it was in use
// here; zero: unknown.
func (h *hub) beganBy(l lease, one *holding) time.Time {
	if !one.since.IsZero() {
		return one.since
	}
	return h.s.claims.beganBy(l, one.Token)
}

// A breath releases a mutex now and then during long work, because calls on leases wait for it.
// What they report meanwhile is in touched.
type breath int

// breathEvery is how many leases are compared in one go, within a fraction of a millisecond.
const breathEvery = 256

func (b *breath) let(mu *sync.Mutex) {
	if *b++; *b%breathEvery == 0 {
		mu.Unlock()
		mu.Lock()
	}
}

// comparePlaces records in the history who has started and stopped waiting. Requires mu.
func (h *hub) comparePlaces(s seen, prefix string, keeps, first bool) {
	var pace breath
	for l, one := range h.places {
		pace.let(&h.mu)
		_, waits := s.places[l]
		_, holds := s.held[l]
		switch {
		case !strings.HasPrefix(l.name, prefix):
			if !keeps {
				h.losePlace(l, one)
			}
		case !waits && !holds && one.seen && !h.touched[l.name]:
			delete(h.places, l)
			if fence, asked := s.fences[l.name]; one.over || asked && one.fence > 0 && fence != one.fence {
				continue // it was told, or there were grants since, maybe its own
			}
			h.record(told{wire.Left, one.Event, more{note: one.note, waited: sinceOf(one.since, s.at)}})
		}
	}
	for l, one := range s.places {
		pace.let(&h.mu)
		if was := h.places[l]; was != nil {
			was.seen, was.fence = true, one.fence
		} else if !h.touched[l.name] {
			if h.places[l] = one; !first && strings.HasPrefix(l.name, h.prefix) {
				h.record(told{wire.Waiting, one.Event, more{note: one.note, time: one.since}})
			}
		}
	}
}

// expire records the end of places that no look has seen: their callers have not called for longer
// than a place lasts.
func (h *hub) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pace breath
	for l, one := range h.places {
		pace.let(&h.mu)
		if one.seen || h.s.claims.has(l) || h.places[l] != one {
			continue
		}
		if delete(h.places, l); !one.over {
			h.record(told{wire.Left, one.Event, more{note: one.note}})
		}
	}
}

// waitedBefore returns how long the owner of a lease waited for it, if it was granted at granted;
// nil: unknown. Requires mu.
func (h *hub) waitedBefore(l lease, granted time.Time) *int64 {
	if p := h.places[l]; p != nil && !granted.IsZero() {
		return sinceOf(p.since, granted)
	}
	return nil
}

// sinceOf returns the milliseconds between two instants, with what the machine slept meanwhile; nil:
// one of them is unknown.
func sinceOf(from, to time.Time) *int64 {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	return new(max(wire.Millis(boottime.Between(from, to)), 0))
}

// A reported is an engine's report that an owner's lease was evicted. last is the token of the last
// lease that the owner is known to have had by then: the report is of no earlier one.
type reported struct{ reason, last string }

// because records an engine's report that another instance or program has evicted a lease.
// Listeners learn of it once a look finds that the lease has ended.
func (h *hub) because(l lease, why reported) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.known[l]; ok {
		if h.evicts[l] = why; len(h.listeners) > 0 {
			h.soon()
		}
	}
}

// end reports a lease that was found to have ended. next is when a lease began before which it was
// over; zero: unknown. Requires mu.
func (h *hub) end(l lease, one *holding, s seen, next time.Time) {
	at, then := s.at, s.began
	if next.After(one.since) && next.Before(at) {
		at = next
		if soon := next.Add(endSlack); soon.Before(then) { // if its TTL ends later, it was released
			then = soon
		}
	}
	e := told{wire.EventEnded, one.Event, more{note: one.note, time: at, held: sinceOf(one.since, at)}}
	if why, ok := h.evicts[l]; ok && !isLater(why.last, one.Token) {
		e.kind, e.Reason = wire.EventEvicted, why.reason
	} else if was, ok := s.ousted[l]; ok && token(was.Fence) == one.Token {
		e.kind, e.Reason = wire.EventEvicted, was.Reason
	} else if one.term.isGivenUp() {
		e.kind = wire.EventReleased
	}
	h.hear(e, true)
	if e.kind == wire.EventEnded && one.ranOut(then, h.sole()) {
		last := one.last()
		e.kind, e.time = wire.Expired, last.ends
		e.held, e.silent = sinceOf(one.since, last.ends), sinceOf(last.sent, last.ends)
	}
	if e.kind == wire.EventEnded {
		e.silent = one.silent(then)
	}
	if one.term == nil || one.term.over.CompareAndSwap(false, true) {
		h.record(e)
		if e.kind != wire.EventEnded { // otherwise it may have been released
			h.s.observeLoss(e, one.term != nil)
		}
	}
}

// lose forgets a lease. Requires mu.
func (h *hub) lose(l lease) {
	delete(h.known, l)
	delete(h.evicts, l)
}

// asKnown returns copies of what is known about a lease or a place; nil: nothing.
func (h *hub) asKnown(l lease) (held *holding, waits *waitedAt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.known[l]; one != nil {
		held = new(*one)
	}
	if one := h.places[l]; one != nil {
		waits = new(*one)
	}
	return held, waits
}
