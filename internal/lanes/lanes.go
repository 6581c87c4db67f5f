// Package lanes keeps an engine's waiters from taking a crowd for an engine that is out of reach.
//
// Hundreds of processes may wait for one name, and all of them ask now and then. Those of one driver take turns, so
// that they take neither all connections that there are nor all time of the one value that they all look at. A call
// that had no answer while the engine answered others was late because of those others: the waiter is to ask again.
package lanes

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// width is how many waiters of a name ask at once: enough to keep one value busy. More of them lose most of what
	// they write to each other.
	width = 4
	// number is how many lanes there are. Names share one by their hash, which costs them nothing while few wait.
	number = 64
)

// Lanes are of one driver.
type Lanes struct {
	// Probe, if not nil, asks the engine for an answer that waits for no lock. It is called when half of a call's time
	// is over.
	Probe func(ctx context.Context) error
	// Unanswered reports whether an error is not what the engine has said.
	Unanswered func(error) bool

	lanes   [number]chan struct{} // each has a token for every waiter that asks
	seed    maphash.Seed
	answers atomic.Uint64
	probing atomic.Bool
}

// New returns Lanes in which nobody asks.
func New(unanswered func(error) bool, probe func(ctx context.Context) error) *Lanes {
	l := &Lanes{Unanswered: unanswered, Probe: probe, seed: maphash.MakeSeed()}
	for i := range l.lanes {
		l.lanes[i] = make(chan struct{}, width)
	}
	return l
}

// An Asking is a call of a waiter.
type Asking struct {
	lanes  *Lanes
	lane   chan struct{} // in which it has a token; nil: it came to no turn
	before uint64        // answers
	probe  *time.Timer   // nil: none
}

// Begin returns when it is the turn of a waiter for name to make a call, or ctx has ended, with its error. End follows.
func (l *Lanes) Begin(ctx context.Context, name string) (Asking, error) {
	a := Asking{lanes: l, before: l.answers.Load()}
	lane := l.lanes[maphash.String(l.seed, name)%number]
	select {
	case lane <- struct{}{}:
		a.lane = lane
	case <-ctx.Done():
		return a, ctx.Err()
	}
	if end, bounded := ctx.Deadline(); bounded && l.Probe != nil {
		a.probe = time.AfterFunc(time.Until(end)/2, func() { l.probe(ctx) })
	}
	return a, nil
}

// End ends the call, which came to err. If it had no answer while the engine answered others, the error that it
// returns matches [driver.ErrNotYet].
func (a Asking) End(err error) error {
	if a.probe != nil {
		a.probe.Stop()
	}
	if a.lane != nil {
		<-a.lane
	}
	if err != nil && a.lanes.Unanswered(err) && a.lanes.answers.Load() != a.before {
		return fmt.Errorf("%w: others keep the engine busy: %w", driver.ErrNotYet, err)
	}
	return err
}

// probe is made by one of all calls that wait.
func (l *Lanes) probe(ctx context.Context) {
	if l.probing.CompareAndSwap(false, true) {
		defer l.probing.Store(false)
		l.Answered(l.Probe(ctx))
	}
}

// Answered notes what any call, or a part of it, came to.
func (l *Lanes) Answered(err error) {
	if err == nil || !l.Unanswered(err) {
		l.answers.Add(1)
	}
}
