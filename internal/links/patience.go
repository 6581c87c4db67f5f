package links

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// first is how long a call waits for an answer before it condemns connections. A healthy engine
	// answers in milliseconds. A call of the core may take 5 s, so four are left for another
	// attempt.
	first = time.Second
	// doublings is how often that time doubles while engines answer late. It doubles whenever
	// connections were condemned, until a call is answered within first. So the second or third
	// attempt waits long enough for a slow server.
	doublings = 2
	// Least is the shortest time that a call waits. Calls with little time give half of it to the
	// first attempt, but a busy machine needs some. A shorter silence says nothing about connections.
	Least = 500 * time.Millisecond
)

// A Patience determines how long calls wait for an answer.
type Patience struct{ doubled atomic.Int32 }

// For returns how long a call that is bounded by ctx waits.
func (p *Patience) For(ctx context.Context) time.Duration {
	d := first << p.doubled.Load()
	if end, bounded := ctx.Deadline(); bounded {
		d = min(d, half(end))
	}
	return d
}

// ForLate is For a call whose outcome another attempt cannot determine. It is half of the call's
// time, or unlimited if that is.
func (p *Patience) ForLate(ctx context.Context) (d time.Duration, bounded bool) {
	end, bounded := ctx.Deadline()
	return half(end), bounded
}

func half(end time.Time) time.Duration { return max(Least, time.Until(end)/2) }

// RanOut records a call that was not answered in time: later ones wait longer.
func (p *Patience) RanOut() {
	for n := p.doubled.Load(); n < doublings && !p.doubled.CompareAndSwap(n, n+1); n = p.doubled.Load() {
	}
}

// Answered records the answer to a call that began then.
func (p *Patience) Answered(began time.Time) {
	if p.doubled.Load() > 0 && time.Since(began) < first {
		p.doubled.Store(0)
	}
}
