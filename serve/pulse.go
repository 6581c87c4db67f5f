package serve

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// callAge is the greatest age of a call for which the store is asked anything, and of one that waits for other holders
	// if it waits for no longer. Its caller has given it up by then, and may have been served by another instance.
	callAge = 15 * time.Second
	// pulseEvery is how often an instance makes sure that it runs, and stall how long a silence must be to count as a
	// standstill: a busy machine has shorter ones.
	pulseEvery, stall = 500 * time.Millisecond, 2 * time.Second
	// settle is for how long an instance runs after a standstill until all calls have been read that came before. Whatever
	// is read within it may have come at any time since the instance stood still.
	settle = 3 * time.Second
)

var errTooOld = errors.New("this call has come too late to be served: repeat it")

// A pulse says how old calls may be. A call that came while the process was stopped waited in the
// kernel, which does not say for how long.
type pulse struct {
	clock *boottime.Clock

	mu     sync.Mutex
	beat   boottime.Instant // guarded by mu; when the process was last seen to run
	ran    time.Duration    // guarded by mu; for how long it was, in all
	stalls []standstill     // guarded by mu; those of before which calls may still lie unread, in order
}

// A standstill began at from. Calls that came since then have been read when the process has run
// until ran.
type standstill struct {
	from boottime.Instant
	ran  time.Duration
}

func (p *pulse) init(clock *boottime.Clock) { p.clock, p.beat = clock, clock.Now() }

// run keeps the pulse until ctx ends.
func (p *pulse) run(ctx context.Context) {
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.arrival()
		case <-ctx.Done():
			return
		}
	}
}

// arrival is the earliest that a call which is read now may have come. Standstills in a row, as on a machine that is
// much too busy, do not count as one: between them, calls are read.
func (p *pulse) arrival() boottime.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	if since := now.Sub(p.beat); since <= stall {
		p.ran += since
	} else if n := len(p.stalls); n == 0 || p.stalls[n-1].ran < p.ran+settle { // else it has not run since the last one
		p.stalls = append(p.stalls, standstill{p.beat, p.ran + settle})
	}
	p.beat = now
	for len(p.stalls) > 0 && p.stalls[0].ran <= p.ran {
		p.stalls = p.stalls[1:]
	}
	if len(p.stalls) > 0 {
		return p.stalls[0].from
	}
	return now
}

// isTooOld reports whether nothing is to be sent to the store any more for a call that came then and waits for so long.
func (s *Server) isTooOld(came boottime.Instant, wait time.Duration) bool {
	return s.pulse.clock.Now().Sub(came) > max(callAge, wait)
}

// keepMark is how long the owner of a release is kept out: for twice as long as its other calls may be sent.
func (s *Server) keepMark() time.Duration { return 2 * max(callAge, s.opts.MaxWait) }

// tooOld answers a call for which nothing is sent to the store any more.
func (s *Server) tooOld(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	s.answer(w, http.StatusServiceUnavailable, wire.Answer{Outcome: wire.Unknown, Code: wire.CodeTooOld, Error: errTooOld.Error()})
}
