package serve

import (
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A holding is a lease, as looks and this instance's calls know it.
type holding struct {
	wire.Event
	note  string        // as the engine keeps it
	since time.Time     // zero: unknown
	end   end           // as the last look found it
	least time.Duration // a lower bound of the length, from a grant or renewal between looks; 0: there was none
	still time.Time     // since when looks have found no renewal
	row   int           // its row in the sight of the look that lists it, from 1; 0: it has none
	term  *term         // nil: this instance has neither granted nor renewed the lease
	calls bool          // a call was in progress when a look found the lease first, and may report its grant
}

// An end is the time at which a lease ends unless it is renewed. The engine was asked at asked, and
// by answered it had answered that left remained. Zero: unknown.
type end struct {
	left            time.Duration
	asked, answered time.Time
}

// is reports whether the lease may end at then, within endSlack.
func (e end) is(then time.Time) bool {
	return e.left > 0 && !e.asked.Add(e.left-endSlack).After(then) && !e.answered.Add(e.left+endSlack).Before(then)
}

// moved reports whether a later look has found another end, because the lease was renewed or its
// length changed.
func (e end) moved(later end) bool {
	return e.left > 0 && later.left > 0 && (later.asked.Add(later.left-endSlack).After(e.answered.Add(e.left)) ||
		later.answered.Add(later.left+endSlack).Before(e.asked.Add(e.left)))
}

// learns updates a lease with the end that a look has found. If the end has moved, the lease was
// renewed since the last look, so what is left is a lower bound of its length.
func (one *holding) learns(e end) {
	if e.left <= 0 { // it has just ended, or the engine does not tell
		return
	}
	if one.end.moved(e) {
		one.least, one.still = e.left, e.answered
	}
	one.end = e
}

// young is the greatest age at which a new lease shows its length. If its holder means to renew it,
// what is left is a lower bound of the length, even if it was renewed since the grant.
const young = 10 * time.Second

// begins sets what the first look at a lease tells about its length.
func (one *holding) begins(h driver.Holder) {
	one.still = one.end.answered
	if h.Held > 0 && h.Held <= young && one.Details != nil && one.Details.Renews() {
		one.least = h.Left
	}
}

// silent returns for how long looks found no renewal before the lease ended. It returns nil if the
// lease was not over at then, or if that time is less than half the known length: it may have been
// released.
func (one *holding) silent(then time.Time) *int64 {
	length, seen := one.length(), one.end.answered.Sub(one.still) // nobody has looked since answered
	if length == 0 || one.end.left <= 0 || then.Before(one.end.answered.Add(one.end.left)) || seen < length/2 {
		return nil
	}
	return sinceOf(one.still, one.end.answered)
}

// length returns the lease's last TTL if this instance granted or renewed it last. Otherwise it
// returns a lower bound; 0: unknown.
func (one *holding) length() time.Duration {
	if last := one.last(); last != nil && one.end.asked.After(last.sent) && one.end.is(last.ends) {
		return last.ends.Sub(last.sent)
	}
	return one.least
}

// times converts a state that the engine was asked for at asked. It adds the lengths of leases if
// the engine does not tell them. If a length is unknown, it adds for how long no renewal was seen.
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
		if was, _ := h.asKnown(lease{state.Resource, wire.HandleOf(one.Owner)}); was != nil {
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

// endSlack is the error of an engine's end of a lease: some engines count whole seconds.
const endSlack = time.Second

// A term is the time until which a lease lasts by this instance's last grant or renewal.
type term struct {
	renewed atomic.Pointer[span]
	givenUp atomic.Bool // since then a release had no answer, so its end is no loss
	over    atomic.Bool // the history has its end
}

// A span is from the sending of a call to the end of what it granted.
type span struct{ sent, ends time.Time }

// lasts records a grant or a renewal.
func (t *term) lasts(sent time.Time, ttl time.Duration) {
	t.renewed.Store(&span{sent, sent.Add(ttl)})
	t.givenUp.Store(false)
}

// isGivenUp reports whether the lease's holder has released it, without an answer.
func (t *term) isGivenUp() bool { return t != nil && t.givenUp.Load() }

// last returns this instance's last grant or renewal of the lease; nil: it has made none, or the
// lease is not known.
func (one *holding) last() *span {
	if one == nil || one.term == nil {
		return nil
	}
	return one.term.renewed.Load()
}

// ranOut reports whether a lease that a call at then or later found over was not renewed in time.
// This is certain if no other instance or program uses the store. Otherwise a look must have found,
// in the second half of the TTL, that nobody else had renewed it: a holder that goes on renews
// sooner.
func (one *holding) ranOut(then time.Time, sole bool) bool {
	last := one.last()
	if last == nil || then.Before(last.ends) {
		return false
	}
	return sole || one.end.asked.After(last.sent.Add(last.ends.Sub(last.sent)/2)) && one.end.is(last.ends)
}
