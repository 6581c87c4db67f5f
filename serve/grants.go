package serve

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// rehearseEvery is how often the store is asked to grant something, at most and only while somebody asks whether the
// instance is ready: a few writes, which some stores are paid for. While it grants nothing it is asked every refusedEvery.
const rehearseEvery, refusedEvery = 30 * time.Second, 2 * time.Second

// grants is whether the store grants, as it was found when it was asked to last. A store that answers may be read-only, or
// full.
type grants struct {
	mu    sync.Mutex
	asked time.Time // guarded by mu; zero: it is to be asked
	err   error     // guarded by mu; matches driver.ErrReadOnly or driver.ErrFull
}

// changed has the store asked by the next who wants to know.
func (g *grants) changed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.asked = time.Time{}
	}
}

// storeGrants rehearses a lock, unless that was done lately. Its error matches driver.ErrReadOnly or driver.ErrFull: the
// rights to names of rehearsals may be missing, and what else goes wrong, an Inspect has said.
func (s *Server) storeGrants(ctx context.Context) error {
	if s.checker == nil {
		return nil
	}
	g := &s.grants
	g.mu.Lock() // probes come one at a time
	defer g.mu.Unlock()
	every := rehearseEvery
	if g.err != nil {
		every = refusedEvery
	}
	if !g.asked.IsZero() && time.Since(g.asked) < every {
		return g.err
	}
	err := s.checker.Rehearse(ctx)
	if !errors.Is(err, driver.ErrReadOnly) && !errors.Is(err, driver.ErrFull) {
		err = nil
	}
	if said, says := text(g.err), text(err); said != says {
		if err == nil {
			s.opts.Log.Info("the store grants again")
		} else {
			s.opts.Log.Warn("the store answers, and grants nothing", "error", says)
		}
	}
	g.asked, g.err = time.Now(), err
	return err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
