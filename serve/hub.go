package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// lookEvery is how often the engine is asked what is held while somebody listens: what
	// other instances and programs do is told so much later. It is asked less often where its
	// answer takes more than a part of that.
	lookEvery = time.Second
	lookShare = 20
	// lookSoon is how soon it is asked when there is reason to.
	lookSoon = 50 * time.Millisecond
	// mostFollowed is how many names the hub compares. Of more it tells what this instance does, and no
	// engine is asked for all of them, nor are they kept.
	mostFollowed = 50_000
	// askFor is how long one look asks for leases one by one that are not listed any more.
	askFor = time.Second
	// mostBehind is how many bytes of events a listener may be behind, and each event counts for perEvent more: what its
	// place in the queue and its head take. An answer that lists what is held may bring thousands.
	mostBehind, perEvent = 1 << 20, 64
)

// A hub tells listeners and the history what happens to leases: at once what this instance does, and what it
// finds out by comparing what is held with what was. For the history it looks at all names, and not so often.
type hub struct {
	s     *Server
	nudge chan struct{}

	mu        sync.Mutex
	listeners map[*listener]bool  // guarded by mu
	known     map[lease]*holding  // guarded by mu; held, by what was told and seen last; nil: nothing is compared
	places    map[lease]*waitedAt // guarded by mu; waiters, as known
	compared  bool                // guarded by mu; known is all that a look has seen of names with prefix, and what was told since
	evicts    map[lease]string    // guarded by mu; the reasons of those in known of which an engine has told that they were evicted
	prefix    string              // guarded by mu; of the names that known is about
	asks      string              // guarded by mu; of those that the last look began with
	touched   map[string]bool     // guarded by mu; names of which something was told since the last look began, or is being done
	evicting  map[string]int      // guarded by mu; names of which leases are being evicted here: no look tells their ends
	looking   bool                // guarded by mu; there is a goroutine that looks
	partial   bool                // guarded by mu; the last look for listeners met more than mostFollowed
	due       time.Time           // guarded by mu; when the history is to have a look at all names
}

// A holding is a lease that is held.
type holding struct {
	wire.Event
	note  string        // as the engine keeps it
	since time.Time     // zero: unknown
	end   end           // unless it is renewed, as a look found last
	least time.Duration // of its length, since looks have seen that it was renewed; 0: they have not
	row   int           // of the sight
	term  *term         // nil: this instance has neither granted nor renewed it
	owner driver.Owner
}

// An end is when a lease ends that has that much left; zero: unknown. The engine was asked at asked, and answered by answered.
type end struct {
	left            time.Duration
	asked, answered time.Time
}

// is reports whether a lease ends then.
func (e end) is(then time.Time) bool {
	return e.left > 0 && !e.asked.Add(e.left-endSlack).After(then) && !e.answered.Add(e.left+endSlack).Before(then)
}

// moved reports whether the end is another one later, by renewal or by a change of length.
func (e end) moved(later end) bool {
	return e.left > 0 && later.left > 0 && (later.asked.Add(later.left-endSlack).After(e.answered.Add(e.left)) ||
		later.answered.Add(later.left+endSlack).Before(e.asked.Add(e.left)))
}

// learns is for what a look says of the end. If that has moved, the lease was renewed since the look before, and what is
// left is the least that its length can be.
func (one *holding) learns(e end) {
	if e.left <= 0 { // it is over just now, or the engine does not say
		return
	}
	if one.end.moved(e) {
		one.least = e.left
	}
	one.end = e
}

// length is for how long the lease was granted or renewed last: exactly if this instance did that, and else what it is at
// least; 0: unknown.
func (one *holding) length() time.Duration {
	if one.term != nil {
		if last := one.term.renewed.Load(); last != nil && one.end.asked.After(last.sent) && one.end.is(last.ends) {
			return last.ends.Sub(last.sent)
		}
	}
	return one.least
}

