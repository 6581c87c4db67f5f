package serve

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// callAge is the age up to which a call may still be sent to the store. A call that waits for
	// other holders may be as old as its wait, if that is longer. By then its caller has given up,
	// and another instance may have served it.
	callAge = 15 * time.Second
	// pulseEvery is how often an instance notes that it runs. stall is how long a silence must be
	// to count as a standstill; a busy machine has shorter ones.
	pulseEvery, stall = 500 * time.Millisecond, 2 * time.Second
	// settle is how long an instance must run after a standstill to have read all calls from
	// before. A call that is read within it may have come at any time since the standstill began.
	settle = 3 * time.Second
)

var errTooOld = errors.New("this call has come too late to be served: repeat it")

// A pulse bounds the age of calls. A call that arrives while the process is stopped waits in the
// kernel, which does not say for how long.
type pulse struct {
	clock *boottime.Clock

	mu     sync.Mutex
	beat   boottime.Instant // guarded by mu; when the process was last seen to run
	ran    time.Duration    // guarded by mu; for how long it has run, in all
	stalls []standstill     // guarded by mu; standstills from which unread calls may remain, in order
}

// A standstill began at from. Once the process has run for ran in all, the calls that came during
// it have been read.
type standstill struct {
	from boottime.Instant
	ran  time.Duration
}

func (p *pulse) init(clock *boottime.Clock) { p.clock, p.beat = clock, clock.Now() }

// run keeps the pulse until ctx ends.
func (p *pulse) run(ctx context.Context) {
	for pause.For(ctx, pulseEvery) == nil {
		p.arrival()
	}
}

// arrival returns the earliest time at which a call that is read now may have come. On an
// overloaded machine, standstills may follow each other. They do not count as one, because calls
// are read between them.
func (p *pulse) arrival() boottime.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	if since := now.Sub(p.beat); since <= stall {
		p.ran += since
	} else if n := len(p.stalls); n == 0 || p.stalls[n-1].ran < p.ran+settle { // otherwise calls of that standstill are still unread
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

// isTooOld reports whether a call is too old to be sent to the store. It came at came and may wait
// for wait.
func (s *Server) isTooOld(came boottime.Instant, wait time.Duration) bool {
	return s.pulse.clock.Now().Sub(came) > max(callAge, wait)
}

// keepMark is how long a release bars its owner: twice as long as the owner's other calls may be
// sent.
func (s *Server) keepMark() time.Duration { return 2 * max(callAge, s.opts.MaxWait) }

// tooOld answers a call that is too old to be sent to the store.
func (s *Server) tooOld(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	s.answer(w, http.StatusServiceUnavailable, wire.Answer{Outcome: wire.Unknown, Code: wire.CodeTooOld, Error: errTooOld.Error()})
}
