package serve

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// causeWithin is how long after an answer the engine's reason for the eviction may arrive. The two
// come over different connections.
const causeWithin = 200 * time.Millisecond

// hears returns a claim's Request.Lost. It only passes on the reason that the engine reports. It
// does not end the claim, because the caller chose the owner and may have used it for a claim on
// another name.
func (s *Server) hears(l lease, cause chan<- error) func(error) {
	return func(why error) {
		if reason, ok := evictedFor(why); ok {
			s.hub.because(l, reason)
		}
		select {
		case cause <- why:
		default: // a reason was reported before
		}
	}
}

// evictedFor returns the reason of an eviction.
func evictedFor(why error) (reason string, ok bool) {
	if !errors.Is(why, driver.ErrEvicted) {
		return "", false
	}
	_, reason, _ = strings.Cut(why.Error(), driver.Evicted("").Error())
	return reason, true
}

// findCause waits for the reason why a lease was found to have ended. If the TTL is over, no reason
// is needed. Requires the turn.
func (s *Server) findCause(one *claim) {
	within := causeWithin
	if s.claims.outlasted(one, time.Now()) {
		within = 0
	}
	select {
	case why := <-one.cause:
		if errors.Is(why, driver.ErrEvicted) {
			one.evicted = why
		}
	case <-time.After(within):
	}
}

// begins discards earlier reports when a new lease begins, with that fence. If this instance has
// evicted that very lease meanwhile, begins returns why instead. Requires the turn.
func (c *claims) begins(one *claim, fence uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.evicted.get(one.key); ok && fence > 0 && e.Fence == fence {
		return driver.Evicted(e.Reason)
	}
	one.evicted = nil
	select {
	case <-one.cause:
	default:
	}
	one.begun = fence
	c.evicted.delete(one.key)
	c.removed.delete(one.key) // the grant came first
	one.away = sentAway{}
	return nil
}

// why adds the reason to an error that says only that the lease is over. Requires the turn.
func (s *Server) why(one *claim, err error) error {
	if !errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrEvicted) {
		return err
	}
	return cmp.Or(one.evicted, s.claims.evictedHere(one.key), err)
}

// evicts records an eviction by this instance, of the lease with that fence, unless the owner has a
// later one by now.
func (c *claims) evicts(l lease, fence uint64, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[l]; one != nil && fence > 0 && one.begun > fence {
		return
	}
	c.evicted.put(l, driver.Eviction{Fence: fence, Reason: reason})
}

// evictedHere returns why this instance has evicted the lease; nil: it has not.
func (c *claims) evictedHere(l lease) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.evicted.get(l); ok {
		return driver.Evicted(e.Reason)
	}
	return nil
}
