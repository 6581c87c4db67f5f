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
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// lookEvery is how often the hub asks the engine for all leases while somebody listens. Events
	// of other instances and programs are delayed by this much. It asks less often if the answer
	// takes more than a share of this time.
	lookEvery = time.Second
	lookShare = 20
	// lookSoon is how soon it asks if there is a reason to.
	lookSoon = 50 * time.Millisecond
	// mostFollowed is how many names the hub compares. Beyond it, the hub reports only what this
	// instance does; it neither lists the names nor keeps them.
	mostFollowed = 50_000
	// askFor is how long one look may ask about single leases that have disappeared.
	askFor = time.Second
	// mostBehind is how many bytes of events may be queued for a listener. Each event counts for
	// perEvent more, for its slot in the queue. One look may report thousands of events.
	mostBehind, perEvent = 1 << 20, 64
)

// A hub reports what happens to leases to listeners and to the history. It reports this instance's
// actions at once. It finds others by comparing the engine's leases with what the last look found.
// For the history it looks at all names, less often.
type hub struct {
	s     *Server
	nudge chan struct{}

	mu        sync.Mutex
	listeners map[*listener]bool    // guarded by mu
	known     map[lease]*holding    // guarded by mu; leases, from reports and the last look; nil: nothing is compared
	places    map[lease]*waitedAt   // guarded by mu; waiters, as known
	compared  bool                  // guarded by mu; known has all names with prefix, from a look and later reports
	evicts    map[lease]reported    // guarded by mu; evictions that an engine has reported for owners of leases in known
	prefix    string                // guarded by mu; known has names with this prefix
	asks      string                // guarded by mu; the prefix of the current or last look
	touched   map[string]bool       // guarded by mu; names with reports since the last look began, or with an eviction in progress
	evicting  map[evictee]*eviction // guarded by mu; evictions in progress here, which nothing else reports
	looking   bool                  // guarded by mu; the goroutine of run exists
	partial   bool                  // guarded by mu; the last look for listeners found more than mostFollowed names
	due       time.Time             // guarded by mu; when the history needs a look at all names
	waited    map[lease]*waitedAt   // guarded by mu; the places of the last look; nil: nobody listens for recalls
	told      map[lease]bool        // guarded by mu; leases whose recalls this instance has reported since
}

// A waitedAt is a place in a queue. since is when it was taken; zero: unknown.
type waitedAt struct {
	wire.Event
	note  string
	since time.Time
	fence uint64 // of the name, when a look has seen the place; 0: unknown
	seen  bool   // by a look: then its absence from one means that it is over
	here  bool   // a claim here has reported it
	over  bool   // its end is in the history
}

// A lease is identified by its name and its owner's handle, as its claim is. Where the engine is
// another service, looks see no more of an owner.
type lease struct{ name, handle string }

// A listener gets the events of names with a prefix.
type listener struct {
	prefix string
	kinds  []string       // nil: all except wire.EventWanted
	client *Client        // guarded by hub.mu; gets what this client may view
	more   chan struct{}  // has a token when there is something to take
	behind []*sent        // guarded by hub.mu; events that it has not taken
	bytes  int            // guarded by hub.mu; of behind
	wanted map[lease]bool // guarded by hub.mu; leases with a recall among the events in behind
	missed bool           // guarded by hub.mu; it was too far behind, and gets no more
	ready  chan struct{}  // closed when the listener misses no later event
	asked  bool           // guarded by hub.mu; a look has begun since it was added
}

// minds reports whether the listener wants events of that kind.
func (l *listener) minds(kind string) bool {
	if l.kinds == nil {
		return kind != wire.EventWanted
	}
	return slices.Contains(l.kinds, kind)
}

func (l *listener) isReady() bool { return waiting.Closed(l.ready) }

// told is an event of some kind, with what only the history records.
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
	found                bool // an acquire has found the lease: it is no new one
}

// sent is an event as it is written. All its listeners share it.
type sent []byte

// frame encodes the event for a stream.
func (e told) frame() sent {
	data, _ := json.Marshal(e.Event) // its fields can all be encoded
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", e.kind, data)
}

func (h *hub) init(s *Server) {
	h.s, h.nudge = s, make(chan struct{}, 1)
	h.listeners, h.touched, h.evicts = make(map[*listener]bool), make(map[string]bool), make(map[lease]reported)
	h.evicting = make(map[evictee]*eviction)
	h.places = make(map[lease]*waitedAt)
}

