package serve

import (
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A holding is a lease that is held.
type holding struct {
	wire.Event
	note  string        // as the engine keeps it
	since time.Time     // zero: unknown
	end   end           // unless it is renewed, as a look found last
	least time.Duration // of its length, since looks have seen that it was granted or renewed; 0: they have not
	still time.Time     // since when looks have seen no renewal
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
		one.least, one.still = e.left, e.answered
	}
	one.end = e
}

// young is how old a lease may be that a look finds: what is left then is the least that its length can be, if its holder
// means to renew it. A renewal in between would have been as recent.
const young = 10 * time.Second

// begins is for the first look that finds a lease.
func (one *holding) begins(h driver.Holder) {
	one.still = one.end.answered
	if h.Held > 0 && h.Held <= young && one.Details != nil && one.Details.Renews() {
		one.least = h.Left
	}
}

// silent is for how long looks have seen no renewal of a lease that was over at then, by its last end, if that is more than
// half of what is known of its length; nil: it may have been released.
func (one *holding) silent(then time.Time) *int64 {
	length, seen := one.length(), one.end.answered.Sub(one.still) // since then nobody has looked
	if length == 0 || one.end.left <= 0 || then.Before(one.end.answered.Add(one.end.left)) || seen < length/2 {
		return nil
	}
	return sinceOf(one.still, one.end.answered)
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

// times shows what the engine was asked at that time. It adds the lengths of leases that the engine does not tell, or else
// for how long no renewal was seen.
func (h *hub) times(state driver.State, asked time.Time) wire.State {
	now := time.Now()
	unseen := make(map[int]int64)
	for i := range state.Holders {
		one := &state.Holders[i]
		if one.TTL > 0 || one.Left <= 0 || one.Owner.Reveal() == "" {
			continue
		}
		if _, d := wire.Said(one.Note); d != nil && !d.Renews() {
			continue // nobody renews it
		}
		if was, _ := h.asKnown(lease{state.Resource, wire.Handle(one.Owner.Reveal())}); was != nil {
			was.learns(end{one.Left, asked, now})
			if ttl := was.length(); ttl > 0 {
				one.TTL = max(ttl, one.Left)
			} else if !was.still.IsZero() {
				unseen[i] = max(wire.Millis(now.Sub(was.still)), 0)
			}
		}
	}
	shown := stateOf(state)
	for i, ms := range unseen {
		shown.Holders[i].Unseen = ms
	}
	return shown
}

// endSlack is by how much what an engine says of the end of a lease may be wrong: some count whole seconds.
const endSlack = time.Second

// A term is how long a lease lasts by what this instance was answered last.
type term struct {
	renewed atomic.Pointer[span]
	over    atomic.Bool // its end is in the history
}

// A span is from when a call was sent until what it was granted ends.
type span struct{ sent, ends time.Time }

// lasts notes a grant or a renewal.
func (t *term) lasts(sent time.Time, ttl time.Duration) { t.renewed.Store(&span{sent, sent.Add(ttl)}) }

// ranOut reports whether a lease that is found over by a call of then or later was not renewed in time, as far as is known
// here: nobody else can renew it, or when half of the time was over since this instance has renewed it, a look has seen
// that nobody had again. A holder that goes on renews sooner.
func (one *holding) ranOut(then time.Time, sole bool) bool {
	if one == nil || one.term == nil {
		return false
	}
	last := one.term.renewed.Load()
	if last == nil || then.Before(last.ends) {
		return false
	}
	return sole || one.end.asked.After(last.sent.Add(last.ends.Sub(last.sent)/2)) && one.end.is(last.ends)
}
