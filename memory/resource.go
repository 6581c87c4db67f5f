package memory

import (
	"math"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A resource is one resource's record, with the claims that are notified of changes. It is guarded
// by Server.mu.
type resource struct {
	record.Record
	claims []*claim // those with a lease or a place, at most one per owner
	// sound is an instant before which nothing in the record ends, if the record is long; 0:
	// unknown.
	sound record.Instant
}

// long is the length from which on waiters keep their places without a pass through the record.
const long = 64

// look updates sound. added is true if the record only got one more claim, at its end.
func (r *resource) look(added bool) {
	if last := len(r.Claims) - 1; added && r.sound > 0 {
		r.sound = min(r.sound, record.Instant(r.Claims[last].Ends))
		return
	}
	if r.sound = 0; len(r.Claims) < long {
		return
	}
	r.sound = math.MaxInt64
	for i := range r.Claims {
		r.sound = min(r.sound, record.Instant(r.Claims[i].Ends))
	}
}

// keep serves the Try of a waiter in a long queue, if it only has to keep the claim's place. It
// returns nil if a complete Try is needed.
func (c *claim) keep(r *resource, now *record.Instant) *driver.Busy {
	if r == nil || !c.listens || !c.req.Queue || *now >= r.sound {
		return nil
	}
	at := min(c.at, len(r.Claims)-1)
	for at > 0 && r.Claims[at].Owner != c.req.Owner { // earlier claims may have left, but none can have come
		at--
	}
	if !r.Keep(now, at, c.req.Owner, placeTTL) {
		return nil
	}
	c.at = at
	a := record.Answer{Until: keepPlace}
	if first := &r.Claims[0]; first.Status != record.Waiting {
		a.Holder = first
	}
	return c.refusal(now, a)
}

// expire drops what has ended by the given instant.
func (r *resource) expire(at record.Clock) {
	before := len(r.Claims)
	r.DropOver(at)
	if len(r.Claims) == before {
		return
	}
	alive := make(map[string]bool, len(r.Claims))
	for _, c := range r.Claims {
		alive[c.Owner] = alive[c.Owner] || c.Status <= record.Holding
	}
	r.claims = slices.DeleteFunc(r.claims, func(c *claim) bool {
		c.listens = c.listens && alive[c.req.Owner]
		return !c.listens
	})
}

// listen makes c the claim that is notified for its owner. When a lease is resumed, that is the
// claim that renews it. added reports that the owner is new, so no other claim has this role.
func (r *resource) listen(c *claim, added bool) {
	if c.listens {
		return
	}
	i := -1
	if !added {
		i = r.listener(c.req.Owner)
	}
	if i < 0 {
		r.claims = append(r.claims, c)
	} else {
		r.claims[i].listens = false
		r.claims[i] = c
	}
	c.listens = true
}

// forget stops notifications about owner's lease or place. It returns the claim that received them,
// or nil.
func (r *resource) forget(owner string) *claim {
	i := r.listener(owner)
	if i < 0 {
		return nil
	}
	c := r.claims[i]
	r.claims = slices.Delete(r.claims, i, i+1)
	c.listens = false
	return c
}

func (r *resource) listener(owner string) int {
	return slices.IndexFunc(r.claims, func(c *claim) bool { return c.req.Owner == owner })
}

// wakeNext wakes the waiters that would now be granted.
func (r *resource) wakeNext() {
	if !r.Awaited("") {
		return
	}
	for owner := range r.Next {
		if i := r.listener(owner); i >= 0 {
			r.claims[i].wakeUp()
		}
	}
}

// refusal returns the Busy of a refused claim.
func (c *claim) refusal(at record.Clock, a record.Answer) *driver.Busy {
	busy := &driver.Busy{Retry: a.Until}
	if a.Holder != nil {
		busy.Holder = a.Holder.Holder(at)
	}
	if c.req.Queue {
		if c.wake == nil {
			c.wake = make(chan struct{})
		}
		busy.Wake, busy.Retry = c.wake, min(busy.Retry, keepPlace)
	}
	return busy
}

// wakeUp wakes the claim's waiter, if it has one. Requires Server.mu.
func (c *claim) wakeUp() {
	if c.wake != nil {
		close(c.wake)
		c.wake = nil
	}
}

// lose lets unlock report to the holder that its lease has ended early. Requires s.mu.
func (s *Server) lose(c *claim, cause error) {
	if c.req.Lost != nil {
		s.notices = append(s.notices, func() { c.req.Lost(cause) })
	}
}

// place returns how long the claim's place in the queue lives after a refusal.
func (c *claim) place() time.Duration {
	if c.req.Queue {
		return placeTTL
	}
	return 0
}

// recall makes unlock call Wanted for each of the claims that holds the resource, if others wait.
// Requires s.mu.
func (s *Server) recall(r *resource, claims ...*claim) {
	if !r.Awaited("") {
		return
	}
	for _, c := range claims {
		if c.req.Wanted != nil && c.listens && r.Holds(c.req.Owner) && !(c.req.WantedOnce && c.told) {
			s.notices, c.told = append(s.notices, c.req.Wanted), true
		}
	}
}