// listen adds a listener. The caller must call leave.
func (h *hub) listen(prefix string, kinds []string, client *Client) *listener {
	l := &listener{prefix: prefix, kinds: kinds, client: client, more: make(chan struct{}, 1), ready: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[l] = true
	switch {
	case h.s.operator == nil:
		h.opens(l)
	case h.looking:
		h.soon()
	default:
		h.start()
	}
	return l
}

// start starts the looks. Requires mu.
func (h *hub) start() {
	h.looking = h.s.life.Go(func() { h.run(h.s.life) })
	h.forget()
}

// forget discards what is known. Requires mu.
func (h *hub) forget() {
	h.known, h.compared = nil, false
	h.waited, h.told = nil, nil
	clear(h.evicts)
	for l, one := range h.places {
		h.losePlace(l, one)
	}
}

// losePlace discards a place, unless expire must report its end. Requires mu.
func (h *hub) losePlace(l lease, one *waitedAt) {
	if one.seen = false; !one.here || !h.looking {
		delete(h.places, l)
	}
}

// records starts the looks at all names for the history.
func (h *hub) records() {
	if r := h.s.history; r == nil || r.every < 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.start()
}

// becomes updates a listener's client, whose rights may have changed.
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

// soon makes the next look come soon.
func (h *hub) soon() {
	nudge(h.nudge)
}

// nudge puts a token into c, which has room for one, unless it has it.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// soonIfHeard is soon if somebody listens. The history can wait.
func (h *hub) soonIfHeard() {
	if h.count() > 0 {
		h.soon()
	}
}

// A gaze is the scope of a look.
type gaze struct {
	prefix string
	all    bool        // the history needs it as well
	narrow string      // the common prefix of all listeners
	heard  bool        // there are listeners
	ready  []*listener // become ready when the look has ended
}

// run looks at the engine's leases until there are neither listeners nor a history.
func (h *hub) run(ctx context.Context) {
	pause, allMissed, missed := lookEvery, 0, 0 // pause: between looks for listeners; missed: incomplete looks in a row
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
		if whole && s.held == nil && g.heard && g.prefix != g.narrow { // too many names: look at those that are listened to
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

// missedAfter returns how many looks in a row were incomplete.
func missedAfter(missed int, whole bool) int {
	if whole {
		return 0
	}
	return missed + 1
}

// pauseAfter returns the pause after a look, so that looks take only a share of the time. After an
// incomplete answer, the duration of a complete one is unknown: the pause doubles with each, up to
// that share.
func pauseAfter(every, took time.Duration, missed int) time.Duration {
	share := lookShare * took
	if missed > 0 {
		share = min(share, took<<min(missed-1, 10))
	}
	return max(every, share)
}

// dueAfter schedules the next look for the history after a pause.
func (h *hub) dueAfter(pause time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.due = time.Now().Add(pause)
}

// rest waits for the next look. It reports whether there will be one.
func (h *hub) rest(ctx context.Context, pause time.Duration) bool {
	if _, ended := waiting.Sleep(ctx, nil, nil, lookSoon); ended != nil {
		return false
	}
	h.mu.Lock()
	if due := time.Until(h.due); h.recorded() && (len(h.listeners) == 0 || due < pause) {
		pause = due
	}
	h.mu.Unlock()
	_, ended := waiting.Sleep(ctx, nil, h.nudge, pause-lookSoon)
	return ended == nil
}

// recorded reports whether the history needs looks at all names.
func (h *hub) recorded() bool { return h.s.history != nil && h.s.history.every > 0 }

// sole reports whether the store is used only through this instance.
func (h *hub) sole() bool { return h.s.history != nil && h.s.history.sole }

// begin returns the scope of the next look. ok is false if none is needed.
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
	for of := range h.evicting {
		h.touched[of.name] = true
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
			h.opens(l)
		}
	}
}

// opens reports to a listener that it gets everything from here on. That comes before the events
// that are queued already. Requires mu.
func (h *hub) opens(l *listener) {
	close(l.ready)
	earlier := l.behind
	l.behind = nil
	if h.give(l, h.open()); !l.missed {
		l.behind = append(l.behind, earlier...)
	}
}

// common returns the common prefix of a and b.
func common(a, b string) string {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// follows records whether a look has found few enough names. If not, it discards what is known, so
// that the next complete look starts over. It notifies the listeners of a change.
func (h *hub) follows(fit bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.partial == fit {
		h.partial = !fit
		for l := range h.listeners {
			if l.isReady() { // otherwise its stream opens with it
				h.give(l, h.open())
			}
		}
	}
	if h.partial {
		h.forget()
	}
}

// open returns the event with which a stream opens. Requires mu.
func (h *hub) open() *sent {
	return new(told{kind: wire.EventOpen, Event: wire.Event{Partial: h.partial}}.frame())
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

// hear sends an event to the listeners that may view it; they share its encoding. If a look has
// found it, seen is true: listeners whose streams have not opened yet do not get it. Requires mu.
func (h *hub) hear(e told, seen bool) {
	h.hearBy(e, func(l *listener) bool { return !seen || l.isReady() })
}

// hearBy is hear for the listeners that those accepts. Requires mu.
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
			shared = new(e.frame())
		}
		h.give(l, shared)
	}
}

// give queues an event for a listener. Requires mu.
func (h *hub) give(l *listener, e *sent) {
	if l.bytes += len(*e) + perEvent; l.bytes > mostBehind {
		l.missed, l.behind = true, nil
		delete(h.listeners, l)
	} else {
		l.behind = append(l.behind, e)
	}
	nudge(l.more)
}

// take returns the events that are queued for the listener. missed means that some were dropped.
func (h *hub) take(l *listener) (all []*sent, missed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all, l.behind, l.wanted = l.behind, nil, nil
	return all, l.missed
}

// wrote records that an event was written to the listener's connection.
func (h *hub) wrote(l *listener, e *sent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.bytes -= len(*e) + perEvent
}
