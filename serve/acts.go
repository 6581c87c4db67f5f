package serve

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// tell reports an event that this instance has caused. now is the lease that exists after it; nil:
// none does.
func (h *hub) tell(e told, now *holding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := e.lease()
	was := h.known[l]
	if was != nil && isLater(e.Token, was.Token) { // the lease before is over, which no look has found
		over, at := was, time.Now()
		next := at.Add(-wire.Duration(milliseconds(e.held)))
		if now != nil {
			next = now.since
		}
		ends := func() { h.end(l, over, seen{began: at, at: at}, next) }
		if under := h.evictionOf(l, was.Token); under == nil {
			ends()
		} else if under.unreported == nil { // evicted reports it, unless the eviction fails
			under.unreported = ends
		}
		was = nil
	}
	again := now != nil && was != nil && was.Token == e.Token && (e.found || !was.calls) // another instance granted it, and it is known
	next := e.kind == wire.EventEvicted && was != nil && isLater(was.Token, e.Token)     // the owner holds anew
	if was != nil && was.term != nil && now == nil && !next {
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
	} else if !next {
		delete(h.known, l)
	}
	if p := h.places[l]; p != nil && now != nil && e.waited == nil { // it waited at another instance
		e.waited = sinceOf(p.since, now.since)
	}
	delete(h.places, l)
	if !again {
		h.record(e)
	}
	h.hear(e, false)
}

// isLater reports whether a token is certainly of a later lease than another one.
func isLater(token, than string) bool {
	a, _ := strconv.ParseUint(token, 10, 64)
	b, _ := strconv.ParseUint(than, 10, 64) // 0: unknown
	return b > 0 && a > b
}

// idle reports whether there is neither a history nor a listener.
func (h *hub) idle() bool { return h.s.history == nil && h.count() == 0 }

// granted reports a grant with what the history records of it.
func (h *hub) granted(one *claim, of more) {
	if h.idle() {
		return
	}
	e := one.event(wire.EventGranted)
	of.note = e.note
	e.more = of
	h.tell(e, &holding{Event: e.Event, note: e.note, since: one.lease.since, term: one.lease.term})
}

// renewed records that this instance renews a lease that another one granted.
func (h *hub) renewed(one *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := one.event("")
	if was := h.known[e.lease()]; was != nil && !isLater(e.Token, was.Token) { // otherwise the next look finds it
		was.term = one.lease.term
	}
}

// waits reports that a claim has taken a place in the queue.
func (h *hub) waits(one *claim) {
	if h.s.history == nil {
		return
	}
	e := one.event(wire.Waiting)
	e.Token = ""
	h.mu.Lock()
	defer h.mu.Unlock()
	l := e.lease()
	if h.places[l] != nil { // a look has reported it
		return
	}
	if h.looking {
		h.places[l] = &waitedAt{Event: e.Event, note: e.note, since: one.queued, here: true}
		h.touched[e.Name] = true
	}
	h.record(e)
}

// left reports that a claim has given up its place in the queue, or that somebody has removed its
// caller, so that its place ends soon. Requires the turn.
func (h *hub) left(one *claim) {
	gone := h.s.claims.removalOf(one)
	h.mu.Lock()
	defer h.mu.Unlock()
	e := one.event(wire.Left)
	e.Token, e.waited = "", sinceOf(one.queued, time.Now())
	if one.queued.IsZero() || gone != nil && one.queued.After(gone.at) { // its owner has queued again, elsewhere
		gone = nil
	}
	if gone != nil {
		e.Reason, e.by = gone.reason, gone.by
	}
	one.queued = time.Time{}
	if p := h.places[e.lease()]; p != nil && gone != nil {
		p.over = true
	} else {
		delete(h.places, e.lease())
	}
	if h.looking {
		h.touched[e.Name] = true
	}
	h.record(e)
}

// released reports that a claim has released a lease or a place in the queue. If this instance has
// neither granted nor renewed the lease, it is reported as the last look saw it.
func (h *hub) released(one *claim) {
	if h.idle() {
		return
	}
	e := one.event(wire.EventReleased)
	since := one.lease.since
	was, place := h.asKnown(e.lease())
	switch {
	case was != nil && (since.IsZero() || isLater(was.Token, e.Token)): // another instance granted it
		e.Event, e.note, since = was.Event, was.note, was.since
	case was != nil && !isLater(e.Token, was.Token): // it knows the start of the lease better
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

// lost reports that a call found its claim's lease over. While it is being evicted here, that is left
// to evicted, unless the eviction fails.
func (h *hub) lost(one *claim, why error, ranOut bool) {
	t := one.lease.term
	if t == nil {
		return
	}
	e := one.event(wire.EventEnded)
	end, last := time.Now(), t.renewed.Load()
	report := func() {
		if t.over.CompareAndSwap(false, true) {
			h.record(e)
			h.s.observeLoss(e, true)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ranOut = ranOut && h.known[e.lease()].ranOut(end, h.sole())
	if reason, ok := evictedFor(why); ok {
		e.kind, e.Reason = wire.EventEvicted, reason
	} else if t.isGivenUp() {
		e.kind = wire.EventReleased
	} else if ranOut && last != nil {
		e.kind, end = wire.Expired, last.ends
		e.time = end
	}
	if last != nil && e.kind != wire.EventReleased {
		e.silent = sinceOf(last.sent, end)
	}
	since := one.lease.since
	if was := h.known[e.lease()]; was != nil && was.Token == e.Token { // it knows the start of the lease better
		since = cmp.Or(was.since, since)
	}
	e.held = sinceOf(since, end)
	if under := h.evictionOf(e.lease(), e.Token); under != nil {
		under.unreported = report
	} else {
		report()
	}
}

// reset reports the end of a hold without an owner.
func (h *hub) reset(name, by string) {
	h.record(told{kind: wire.WasReset, Event: wire.Event{Name: name}, more: more{by: by}})
}

// An evictee is a lease that is being evicted. Its token is token(0) if it is unknown.
type evictee struct {
	lease
	token string
}

// An eviction is what is known of a lease that is being evicted.
type eviction struct {
	calls      int    // in progress
	unreported func() // reports the end that a call has found, with hub.mu; nil: none has
}

// evict begins an eviction. The caller calls done, after evicted if it succeeded.
func (h *hub) evict(of evictee) (done func(succeeded bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.looking { // otherwise the first look finds it in evicting
		h.touched[of.name] = true
	}
	under := h.evicting[of]
	if under == nil {
		under = &eviction{}
		h.evicting[of] = under
	}
	under.calls++
	return func(succeeded bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if succeeded {
			under.unreported = nil
		}
		if under.calls--; under.calls == 0 {
			delete(h.evicting, of)
			if under.unreported != nil {
				under.unreported()
			}
		}
	}
}

// evictionOf returns the eviction in progress of a lease; nil: there is none. Requires mu.
func (h *hub) evictionOf(l lease, of string) *eviction {
	return cmp.Or(h.evicting[evictee{l, of}], h.evicting[evictee{l, token(0)}])
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

// event returns an event about the claim's lease.
func (one *claim) event(kind string) told {
	e := eventOf(one.key.name, one.holder())
	e.kind = kind
	return e
}

func eventOf(name string, h driver.Holder) told {
	note, of := wire.Said(h.Note)
	return told{Event: wire.Event{
		Name: name, Owner: h.Owner.String(), Handle: wire.HandleOf(h.Owner), Token: token(h.Fence), Mode: h.Mode.String(),
		Note: note, Details: of,
	}, more: more{note: h.Note}}
}

func (e told) lease() lease { return lease{e.Name, e.Handle} }