// times adds lengths of leases that the engine does not tell to what it was asked at that time.
func (h *hub) times(state *driver.State, asked time.Time) {
	now := time.Now()
	for i := range state.Holders {
		one := &state.Holders[i]
		if one.TTL > 0 || one.Left <= 0 || one.Owner.Reveal() == "" {
			continue
		}
		if _, d := wire.Said(one.Note); d != nil && d.Kind != "" {
			continue // nobody renews it
		}
		if was, _ := h.asKnown(lease{state.Resource, wire.Handle(one.Owner.Reveal())}); was != nil {
			was.learns(end{one.Left, asked, now})
			if ttl := was.length(); ttl > 0 {
				one.TTL = max(ttl, one.Left)
			}
		}
	}
}

// endSlack is by how much what an engine says of the end of a lease may be wrong: some count whole seconds.
const endSlack = time.Second

// A waitedAt is a place in a queue, and when it was taken; zero: unknown.
type waitedAt struct {
	wire.Event
	note  string
	since time.Time
	seen  bool   // by a look: then its absence says that it is over
	owner string // "": only looks know of it
	over  bool   // its end is in the history
}

// A term is how long a lease lasts by what this instance was answered last.
type term struct {
	renewed atomic.Pointer[span]
	over    atomic.Bool // its end is in the history
}

// A span is from when a call was sent until what it was granted ends.
type span struct{ sent, ends time.Time }

// lasts notes a grant or a renewal.
func (t *term) lasts(sent time.Time, ttl time.Duration) { t.renewed.Store(&span{sent, sent.Add(ttl)}) }

// A lease is what others can tell it by.
type lease struct{ name, handle string }

// A listener hears of names with a prefix.
type listener struct {
	prefix string
	client *Client       // guarded by hub.mu; is told what it may view
	more   chan struct{} // has room for one: there is something to take
	behind []*sent       // guarded by hub.mu; what it has not taken
	bytes  int           // guarded by hub.mu; of behind
	missed bool          // guarded by hub.mu; it was too far behind, and hears no more
	ready  chan struct{} // closed when all that happens from here on is told
	asked  bool          // guarded by hub.mu; a look has begun since it listens
}

func (l *listener) isReady() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// told is an event and its kind, and what the history has beside it.
type told struct {
	kind string
	wire.Event
	more
}

// more is in milliseconds; nil: unknown.
type more struct {
	note                 string    // as the engine keeps it
	time                 time.Time // zero: now
	held, waited, silent *int64
	by                   string
}

// sent is an event as it is written to all whom it concerns.
type sent []byte

// frame is the event as a stream has it.
func (e told) frame() (sent, error) {
	data, err := json.Marshal(e.Event)
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", e.kind, data), err
}

func (h *hub) init(s *Server) {
	h.s, h.nudge = s, make(chan struct{}, 1)
	h.listeners, h.touched, h.evicts = make(map[*listener]bool), make(map[string]bool), make(map[lease]string)
	h.evicting = make(map[string]int)
	h.places = make(map[lease]*waitedAt)
}

// listen adds a listener. The caller calls leave.
func (h *hub) listen(prefix string, client *Client) *listener {
	l := &listener{prefix: prefix, client: client, more: make(chan struct{}, 1), ready: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[l] = true
	switch {
	case h.s.operator == nil:
		close(l.ready)
	case h.looking:
		h.soon()
	default:
		h.start()
	}
	return l
}

// start has what is held looked at. Requires mu.
func (h *hub) start() {
	h.looking = true
	h.forget()
	h.s.working.Go(func() { h.run(h.s.life) })
}

// forget forgets what is known. Requires mu.
func (h *hub) forget() {
	h.known, h.compared = nil, false
	clear(h.evicts)
	for l, one := range h.places {
		h.losePlace(l, one)
	}
}

// losePlace forgets a place, but for what expire is to know. Requires mu.
func (h *hub) losePlace(l lease, one *waitedAt) {
	if one.seen = false; one.owner == "" || !h.looking {
		delete(h.places, l)
	}
}

// records begins to look at all names for the history.
func (h *hub) records() {
	if r := h.s.history; r == nil || r.every < 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.start()
}

// becomes is for a listener whose rights may be others now.
func (h *hub) becomes(l *listener, client *Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.client = client
}

func (h *hub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners)
}

