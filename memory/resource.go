package memory

import (
	"fmt"
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
}

// expire forgets what is over at that instant.
func (r *resource) expire(at record.Clock) {
	before := len(r.Claims)
	r.DropOver(at)
	if len(r.Claims) < before {
		r.claims = slices.DeleteFunc(r.claims, func(c *claim) bool { return !r.has(c.req.Owner) })
	}
}

// has reports whether owner has a lease or a place.
func (r *resource) has(owner string) bool {
	return slices.ContainsFunc(r.Claims, func(c record.Claim) bool {
		return c.Owner == owner && c.Status <= record.Holding
	})
}

// listen has c told of what becomes of its owner's lease or place: a resumed lease reports to
// whoever keeps it alive.
func (r *resource) listen(c *claim) {
	if i := r.listener(c.req.Owner); i < 0 {
		r.claims = append(r.claims, c)
	} else {
		r.claims[i] = c
	}
}

// forget returns who was told of owner's lease or place, and no more is; nil if nobody was.
func (r *resource) forget(owner string) *claim {
	i := r.listener(owner)
	if i < 0 {
		return nil
	}
	c := r.claims[i]
	r.claims = slices.Delete(r.claims, i, i+1)
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
func (c *claim) tell(why string) {
	if c != nil && c.req.Lost != nil {
		c.req.Lost(fmt.Errorf("%w: %s", driver.ErrLost, why))
	}
}

// place is how long the claim's place in the queue lives after a refusal.
func (c *claim) place() time.Duration {
	if c.req.Queue {
		return placeTTL
	}
	return 0
}
