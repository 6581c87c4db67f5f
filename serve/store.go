package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// storeFull is the outcome of a call to a store that answers but grants nothing, because it is full
// or read-only.
const storeFull = "full"

// storeCalls are the calls that are counted. storeOutcomes are their outcomes by error; other
// errors count as unknown.
var (
	storeCalls    = []string{"try", "renew", "release", "note", "lift", "inspect", "list", "evict", "raise", "rehearse"}
	storeOutcomes = []storeOutcome{
		{wire.Done, []error{nil}},
		{wire.Busy, []error{driver.ErrBusy, driver.ErrNotYet}},
		{storeFull, []error{driver.ErrReadOnly, driver.ErrFull}},
		{wire.Lost, []error{driver.ErrLost, driver.ErrBarred}},
		{wire.Refused, []error{driver.ErrUnsupported, driver.ErrInvalidName, driver.ErrCorrupt, driver.ErrDenied}},
		{wire.Unknown, nil},
	}
)

type storeOutcome struct {
	outcome string
	errors  []error
}

// outcomeOf returns the outcome of a call to the store that returned err.
func outcomeOf(err error) string {
	for _, o := range storeOutcomes {
		if slices.ContainsFunc(o.errors, func(target error) bool { return errors.Is(err, target) }) {
			return o.outcome
		}
	}
	return wire.Unknown
}

// A watched counts an engine's calls, and knows whether the engine answers.
type watched struct {
	calls   *counter
	seconds *durations

	mu       sync.Mutex
	answered time.Time // guarded by mu; when a call last ended with an answer
	silent   time.Time // guarded by mu; when a call last ended without one

	asking sync.Mutex // held while /metrics asks the store
}

// begin records the start of a call. The returned function must be called with the result.
func (w *watched) begin(ctx context.Context, call string) func(error) {
	began := time.Now()
	return func(err error) {
		outcome := outcomeOf(err)
		if outcome == wire.Unknown && errors.Is(ctx.Err(), context.Canceled) {
			return // its caller has gone, which says nothing about the store
		}
		now := time.Now()
		w.calls.count(callLabels(call, outcome))
		w.seconds.count(label("call", call), now.Sub(began))
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case outcome != wire.Unknown:
			w.answered = now
		case call != "list" || ctx.Err() == nil: // a list that ran out of time may just be long
			w.silent = now
		}
	}
}

// storeFresh is how long the store counts as up after its last answer.
const storeFresh = 10 * time.Second

// up reports whether the store answered its last call, and whether that call was recent.
func (w *watched) up(now time.Time) (up, fresh bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.answered
	if w.silent.After(last) {
		last = w.silent
	}
	return w.answered.After(w.silent), !last.IsZero() && now.Sub(last) <= storeFresh
}

// storeUp reports whether the store answers. It asks the store unless another call did so recently.
// known means that there was a recent call.
func (s *Server) storeUp() (up, known bool) {
	if up, known = s.watched.up(time.Now()); known || !s.watched.asking.TryLock() {
		return up, known
	}
	defer s.watched.asking.Unlock()
	ctx, cancel := context.WithTimeout(s.life, readyBound)
	defer cancel()
	_ = s.reach(ctx) // it is counted
	return s.watched.up(time.Now())
}

// A watchedClaim counts its calls. It implements driver.FenceLifter and driver.Forgetter even if
// the driver's claim does not.
type watchedClaim struct {
	driver.Claim
	w *watched
}

// claim creates a driver's claim.
func (s *Server) claim(req driver.Request) (*watchedClaim, error) {
	c, err := s.driver.Claim(req)
	if err != nil {
		return nil, err
	}
	return &watchedClaim{c, &s.watched}, nil
}

// Try implements [driver.Claim].
func (c *watchedClaim) Try(ctx context.Context) (driver.Grant, error) {
	end := c.w.begin(ctx, "try")
	g, err := c.Claim.Try(ctx)
	end(err)
	return g, err
}

// Renew implements [driver.Claim].
func (c *watchedClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	end := c.w.begin(ctx, "renew")
	g, err := c.Claim.Renew(ctx, ttl)
	end(err)
	return g, err
}

// Release implements [driver.Claim].
func (c *watchedClaim) Release(ctx context.Context, how driver.End) error {
	end := c.w.begin(ctx, "release")
	err := c.Claim.Release(ctx, how)
	end(err)
	return err
}

// Note implements [driver.Claim].
func (c *watchedClaim) Note(ctx context.Context, note string) error {
	end := c.w.begin(ctx, "note")
	err := c.Claim.Note(ctx, note)
	end(err)
	return err
}

// LiftFence implements [driver.FenceLifter].
func (c *watchedClaim) LiftFence(ctx context.Context, fence uint64) error {
	l, ok := c.Claim.(driver.FenceLifter)
	if !ok {
		return fmt.Errorf("%w: fences that are lifted", driver.ErrUnsupported)
	}
	end := c.w.begin(ctx, "lift")
	err := l.LiftFence(ctx, fence)
	end(err)
	return err
}

// Forget implements [driver.Forgetter].
func (c *watchedClaim) Forget() {
	if f, ok := c.Claim.(driver.Forgetter); ok {
		f.Forget()
	}
}

// A watchedOperator counts its calls.
type watchedOperator struct {
	driver.Operator
	w *watched
}

// Inspect implements [driver.Operator].
func (o watchedOperator) Inspect(ctx context.Context, resource string) (driver.State, error) {
	end := o.w.begin(ctx, "inspect")
	state, err := o.Operator.Inspect(ctx, resource)
	end(err)
	return state, err
}

// List implements [driver.Operator].
func (o watchedOperator) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	end := o.w.begin(ctx, "list")
	states, next, err := o.Operator.List(ctx, prefix, after, limit)
	end(err)
	return states, next, err
}

// Evict implements [driver.Operator].
func (o watchedOperator) Evict(ctx context.Context, resource, owner, reason string) error {
	end := o.w.begin(ctx, "evict")
	err := o.Operator.Evict(ctx, resource, owner, reason)
	end(err)
	return err
}

// RaiseFence implements [driver.Operator].
func (o watchedOperator) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	end := o.w.begin(ctx, "raise")
	err := o.Operator.RaiseFence(ctx, resource, fence)
	end(err)
	return err
}

// A watchedChecker counts its rehearsals.
type watchedChecker struct {
	driver.Checker
	w *watched
}

// Rehearse implements [driver.Checker].
func (c watchedChecker) Rehearse(ctx context.Context) error {
	end := c.w.begin(ctx, "rehearse")
	err := c.Checker.Rehearse(ctx)
	end(err)
	return err
}

// SetLimit implements [driver.Operator].
func (o watchedOperator) SetLimit(ctx context.Context, resource string, limit int) error {
	end := o.w.begin(ctx, "limit")
	err := o.Operator.SetLimit(ctx, resource, limit)
	end(err)
	return err
}
