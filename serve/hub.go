package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
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

// A hub tells listeners what happens to leases: at once what this instance does, and what it
// finds out by comparing what is held with what was.
type hub struct {
	s     *Server
	nudge chan struct{}

	mu        sync.Mutex
	listeners map[*listener]bool   // guarded by mu
	known     map[lease]wire.Event // guarded by mu; held, by what was told and seen last; nil: nobody has listened
	evicts    map[lease]string     // guarded by mu; the reasons of those in known of which an engine has told that they were evicted
	prefix    string               // guarded by mu; of the names that known is about
	asks      string               // guarded by mu; of those that the last look began with
	touched   map[string]bool      // guarded by mu; names of which something was told since the last look began
	looking   bool                 // guarded by mu; there is a goroutine that looks
	partial   bool                 // guarded by mu; the last look met more than mostFollowed
}

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

// told is an event and its kind.
type told struct {
	kind string
	wire.Event
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
		h.looking, h.known, h.prefix, h.asks = true, nil, prefix, prefix
		h.s.working.Go(func() { h.run(h.s.life) })
	}
	return l
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

// run looks at what is held, until nobody listens.
func (h *hub) run(ctx context.Context) {
	for {
		prefix, ready, ok := h.begin()
		if !ok {
			return
		}
		took, whole := h.look(ctx, prefix)
		h.begun(ready, whole)
		pause := max(lookEvery, lookShare*took)
		if !whole { // which says nothing of how long an answer takes
			pause = max(lookEvery, took)
		}
		select {
		case <-time.After(lookSoon):
		case <-ctx.Done():
			return
		}
		select {
		case <-h.nudge:
		case <-time.After(pause - lookSoon):
		case <-ctx.Done():
			return
		}
	}
}

// begin tells what a look is to be about, and who is to be told when it has ended.
func (h *hub) begin() (prefix string, ready []*listener, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.looking = len(h.listeners) > 0; !h.looking {
		h.known = nil
		clear(h.evicts)
		return "", nil, false
	}
	first := true
	for l := range h.listeners {
		if first {
			prefix, first = l.prefix, false
		}
		prefix = common(prefix, l.prefix)
		if !l.asked {
			l.asked, ready = true, append(ready, l)
		}
	}
	clear(h.touched)
	h.asks = prefix
	return prefix, ready, true
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
func (h *hub) look(ctx context.Context, prefix string) (took time.Duration, whole bool) {
	ask, cancel := context.WithTimeout(ctx, 2*callBound)
	defer cancel()
	began := time.Now()
	seen, fit, err := h.list(ask, validPrefix(prefix))
	took = time.Since(began)
	if err != nil {
		return took, false
	}
	h.follows(fit)
	if fit {
		h.askAgain(ask, seen, prefix)
		h.compare(seen, prefix)
	}
	return took, true
}

// list asks for all leases of names that begin with prefix. fit: there are no more than the hub follows.
func (h *hub) list(ctx context.Context, prefix string) (seen map[lease]wire.Event, fit bool, err error) {
	seen = make(map[lease]wire.Event)
	for names, after := 0, ""; ; {
		states, next, err := h.s.operator.List(ctx, prefix, after, wire.MaxPage)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return nil, false, err
		}
		for _, state := range states {
			addHolders(seen, state)
		}
		if names += len(states); names > mostFollowed {
			return nil, false, nil
		}
		if after = next; after == "" {
			return seen, true, nil
		}
	}
}

// follows notes whether a look has met few enough names. What it knew of more is forgotten, so that the
// next look that does begins anew; and the listeners are told.
func (h *hub) follows(fit bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.partial == fit {
		h.partial = !fit
		for l := range h.listeners {
			select {
			case <-l.ready:
				h.give(l, h.open())
			default: // its stream opens with it
			}
		}
	}
	if h.partial {
		h.known = nil
		clear(h.evicts)
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
	frame, _ := told{wire.EventOpen, wire.Event{Partial: h.partial}}.frame() // of which all can be written
	return &frame
}

// askAgain asks for each lease that is not seen any more, for itself: a holder that is told of
// its end stops. Of those that it does not come to, for many end at once, the next look asks.
func (h *hub) askAgain(ctx context.Context, seen map[lease]wire.Event, prefix string) {
	began := time.Now()
	for _, gone := range h.notIn(seen, prefix) {
		if time.Since(began) > askFor {
			seen[gone] = h.eventOf(gone)
			h.soon()
		} else if state, err := h.s.operator.Inspect(ctx, gone.name); err != nil {
			seen[gone] = h.eventOf(gone)
		} else {
			addHolders(seen, state)
		}
	}
}

// validPrefix cuts what is left of a character at the end of a common prefix.
func validPrefix(prefix string) string { return strings.ToValidUTF8(prefix, "") }

func addHolders(seen map[lease]wire.Event, state driver.State) {
	for _, holder := range state.Holders {
		if holder.Owner.Reveal() != "" { // else it lingers, and its end was told
			e := eventOf(state.Resource, holder)
			seen[e.lease()] = e.Event
		}
	}
}

// notIn are the leases of names with prefix that were known and are not seen.
func (h *hub) notIn(seen map[lease]wire.Event, prefix string) (gone []lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.known {
		if _, ok := seen[l]; !ok && !h.touched[l.name] && strings.HasPrefix(l.name, prefix) {
			gone = append(gone, l)
		}
	}
	return gone
}

func (h *hub) eventOf(l lease) wire.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known[l]
}

