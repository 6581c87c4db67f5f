package serve

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// rehearseEvery is how often readiness checks rehearse a lock, at most. Each rehearsal is a few
// writes, for which some stores charge. While the store refuses them, refusedEvery applies.
const rehearseEvery, refusedEvery = 30 * time.Second, 2 * time.Second

// grants is the result of the last rehearsal: whether the store grants locks. A store that answers
// may still be read-only or full.
type grants struct {
	changed atomic.Bool // the store has refused a write: rehearse at the next check
	mu      sync.Mutex
	asked   time.Time // guarded by mu
	err     error     // guarded by mu; matches driver.ErrReadOnly or driver.ErrFull
	refused time.Time // guarded by mu; when the store last answered a rehearsal with err
}

// storeGrants rehearses a lock, unless that was done recently. Its error matches driver.ErrReadOnly
// or driver.ErrFull. A rehearsal with another error tells nothing: an Inspect has found the rest. The
// last result then stands until the store grants a lock. It does not stand if rehearsals are denied,
// because a balancer sends nothing that could be granted to an instance that is not ready.
func (s *Server) storeGrants(ctx context.Context) error {
	if s.checker == nil {
		return nil
	}
	g := &s.grants
	g.mu.Lock() // one rehearsal at a time
	defer g.mu.Unlock()
	if g.err != nil && s.watched.disproves(g.err, g.refused) {
		s.grantsAre(nil)
	}
	every := rehearseEvery
	if g.err != nil {
		every = refusedEvery
	}
	if changed := g.changed.Swap(false) && g.err == nil; !changed && time.Since(g.asked) < every {
		return g.err
	}
	err := s.checker.Rehearse(ctx)
	g.asked = time.Now()
	switch {
	case err == nil, errors.Is(err, driver.ErrReadOnly), errors.Is(err, driver.ErrFull):
		s.grantsAre(err)
	case errors.Is(err, driver.ErrDenied):
		g.err = nil
	}
	return g.err
}

// grantsAre records whether the store grants locks. Requires mu of grants.
func (s *Server) grantsAre(err error) {
	g := &s.grants
	if said, says := textOf(g.err), textOf(err); said != says {
		if err == nil {
			s.opts.Log.Info("the store grants again")
		} else {
			s.opts.Log.Warn("the store answers, and grants nothing", "error", says)
		}
	}
	g.err, g.refused = err, time.Now()
}
