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

// A report is the reason that the engine has reported for the end of a lease.
type report struct {
	why error
	at  time.Time
}

// hears returns a claim's Request.Lost. It only passes on the reason that the engine reports. It
// does not end the claim, because the caller chose the owner and may have used it for a claim on
// another name.
func (s *Server) hears(l lease, cause chan report) func(error) {
	return func(why error) {
		if reason, ok := evictedFor(why); ok {
			s.hub.because(l, reported{reason, token(s.claims.lastOf(l))})
		}
		select {
		case <-cause: // of an earlier lease
		default:
		}
		select {
		case cause <- report{why, time.Now()}:
		default:
		}
	}
}

// lastOf returns the fence of the owner's last lease that began here; 0: unknown.
func (c *claims) lastOf(l lease) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[l]; one != nil {
		return one.begun
	}
	return 0
}

// evictedFor returns the reason of an eviction.
func evictedFor(why error) (reason string, ok bool) {
	if !errors.Is(why, driver.ErrEvicted) {
		return "", false
	}
	_, reason, _ = strings.Cut(why.Error(), driver.Evicted("").Error())
	return reason, true
}

// findCause waits for the reason why a lease was found to have ended. If its TTL had run out, no
// reason is needed. Requires the turn.
func (one *claim) findCause(ranOut bool) {
	within := causeWithin
	if ranOut {
		within = 0
	}
	select {
	case told := <-one.cause:
		if errors.Is(told.why, driver.ErrEvicted) {
			one.evicted = told.why
		}
	case <-time.After(within):
	}
}

// begins begins a new lease, with that fence, by a call that was sent at that time. If the lease was
// evicted before the answer, begins returns why. The eviction may have been of the owner's lease
// before, and then nobody would use the new one, so it is released. Requires the turn.
func (s *Server) begins(one *claim, fence uint64, sent time.Time) error {
	err := s.claims.begins(one, fence, sent)
	if err != nil {
		s.ended(one, err)
		s.end(one)
	}
	return err
}

// begins discards earlier reports when a new lease begins, with that fence, by a call that was
// sent at that time. If the lease was evicted before the answer, begins returns why instead.
// Requires the turn.
func (c *claims) begins(one *claim, fence uint64, sent time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.evicted = c.evictedSince(one, fence, sent); one.evicted != nil {
		one.on(onGrant) // which has ended its place in the queue
		one.queued = time.Time{}
		return one.evicted
	}
	one.begun, one.began = fence, time.Now()
	c.evicted.delete(one.key)
	c.removed.delete(one.key) // the grant came first
	return nil
}

// evictedSince returns why the lease with that fence was evicted after its call was sent; nil: it
// is not known to be. An eviction since then whose fence nobody tells counts as one of that lease.
// It takes the engine's report. Requires mu and the turn.
func (c *claims) evictedSince(one *claim, fence uint64, sent time.Time) error {
	var told report
	select {
	case told = <-one.cause:
	default:
	}
	e, here := c.evicted.get(one.key)
	isNew := here && e.at.After(sent)
	switch {
	case here && fence > 0 && e.Fence == fence, isNew && e.Fence == 0:
		return driver.Evicted(e.Reason)
	case isNew, here && e.Fence > 0: // of the lease before, as the report is
	case errors.Is(told.why, driver.ErrEvicted) && told.at.After(sent):
		return told.why
	}
	return nil
}

// why adds the reason to an error that says only that the lease is over. Requires the turn.
func (s *Server) why(one *claim, err error) error {
	if !errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrEvicted) {
		return err
	}
	return cmp.Or(one.evicted, s.claims.evictedHere(one.key), err)
}

// A pastEviction is an eviction by this instance. Its fence is 0 if the engine does not tell it.
type pastEviction struct {
	driver.Eviction
	at time.Time // when the engine had answered
}

// evicts records an eviction by this instance, of the lease with that fence, unless the owner has a
// later one by now.
func (c *claims) evicts(l lease, fence uint64, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[l]; one != nil && fence > 0 && one.begun > fence {
		return
	}
	c.evicted.put(l, pastEviction{driver.Eviction{Fence: fence, Reason: reason}, time.Now()})
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