// soon has the engine asked soon.
func (h *hub) soon() {
	select {
	case h.nudge <- struct{}{}:
	default:
	}
}

// soonIfHeard has the engine asked soon if somebody listens: the history can wait.
func (h *hub) soonIfHeard() {
	if h.count() > 0 {
		h.soon()
	}
}

// A gaze is what a look is to be about.
type gaze struct {
	prefix string
	all    bool        // it is for the history as well
	narrow string      // what all listeners listen to
	heard  bool        // there are listeners
	ready  []*listener // who are to be told when it has ended
}

// run looks at what is held, until nobody listens and there is no history.
func (h *hub) run(ctx context.Context) {
	pause, allMissed, missed := lookEvery, 0, 0 // of looks for listeners; how many looks in a row were not whole
	for {
		g, ok := h.begin()
		if !ok {
			return
		}
		took, whole := h.look(ctx, g)
		h.begun(g.ready, whole)
		h.expire()
		if g.all {
			allMissed = missedAfter(allMissed, whole)
			h.dueAfter(pauseAfter(h.s.history.every, took, allMissed))
		}
		if g.prefix == g.narrow {
			missed = missedAfter(missed, whole)
			pause = pauseAfter(lookEvery, took, missed)
		}
		if !h.rest(ctx, pause) {
			return
		}
	}
}

// missedAfter is how many looks in a row were not whole.
func missedAfter(missed int, whole bool) int {
	if whole {
		return 0
	}
	return missed + 1
}

// pauseAfter is the pause after a look, so that looks take a part of the time. How long the whole answer takes is unknown
// after one that was not: the pause doubles with each, up to that part.
func pauseAfter(every, took time.Duration, missed int) time.Duration {
	share := lookShare * took
	if missed > 0 {
		share = min(share, took<<min(missed-1, 10))
	}
	return max(every, share)
}

// dueAfter says that the history is to have its next look after a pause.
func (h *hub) dueAfter(pause time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.due = time.Now().Add(pause)
}

// rest waits until the next look. It reports whether there is to be one.
func (h *hub) rest(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(lookSoon):
	case <-ctx.Done():
		return false
	}
	h.mu.Lock()
	if due := time.Until(h.due); h.recorded() && (len(h.listeners) == 0 || due < pause) {
		pause = due
	}
	h.mu.Unlock()
	select {
	case <-h.nudge:
	case <-time.After(pause - lookSoon):
	case <-ctx.Done():
		return false
	}
	return true
}

// recorded reports whether all names are looked at.
func (h *hub) recorded() bool { return h.s.history != nil && h.s.history.every > 0 }

// begin tells what a look is to be about.
func (h *hub) begin() (g gaze, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g.heard = len(h.listeners) > 0; !g.heard && !h.recorded() {
		h.looking = false
		h.forget()
		return g, false
	}
	first := true
	for l := range h.listeners {
		if first {
			g.narrow, first = l.prefix, false
		}
		g.narrow = common(g.narrow, l.prefix)
		if !l.asked {
			l.asked, g.ready = true, append(g.ready, l)
		}
	}
	g.all = h.recorded() && (g.narrow == "" || !time.Now().Before(h.due))
	if !g.all {
		g.prefix = g.narrow
	}
	if !g.heard && h.s.history.many() {
		h.forget()
	} else if h.known == nil && !h.partial {
		h.known, h.prefix = make(map[lease]*holding), g.prefix
	}
	clear(h.touched)
	for name := range h.evicting {
		h.touched[name] = true
	}
	h.asks = g.prefix
	return g, true
}

