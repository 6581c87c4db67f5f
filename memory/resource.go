package memory

import (
	"math"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// resource is one resource's record, and the claims in it that are told of what happens;
// guarded by Server.mu.
type resource struct {
	record.Record
	claims []*claim // with a lease or a place
	// sound is until when nothing in the record ends, if it is a long one; 0: unknown.
	sound record.Instant
}

// long is the length of a record from which on waiters keep their places without going through it.
const long = 64

// look finds out until when nothing ends. added: what was known holds, but for a last claim more.
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

// keep is a waiter's Try far back in a long queue: it keeps its place, and nothing else changes. nil:
// it has to be a whole one.
func (c *claim) keep(r *resource, now *record.Instant) *driver.Busy {
	if r == nil || !c.listens || !c.req.Queue || *now >= r.sound {
		return nil
	}
	at := min(c.at, len(r.Claims)-1)
	for at > 0 && r.Claims[at].Owner != c.req.Owner { // those before it leave, none come
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

// expire forgets what is over at that instant.
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

// listen has c told of what becomes of its owner's lease or place: a resumed lease reports to
// whoever keeps it alive. added: nobody listens for its owner.
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

// forget returns who was told of owner's lease or place, and no more is; nil if nobody was.
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

// wakeNext wakes those in the queue who would be granted, and nobody else.
func (r *resource) wakeNext() {
	for owner := range r.Next {
		if i := r.listener(owner); i >= 0 {
			r.claims[i].wakeUp()
		}
	}
}

// refusal says when to come back.
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

// wakeUp closes what the claim waits for. Requires Server.mu.
func (c *claim) wakeUp() {
	if c.wake != nil {
		close(c.wake)
		c.wake = nil
	}
}

// tell passes an early end to the holder. Call it without Server.mu.
func (c *claim) tell(cause error) {
	if c != nil && c.req.Lost != nil {
		c.req.Lost(cause)
	}
}

// place is how long the claim's place in the queue lives after a refusal.
func (c *claim) place() time.Duration {
	if c.req.Queue {
		return placeTTL
	}
	return 0
}

// wanted appends those among claims that hold the resource and want to know that others wait, if
// others do. Requires Server.mu.
func (r *resource) wanted(to []*claim, claims ...*claim) []*claim {
	if !slices.ContainsFunc(r.Claims, func(c record.Claim) bool { return c.Status == record.Waiting }) {
		return to
	}
	for _, c := range claims {
		if c.req.Wanted != nil && c.listens && r.Holds(c.req.Owner) && !(c.req.WantedOnce && c.told) {
			to, c.told = append(to, c), true
		}
	}
	return to
}

// recall tells claims that others wait. Call it without Server.mu.
func recall(claims []*claim) {
	for _, c := range claims {
		c.req.Wanted()
	}
}