// compare tells the difference between what was known and what is seen, but for names of which
// this instance has told something meanwhile, and for those of which nothing was known.
func (h *hub) compare(seen map[lease]wire.Event, prefix string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, before := h.known == nil, h.prefix
	if first {
		h.known = make(map[lease]wire.Event)
	}
	for l, e := range h.known {
		switch _, ok := seen[l]; {
		case !strings.HasPrefix(l.name, prefix): // nobody listens any more
			h.lose(l)
		case !ok && !h.touched[l.name]:
			h.send(h.end(l, e))
			h.lose(l)
		}
	}
	for l, e := range seen {
		if _, ok := h.known[l]; ok || h.touched[l.name] {
			continue
		}
		if h.known[l] = e; !first && strings.HasPrefix(l.name, before) {
			h.send(told{wire.EventGranted, e})
		}
	}
	h.prefix = prefix
}

// because notes that an engine has told of an eviction by another instance or program. It is told when the
// lease is seen to have ended.
func (h *hub) because(k key, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := lease{k.name, wire.Handle(k.owner)}
	if _, ok := h.known[l]; ok {
		h.evicts[l] = reason
		h.soon()
	}
}

// end is what is told of a lease that is seen to have ended. Requires mu.
func (h *hub) end(l lease, e wire.Event) told {
	reason, ok := h.evicts[l]
	if !ok {
		return told{wire.EventEnded, e}
	}
	e.Reason = reason
	return told{wire.EventEvicted, e}
}

// lose requires mu.
func (h *hub) lose(l lease) {
	delete(h.known, l)
	delete(h.evicts, l)
}

// send gives an event to those whom it concerns, all of whom share it. Requires mu.
func (h *hub) send(e told) {
	var shared *sent
	for l := range h.listeners {
		if !strings.HasPrefix(e.Name, l.prefix) || !l.client.May(View, e.Name) {
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

// tell is for what this instance has done: held says whether the lease is held after it.
func (h *hub) tell(e told, held bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.listeners) == 0 {
		return
	}
	h.touched[e.Name] = true
	delete(h.evicts, e.lease())
	if held && h.known != nil && (strings.HasPrefix(e.Name, h.prefix) || strings.HasPrefix(e.Name, h.asks)) {
		h.known[e.lease()] = e.Event
	} else {
		delete(h.known, e.lease())
	}
	h.send(e)
}

func (h *hub) granted(one *claim) {
	if h.count() > 0 {
		h.tell(one.event(wire.EventGranted), true)
	}
}

// released is for a claim that has released a lease or a place in the queue. A lease that this instance
// has neither granted nor renewed is told as it was seen.
func (h *hub) released(one *claim) {
	if h.count() == 0 {
		return
	}
	e := one.event(wire.EventReleased)
	if one.lease.since.IsZero() {
		h.mu.Lock()
		seen, ok := h.known[e.lease()]
		h.mu.Unlock()
		if !ok {
			return
		}
		e.Event = seen
	}
	h.tell(e, false)
}

func (h *hub) evicted(name string, holder driver.Holder, reason string) {
	e := eventOf(name, holder)
	e.kind, e.Reason = wire.EventEvicted, reason
	h.tell(e, false)
}

// event is of the lease that the claim has.
func (one *claim) event(kind string) told {
	e := eventOf(one.key.name, driver.Holder{Owner: driver.OwnerOf(one.key.owner), Mode: one.req.Mode, Fence: one.lease.fence, Note: one.req.Note})
	e.kind = kind
	return e
}

func eventOf(name string, h driver.Holder) told {
	note, details := wire.Said(h.Note)
	return told{Event: wire.Event{
		Name: name, Owner: h.Owner.String(), Handle: wire.Handle(h.Owner.Reveal()), Token: token(h.Fence), Mode: modeName(h.Mode),
		Note: note, Details: details,
	}}
}

func (e told) lease() lease { return lease{e.Name, e.Handle} }
