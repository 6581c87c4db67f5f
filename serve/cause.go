package serve

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// causeWithin is how long the engine's word of an eviction may come after the answer to a call
// that found the lease gone: both come by connections of their own.
const causeWithin = 200 * time.Millisecond

// hears returns a claim's Request.Lost. It ends nothing, because the caller chose the owner, and
// may have used it for a claim on another name. It only gives the reason once the engine reports
// that the lease is over.
func (s *Server) hears(k key, cause chan<- error) func(error) {
	return func(why error) {
		if reason, ok := evictedFor(why); ok {
			s.hub.because(k, reason)
		}
		select {
		case cause <- why:
		default: // it was told before
		}
	}
}

// evictedFor is the reason of an eviction.
func evictedFor(why error) (reason string, ok bool) {
	if !errors.Is(why, driver.ErrEvicted) {
		return "", false
	}
	_, reason, _ = strings.Cut(why.Error(), driver.Evicted("").Error())
	return reason, true
}

// findCause is for a lease that was found to have ended. One whose TTL is over needs no cause.
// Requires the turn.
func (s *Server) findCause(one *claim) {
	within := causeWithin
	if s.claims.outlasted(one, time.Now()) {
		within = 0
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case why := <-one.cause:
		if errors.Is(why, driver.ErrEvicted) {
			one.evicted = why
		}
	case <-timer.C:
	}
}

// begins is for a grant: earlier reports are not about it. Requires the turn.
func (one *claim) begins() {
	one.evicted = nil
	select {
	case <-one.cause:
	default:
	}
}

// why says more of an error that says only that the lease is over. Requires the turn.
func (s *Server) why(one *claim, err error) error {
	if !errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrEvicted) {
		return err
	}
	return cmp.Or(one.evicted, s.claims.evictedHere(one.key), err)
}

// evicts notes an eviction by this instance.
func (c *claims) evicts(k key, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.evicted[k] = driver.Evicted(reason); len(c.evicted) >= mostEnds {
		c.turnOver(time.Now())
	}
}

// evictedHere is why this instance has evicted; nil: it has not.
func (c *claims) evictedHere(k key) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.evicted[k], c.evictedBefore[k])
}
