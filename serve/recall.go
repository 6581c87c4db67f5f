package serve

import (
	"slices"
	"sync/atomic"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A recall tells the holder of a claim that others wait: at once by an event, which may be lost, and with the answers to
// its calls. All methods but comes take nil, for a claim whose holder has not asked.
type recall struct {
	s      *Server
	about  wire.Event
	fence  atomic.Uint64 // 0: it is not granted yet
	called atomic.Bool   // since begin
	first  atomic.Bool   // it was told of this grant
}

func (s *Server) newRecall(k key, mode driver.Mode) *recall {
	e := eventOf(k.name, driver.Holder{Owner: driver.OwnerOf(k.owner), Mode: mode})
	return &recall{s: s, about: e.Event}
}

// begin begins a call to the engine. The engine tells with the answer whether others wait.
func (r *recall) begin() {
	if r != nil {
		r.called.Store(false)
	}
}

// granted notes a grant, which may be the one that is known.
func (r *recall) granted(fence uint64) {
	if r != nil && r.fence.Swap(fence) != fence {
		r.first.Store(r.called.Load())
		if r.called.Load() {
			r.s.metrics.recalls.count("")
		}
	}
}

// came reports whether the engine has told, since begin, that others wait.
func (r *recall) came() bool { return r != nil && r.called.Load() }

// comes is the claim's Request.Wanted. The event comes after the flag is set: who misses one has the other.
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

// asksRecall has the claim's holder told that others wait. Where leases end with the instance's session, that is for the
// acquire to say: the claim cannot be made anew. Requires the turn.
func (s *Server) asksRecall(one *claim, once bool) error {
	if one.recall != nil || !s.features.Tells || !s.features.Resumes {
		return nil
	}
	s.forget(one)
	one.driver, one.req.WantedOnce = nil, once
	return s.use(one, one.req, true)
}

// wanted tells those who asked for it that others wait for a lease.
func (h *hub) wanted(e told) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waited != nil { // a look is to tell no more of it
		h.told[e.lease()] = true
	}
	h.hear(e, false)
}

// lacks reports whether it has taken the last event that others wait for that lease, and notes that the next one is there.
// Requires hub.mu.
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

// recallSeen tells whose leases others wait for, as a look has seen it: what an engine tells this instance is about claims
// of its own. Those whose streams have just opened are told of all, the others of places that the look before did not see.
func (h *hub) recallSeen(s seen, opened []*listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.held == nil { // it was not whole, or of too many names
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
	waits := make(map[string]bool) // the value: somebody has come
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