// begun tells listeners that they hear of all from here on, if the look was whole; else the next
// one is for them.
func (h *hub) begun(ready []*listener, whole bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range ready {
		if l.asked = whole; whole {
			close(l.ready)
		}
	}
}

// common is what both begin with.
func common(a, b string) string {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// look asks the engine and tells what has changed. An answer that is not whole tells nothing. It
// returns how long the engine took to list what is held, and whether the answer was whole.
func (h *hub) look(ctx context.Context, g gaze) (took time.Duration, whole bool) {
	ask, cancel := context.WithTimeout(ctx, 2*callBound)
	defer cancel()
	began := time.Now()
	seen, fit, err := h.list(ask, validPrefix(g.prefix), g.all)
	took = time.Since(began)
	if g.all && ctx.Err() == nil {
		slow := err != nil && errors.Is(ask.Err(), context.DeadlineExceeded)
		defer func() { h.s.history.saw(began, lookShare*took, seen.sight, err == nil && !fit, slow) }()
	}
	if err != nil {
		return took, false
	}
	if g.heard && (fit || g.prefix == g.narrow) {
		h.follows(fit)
	}
	if fit {
		if g.heard {
			h.askAgain(ask, seen.held, g.narrow)
		}
		h.compare(seen, g.prefix)
	} else if g.all {
		h.narrows(g)
	}
	return took, true
}

// seen is what a look has seen.
type seen struct {
	began  time.Time // before all
	asked  time.Time // before what is added
	at     time.Time // and after
	held   map[lease]*holding
	places map[lease]*waitedAt
	sight  *sight // of all names; nil: it was not about them, or not whole
}

// list asks for all leases of names that begin with prefix. fit: there are no more than the hub follows.
func (h *hub) list(ctx context.Context, prefix string, all bool) (s seen, fit bool, err error) {
	s = seen{began: time.Now(), held: make(map[lease]*holding), places: make(map[lease]*waitedAt)}
	sees := &sight{}
	for names, after := 0, ""; ; {
		s.asked = time.Now()
		states, next, err := h.s.operator.List(ctx, prefix, after, wire.MaxPage)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return seen{}, false, err
		}
		s.at = time.Now()
		sees.at = s.at
		for _, state := range states {
			s.add(state, sees)
		}
		if names += len(states); names > mostFollowed {
			return seen{}, false, nil
		}
		if after = next; after == "" {
			if all {
				s.sight = sees
			}
			return s, true, nil
		}
	}
}

// narrows forgets what is held of names that nobody listens to: there are too many to compare.
func (h *hub) narrows(g gaze) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !g.heard {
		h.forget()
		return
	}
	if strings.HasPrefix(h.prefix, g.narrow) {
		return // that is all it is about
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

// follows notes whether a look has met few enough names. What it knew of more is forgotten, so that the
// next look that does begins anew; and the listeners are told.
func (h *hub) follows(fit bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.partial == fit {
		h.partial = !fit
		for l := range h.listeners {
			if l.isReady() { // else its stream opens with it
				h.give(l, h.open())
			}
		}
	}
	if h.partial {
		h.forget()
	}
}

// opened is what a stream opens with.
func (h *hub) opened() sent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *h.open()
}

// open requires mu.
func (h *hub) open() *sent {
	frame, _ := told{kind: wire.EventOpen, Event: wire.Event{Partial: h.partial}}.frame() // of which all can be written
	return &frame
}

// askAgain asks for each lease that is not seen any more, for itself: a holder that is told of
// its end stops. Of those that it does not come to, for many end at once, the next look asks.
func (h *hub) askAgain(ctx context.Context, held map[lease]*holding, prefix string) {
	began := time.Now()
	again := func(l lease) {
		if one, _ := h.asKnown(l); one != nil {
			held[l] = one
		}
	}
	for _, gone := range h.notIn(held, prefix) {
		asked := time.Now()
		if time.Since(began) > askFor {
			again(gone)
			h.soonIfHeard()
		} else if state, err := h.s.operator.Inspect(ctx, gone.name); err != nil {
			again(gone)
		} else {
			found := seen{asked: asked, at: time.Now(), held: held, places: make(map[lease]*waitedAt)}
			found.add(state, &sight{})
		}
	}
}

