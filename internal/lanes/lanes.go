// Package lanes keeps an engine's waiters from mistaking a load of many waiters for an engine
// that is out of reach.
//
// Hundreds of processes may wait for one name, and all of them ask now and then. The waiters of
// one driver take turns, so that they use neither all connections nor all time of the one value
// that they read. A call that had no answer while the engine answered others was delayed by
// them: the waiter asks again.
package lanes

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
)

// width is how many waiters for a name ask at once. It is enough to keep one value busy; with more
// of them, most of their writes would fail because of each other.
const width = 4

// Lanes coordinate the waiters of one driver.
type Lanes struct {
	unanswered func(error) bool
	ask        func(ctx context.Context) error // the probe; nil: none

	answers *links.Answers // to calls
	probed  links.Answers  // to probes
	probing atomic.Bool

	mu    sync.Mutex
	lanes map[string]*lane // guarded by mu; by name; none without users
}

// A lane is for one name, so that names do not wait for each other.
type lane struct {
	turns chan struct{} // has a token for every waiter that asks
	users int           // guarded by Lanes.mu; waiters that ask or wait for their turn
}

// New returns empty Lanes. unanswered reports whether an error is no answer of the engine. probe,
// if not nil, asks the engine for an answer that waits for no lock. It is called when half of a
// call's time has passed. Answers to calls are added to answers.
func New(answers *links.Answers, unanswered func(error) bool, probe func(ctx context.Context) error) *Lanes {
	return &Lanes{unanswered: unanswered, ask: probe, answers: answers, lanes: make(map[string]*lane)}
}

// enter returns the lane of name. leave must follow.
func (l *Lanes) enter(name string) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.lanes[name]
	if of == nil {
		of = &lane{turns: make(chan struct{}, width)}
		l.lanes[name] = of
	}
	of.users++
	return of
}

func (l *Lanes) leave(name string, of *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of.users--; of.users == 0 {
		delete(l.lanes, name)
	}
}

// An Asking is a call of a waiter.
type Asking struct {
	lanes *Lanes
	name  string
	lane  *lane // in which it has a token; nil: it got no turn
	began time.Time
	probe *time.Timer // nil: none
}

// Begin waits for the turn of a waiter for name to make a call. If ctx ends first, it returns
// its error. End must follow.
func (l *Lanes) Begin(ctx context.Context, name string) (Asking, error) {
	a := Asking{lanes: l, name: name, began: time.Now()}
	of := l.enter(name)
	select {
	case of.turns <- struct{}{}:
		a.lane = of
	case <-ctx.Done():
		l.leave(name, of)
		return a, ctx.Err()
	}
	if end, bounded := ctx.Deadline(); bounded && l.ask != nil {
		a.probe = time.AfterFunc(time.Until(end)/2, func() { l.probe(ctx, end) })
	}
	return a, nil
}

// End ends the call with its error. If the call had no answer while the engine answered others,
// the error that it returns matches [driver.ErrNotYet].
func (a Asking) End(err error) error {
	if a.probe != nil {
		a.probe.Stop()
	}
	if a.lane != nil {
		<-a.lane.turns
		a.lanes.leave(a.name, a.lane)
	}
	if err != nil && a.lanes.unanswered(err) && a.lanes.answeredSince(a.began) {
		return fmt.Errorf("%w: others keep the engine busy: %w", driver.ErrNotYet, err)
	}
	return err
}

// probe probes the engine until end, on behalf of all calls that wait. So the end of the call that
// sends it does not end it.
func (l *Lanes) probe(ctx context.Context, end time.Time) {
	if l.probing.CompareAndSwap(false, true) {
		defer l.probing.Store(false)
		ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
		defer cancel()
		if err := l.ask(ctx); err == nil || !l.unanswered(err) {
			l.probed.Add()
		}
	}
}

func (l *Lanes) answeredSince(then time.Time) bool {
	return l.answers.Last().After(then) || l.probed.Last().After(then)
}

// Answered records the result of any call, or of a part of it.
func (l *Lanes) Answered(err error) {
	if err == nil || !l.unanswered(err) {
		l.answers.Add()
	}
}
