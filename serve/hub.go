package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// lookEvery is how often the engine is asked what is held while somebody listens. Events of
	// other instances and programs are that late. It is asked less often if its answer takes more
	// than a part of that.
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
	waited    map[lease]*waitedAt // guarded by mu; the places that the last look saw; nil: nobody hears of those who are wanted
	told      map[lease]bool      // guarded by mu; of which leases this instance has told since that they are wanted
}

// A waitedAt is a place in a queue, and when it was taken; zero: unknown.
type waitedAt struct {
	wire.Event
	note  string
	since time.Time
	seen  bool   // by a look: then its absence says that it is over
	owner string // "": only looks know of it
	over  bool   // its end is in the history
}

// A lease is what others can tell it by.
type lease struct{ name, handle string }

// A listener gets the events of names with a prefix.
type listener struct {
	prefix string
	kinds  []string       // nil: all but wire.EventWanted
	client *Client        // guarded by hub.mu; is told what it may view
	more   chan struct{}  // has room for one: there is something to take
	behind []*sent        // guarded by hub.mu; what it has not taken
	bytes  int            // guarded by hub.mu; of behind
	wanted map[lease]bool // guarded by hub.mu; of those in behind, the leases that others wait for
	missed bool           // guarded by hub.mu; it was too far behind, and hears no more
	ready  chan struct{}  // closed when all that happens from here on is told
	asked  bool           // guarded by hub.mu; a look has begun since it listens
}

// minds reports whether it gets that kind.
func (l *listener) minds(kind string) bool {
	if l.kinds == nil {
		return kind != wire.EventWanted
	}
	return slices.Contains(l.kinds, kind)
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
func (h *hub) listen(prefix string, kinds []string, client *Client) *listener {
	l := &listener{prefix: prefix, kinds: kinds, client: client, more: make(chan struct{}, 1), ready: make(chan struct{})}
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
	h.waited, h.told = nil, nil
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
		s, took, whole := h.look(ctx, g)
		if g.all {
			allMissed = missedAfter(allMissed, whole)
			h.dueAfter(pauseAfter(h.s.history.every, took, allMissed))
		}
		if whole && s.held == nil && g.heard && g.prefix != g.narrow { // too many of all: look at those that somebody listens to
			g.prefix, g.all = g.narrow, false
			s, took, whole = h.look(ctx, g)
		}
		h.begun(g.ready, whole)
		h.recallSeen(s, g.ready)
		h.expire()
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

// sole reports whether nobody uses the store but through this instance.
func (h *hub) sole() bool { return h.s.history != nil && h.s.history.sole }

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

// begun reports to listeners that they get everything from here on, if the look was whole.
// Otherwise the next look does.
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

// follows notes whether a look has met few enough names. If not, it discards what is known, so that
// the next look that does begins anew, and notifies the listeners.
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
	h.hearBy(e, func(l *listener) bool { return !seen || l.isReady() })
}

// hearBy is hear for those listeners. Requires mu.
func (h *hub) hearBy(e told, those func(*listener) bool) {
	var shared *sent
	for l := range h.listeners {
		if !l.minds(e.kind) || !strings.HasPrefix(e.Name, l.prefix) || !those(l) || !l.client.May(View, e.Name) {
			continue
		}
		if e.kind == wire.EventWanted && !l.lacks(e.lease()) {
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
	all, l.behind, l.wanted = l.behind, nil, nil
	return all, l.missed
}

// wrote notes that the listener's connection has taken an event.
func (h *hub) wrote(l *listener, e *sent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.bytes -= len(*e) + perEvent
}
