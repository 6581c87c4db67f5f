package serve

import (
	"slices"
	"sync/atomic"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A recall notifies the holder of a claim that others wait: at once by an event, which may be lost,
// and with the answers to its calls. All methods except comes accept nil, for a claim whose holder
// has not asked.
type recall struct {
	s      *Server
	about  wire.Event
	fence  atomic.Uint64 // 0: not granted yet
	called atomic.Bool   // comes was called since begin
	first  atomic.Bool   // the holder was notified during this grant
}

func (s *Server) newRecall(one *claim, mode driver.Mode) *recall {
	e := eventOf(one.key.name, driver.Holder{Owner: driver.OwnerOf(one.owner), Mode: mode})
	return &recall{s: s, about: e.Event}
}

// begin precedes a call to the engine, which reports during the call if others wait.
func (r *recall) begin() {
	if r != nil {
		r.called.Store(false)
	}
}

// granted records a grant. It may be the known one.
func (r *recall) granted(fence uint64) {
	if r != nil && r.fence.Swap(fence) != fence {
		r.first.Store(r.called.Load())
		if r.called.Load() {
			r.s.metrics.recalls.count("")
		}
	}
}

// came reports whether the engine has reported, since begin, that others wait.
func (r *recall) came() bool { return r != nil && r.called.Load() }

// comes is the claim's Request.Wanted. It sets the flag before it sends the event, so that a holder
// that misses one gets the other.
func (r *recall) comes() {
	r.called.Store(true)
	fence := r.fence.Load()
	if fence > 0 && r.first.CompareAndSwap(false, true) {
		r.s.metrics.recalls.count("")
	}
	e := told{kind: wire.EventWanted, Event: r.about}
	e.Token = token(fence)
	r.s.hub.wanted(e)
}

// asksRecall begins to notify the claim's holder of waiters. Where leases end with the instance's
// session, only an acquire can ask for that, because the claim cannot be created again. Requires
// the turn.
func (s *Server) asksRecall(one *claim, once bool) error {
	if one.recall != nil || !s.features.Tells || !s.features.Resumes {
		return nil
	}
	s.forget(one)
	one.driver, one.acquires, one.req.WantedOnce = nil, false, once
	return s.use(one, one.req, true)
}

// wanted sends the event that others wait for a lease.
func (h *hub) wanted(e told) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waited != nil { // the next look must not report it again
		h.told[e.lease()] = true
	}
	h.hear(e, false)
}

// lacks reports whether the listener has taken the last recall of that lease. If so, it records
// that another one is queued. Requires hub.mu.
func (l *listener) lacks(of lease) bool {
	if l.wanted[of] {
		return false
	}
	if l.wanted == nil {
		l.wanted = make(map[lease]bool)
	}
	l.wanted[of] = true
	return true
}

// recallSeen reports the leases for which a look has found waiters, because an engine notifies this
// instance only about its own claims. Listeners whose streams have just opened get all of them.
// Others get those with places that the last look did not find.
func (h *hub) recallSeen(s seen, opened []*listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.held == nil { // the look was incomplete, or found too many names
		return
	}
	before, toldHere := h.waited, h.told
	h.waited, h.told = nil, nil
	for l := range h.listeners {
		if l.minds(wire.EventWanted) {
			h.waited, h.told = s.places, make(map[lease]bool)
			break
		}
	}
	if h.waited == nil || len(s.places) == 0 {
		return
	}
	waits := make(map[string]bool) // the value: a new place was found
	var pace breath
	for l := range s.places {
		pace.let(&h.mu)
		_, known := before[l]
		waits[l.name] = waits[l.name] || !known
	}
	for l, one := range s.held {
		pace.let(&h.mu)
		come, contended := waits[l.name]
		if !contended {
			continue
		}
		e := told{kind: wire.EventWanted, Event: one.Event}
		e.Note, e.Details = "", nil
		come = come && !toldHere[l]
		h.hearBy(e, func(to *listener) bool { return come && to.isReady() || slices.Contains(opened, to) })
	}
}