// validPrefix cuts what is left of a character at the end of a common prefix.
func validPrefix(prefix string) string { return strings.ToValidUTF8(prefix, "") }

// add adds what a resource has, to the sight as well.
func (s *seen) add(state driver.State, sees *sight) {
	for _, h := range state.Holders {
		if h.Owner.Reveal() != "" { // else it lingers, and its end was told
			e := eventOf(state.Resource, h)
			one := &holding{Event: e.Event, note: e.note, since: before(s.at, h.Held), owner: h.Owner, row: len(sees.rows)}
			one.end = end{h.Left, s.asked, s.at}
			s.held[e.lease()] = one
			sees.holds(e.Event, h)
		}
	}
	for _, w := range state.Waiters {
		e := eventOf(state.Resource, driver.Holder{Owner: w.Owner, Mode: w.Mode, Note: w.Note})
		e.Token = ""
		s.places[e.lease()] = &waitedAt{Event: e.Event, note: e.note, since: before(s.at, w.Waited), seen: true}
		sees.rows = append(sees.rows, row{name: e.Name, host: eventHost(e.Event), waits: true, since: before(s.at, w.Waited)})
	}
}

// notIn are the leases of names with prefix that were known and are not seen.
func (h *hub) notIn(held map[lease]*holding, prefix string) (gone []lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pace breath
	for l := range h.known {
		pace.let(&h.mu)
		if _, ok := held[l]; !ok && !h.touched[l.name] && strings.HasPrefix(l.name, prefix) {
			gone = append(gone, l)
		}
	}
	return gone
}

// compare tells the difference between what was known and what is seen, but for names of which
// this instance has told something meanwhile, and for those of which nothing was known.
func (h *hub) compare(s seen, prefix string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, before := h.known == nil || !h.compared, h.prefix
	if h.known == nil {
		h.known = make(map[lease]*holding)
	}
	keeps := h.recorded() && h.compared && before == "" // what is known of other names
	var pace breath
	for l, one := range h.known {
		pace.let(&h.mu)
		switch _, ok := s.held[l]; {
		case !strings.HasPrefix(l.name, prefix):
			if !keeps { // nobody listens any more
				h.lose(l)
			}
		case !ok && !h.touched[l.name]:
			h.end(l, one, s)
			h.lose(l)
		}
	}
	h.comparePlaces(s, prefix, keeps, first)
	for l, one := range s.held {
		pace.let(&h.mu)
		was := h.known[l]
		switch {
		case h.touched[l.name]:
		case was != nil:
			was.learns(one.end)
			if s.sight != nil {
				s.sight.rows[one.row].knows(was.length())
			}
			if was.since.IsZero() {
				was.since = one.since
			}
		case h.s.claims.inUse(key{l.name, one.owner.Reveal()}): // its call tells of it, and knows more
		default:
			if h.known[l] = one; !first && strings.HasPrefix(l.name, before) {
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

// A breath lets others have a mutex during a long work under it: calls on leases wait for it. What they tell meanwhile is in
// touched.
type breath int

// breathEvery is how many leases are compared in one go: they take a part of a millisecond.
const breathEvery = 256

func (b *breath) let(mu *sync.Mutex) {
	if *b++; *b%breathEvery == 0 {
		mu.Unlock()
		mu.Lock()
	}
}

// comparePlaces tells the history who waits, and who does not any more. Requires mu.
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
			if one.over {
				continue
			}
			h.record(told{wire.Left, one.Event, more{note: one.note, waited: sinceOf(one.since, s.at)}})
		}
	}
	for l, one := range s.places {
		pace.let(&h.mu)
		if was := h.places[l]; was != nil {
			was.seen = true
		} else if !h.touched[l.name] {
			if h.places[l] = one; !first && strings.HasPrefix(l.name, h.prefix) {
				h.record(told{wire.Waiting, one.Event, more{note: one.note, time: one.since}})
			}
		}
	}
}

// expire tells the history of places that are over and that no look has seen: their callers have not called again for
// longer than a place lasts.
func (h *hub) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pace breath
	for l, one := range h.places {
		pace.let(&h.mu)
		if one.seen || h.s.claims.has(key{l.name, one.owner}) || h.places[l] != one {
			continue
		}
		if delete(h.places, l); !one.over {
			h.record(told{wire.Left, one.Event, more{note: one.note}})
		}
	}
}

// waitedBefore is for how long a lease waited that was granted then; nil: unknown. Requires mu.
func (h *hub) waitedBefore(l lease, granted time.Time) *int64 {
	if p := h.places[l]; p != nil && !granted.IsZero() {
		return sinceOf(p.since, granted)
	}
	return nil
}

// sinceOf is the time between two instants; nil: one is unknown.
func sinceOf(from, to time.Time) *int64 {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	ms := max(wire.Millis(to.Sub(from)), 0)
	return &ms
}

// because notes that an engine has told of an eviction by another instance or program. It is told when the
// lease is seen to have ended.
func (h *hub) because(k key, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := lease{k.name, wire.Handle(k.owner)}
	if _, ok := h.known[l]; ok {
		if h.evicts[l] = reason; len(h.listeners) > 0 {
			h.soon()
		}
	}
}

// end tells that a lease is seen to have ended. Requires mu.
func (h *hub) end(l lease, one *holding, s seen) {
	e := told{wire.EventEnded, one.Event, more{note: one.note, held: sinceOf(one.since, s.at)}}
	if reason, ok := h.evicts[l]; ok {
		e.kind, e.Reason = wire.EventEvicted, reason
	}
	h.hear(e, true)
	if e.kind == wire.EventEnded && one.ranOut(s.began) {
		last := one.term.renewed.Load()
		e.kind, e.time = wire.Expired, last.ends
		e.held, e.silent = sinceOf(one.since, last.ends), sinceOf(last.sent, last.ends)
	}
	if one.term == nil || one.term.over.CompareAndSwap(false, true) {
		h.record(e)
		if e.kind != wire.EventEnded { // else it may have been released
			h.s.observeLoss(e)
		}
	}
}

// ranOut reports whether a lease that is found over by a call of then or later was not renewed in time, as far as is known
// here: when half of the time was over since this instance has renewed it, a look has seen that nobody had again. A holder
// that goes on renews sooner.
func (one *holding) ranOut(then time.Time) bool {
	if one == nil || one.term == nil {
		return false
	}
	last := one.term.renewed.Load()
	return last != nil && !then.Before(last.ends) && one.end.asked.After(last.sent.Add(last.ends.Sub(last.sent)/2)) && one.end.is(last.ends)
}

// lose requires mu.
func (h *hub) lose(l lease) {
	delete(h.known, l)
	delete(h.evicts, l)
}

// record adds an event to the history.
func (h *hub) record(e told) {
	if e.kind == wire.EventGranted && e.Details != nil && e.Details.Kind == details.Reserved {
		e.kind, e.Reason = wire.Reserved, e.Details.Text
	}
	h.s.history.add(HistoryEntry{
		Time: e.time, Kind: e.kind, Name: e.Name, Who: e.Owner, WhoID: e.Handle, Token: e.Token, Mode: e.Mode, Note: e.note,
		Held: e.held, Waited: e.waited, Silent: e.silent, Reason: e.Reason, By: e.by,
	})
}

// hear gives an event to those whom it concerns, all of whom share it. seen: a look has found it, and those whose streams
// are not open yet are not told. Requires mu.
func (h *hub) hear(e told, seen bool) {
	var shared *sent
	for l := range h.listeners {
		if !strings.HasPrefix(e.Name, l.prefix) || seen && !l.isReady() || !l.client.May(View, e.Name) {
			continue
		}
		if shared == nil {
			frame, err := e.frame()
			if err != nil {
				return // of nothing that an Event has
			}
			shared = &frame
		}
		h.give(l, shared)
	}
}

// give adds to what a listener has not taken yet. Requires mu.
func (h *hub) give(l *listener, e *sent) {
	if l.bytes += len(*e) + perEvent; l.bytes > mostBehind {
		l.missed, l.behind = true, nil
		delete(h.listeners, l)
	} else {
		l.behind = append(l.behind, e)
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// take is what the listener has not taken yet. missed: there was more.
func (h *hub) take(l *listener) (all []*sent, missed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all, l.behind = l.behind, nil
	return all, l.missed
}

// wrote notes that the listener's connection has taken an event.
func (h *hub) wrote(l *listener, e *sent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.bytes -= len(*e) + perEvent
}

// tell is for what this instance has done: now is what is held after it, nil if nothing is.
func (h *hub) tell(e told, now *holding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := e.lease()
	was := h.known[l]
	again := now != nil && was != nil && was.Token == e.Token // another instance has granted it, and it is known
	if was != nil && was.term != nil && now == nil {
		was.term.over.Store(true)
	}
	if h.looking {
		h.touched[e.Name] = true
	}
	delete(h.evicts, l)
	if now != nil && h.known != nil && (strings.HasPrefix(e.Name, h.prefix) || strings.HasPrefix(e.Name, h.asks)) {
		if again && !was.since.IsZero() {
			now.since = was.since
		}
		h.known[l] = now
	} else {
		delete(h.known, l)
	}
	if p := h.places[l]; p != nil && now != nil && e.waited == nil { // it waited elsewhere
		e.waited = sinceOf(p.since, now.since)
	}
	delete(h.places, l)
	if !again {
		h.record(e)
	}
	h.hear(e, false)
}

// idle reports whether nobody is told of anything.
func (h *hub) idle() bool { return h.s.history == nil && h.count() == 0 }

// granted is for a claim that was granted a lease; waited is nil if it is not known for how long it waited, and by is who
// reserves the name.
func (h *hub) granted(one *claim, waited *int64, by string) {
	if h.idle() {
		return
	}
	e := one.event(wire.EventGranted)
	e.waited, e.by = waited, by
	h.tell(e, &holding{Event: e.Event, note: e.note, since: one.lease.since, term: one.lease.term})
}

// renewed is for a claim whose lease another instance has granted, and this one renews from now on.
func (h *hub) renewed(one *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if was := h.known[one.event("").lease()]; was != nil {
		was.term = one.lease.term
	}
}

// waits is for a claim that has taken a place in the queue.
func (h *hub) waits(one *claim) {
	if h.s.history == nil {
		return
	}
	e := one.event(wire.Waiting)
	e.Token = ""
	h.mu.Lock()
	defer h.mu.Unlock()
	l := e.lease()
	if h.places[l] != nil { // it was seen before
		return
	}
	if h.looking {
		h.places[l] = &waitedAt{Event: e.Event, note: e.note, since: one.queued, owner: one.key.owner}
		h.touched[e.Name] = true
	}
	h.record(e)
}

// left is for a claim whose place in the queue was given up, or whose caller was sent away by somebody: its place is
// over soon. Requires the turn.
func (h *hub) left(one *claim) {
	away := h.s.claims.wasSentAway(one)
	h.mu.Lock()
	defer h.mu.Unlock()
	e := one.event(wire.Left)
	e.Token, e.Reason, e.by, e.waited = "", away.reason, away.by, sinceOf(one.queued, time.Now())
	one.queued = time.Time{}
	if p := h.places[e.lease()]; p != nil && away.by != "" {
		p.over = true
	} else {
		delete(h.places, e.lease())
	}
	if h.looking {
		h.touched[e.Name] = true
	}
	h.record(e)
}

// released is for a claim that has released a lease or a place in the queue. A lease that this instance
// has neither granted nor renewed is told as it was seen.
func (h *hub) released(one *claim) {
	if h.idle() {
		return
	}
	e := one.event(wire.EventReleased)
	since := one.lease.since
	was, place := h.asKnown(e.lease())
	switch {
	case was != nil && since.IsZero():
		e.Event, e.note, since = was.Event, was.note, was.since
	case was != nil: // which knows better since when
		since = was.since
	case !since.IsZero():
	case !one.queued.IsZero() || place != nil:
		if place != nil && place.over {
			return
		}
		if place != nil {
			one.queued = place.since
		}
		h.left(one)
		return
	default:
		return
	}
	e.held = sinceOf(since, time.Now())
	if t := one.lease.term; t != nil {
		t.over.Store(true)
	}
	h.tell(e, nil)
}

// asKnown is what is known of a lease or a place, by itself: what is known changes. nil: nothing is.
func (h *hub) asKnown(l lease) (held *holding, waits *waitedAt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.known[l]; one != nil {
		again := *one
		held = &again
	}
	if one := h.places[l]; one != nil {
		again := *one
		waits = &again
	}
	return held, waits
}

// lost is for a claim whose call found its lease over.
func (h *hub) lost(one *claim, why error, ranOut bool) {
	t := one.lease.term
	if t == nil || !t.over.CompareAndSwap(false, true) {
		return
	}
	e := one.event(wire.EventEnded)
	end := time.Now()
	h.mu.Lock()
	ranOut = ranOut && h.known[e.lease()].ranOut(end)
	h.mu.Unlock()
	last := t.renewed.Load()
	if reason, ok := evictedFor(why); ok {
		e.kind, e.Reason = wire.EventEvicted, reason
	} else if ranOut && last != nil {
		e.kind, end = wire.Expired, last.ends
		e.time = end
	}
	if last != nil {
		e.silent = sinceOf(last.sent, end)
	}
	e.held = sinceOf(one.lease.since, end)
	h.record(e)
	h.s.observeLoss(e)
}

// reset is for a name that was kept for nobody.
func (h *hub) reset(name, by string) {
	h.record(told{kind: wire.WasReset, Event: wire.Event{Name: name}, more: more{by: by}})
}

// evict begins an eviction, of whose outcome the caller tells before it calls done.
func (h *hub) evict(name string) (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.touched[name] = true
	h.evicting[name]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.evicting[name]--; h.evicting[name] == 0 {
			delete(h.evicting, name)
		}
	}
}

func (h *hub) evicted(name string, holder driver.Holder, reason, by string) {
	e := eventOf(name, holder)
	e.kind, e.Reason, e.by = wire.EventEvicted, reason, by
	if holder.Owner.Reveal() == "" { // nobody held it
		h.reset(name, by)
		return
	}
	if holder.Held > 0 {
		e.held = sinceOf(time.Now().Add(-holder.Held), time.Now())
	}
	h.tell(e, nil)
	h.s.observeEviction(e)
}

// event is of the lease that the claim has.
func (one *claim) event(kind string) told {
	e := eventOf(one.key.name, driver.Holder{Owner: driver.OwnerOf(one.key.owner), Mode: one.req.Mode, Fence: one.lease.fence, Note: one.req.Note})
	e.kind = kind
	return e
}

func eventOf(name string, h driver.Holder) told {
	note, of := wire.Said(h.Note)
	return told{Event: wire.Event{
		Name: name, Owner: h.Owner.String(), Handle: wire.Handle(h.Owner.Reveal()), Token: token(h.Fence), Mode: modeName(h.Mode),
		Note: note, Details: of,
	}, more: more{note: h.Note}}
}

func (e told) lease() lease { return lease{e.Name, e.Handle} }
