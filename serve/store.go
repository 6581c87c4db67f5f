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
	storeCalls    = []string{"try", "renew", "release", "note", "lift", "inspect", "list", "evict", "raise", "limit", "rehearse"}
	storeOutcomes = []storeOutcome{
		{wire.Done, []error{nil}},
		{wire.Busy, []error{driver.ErrBusy, driver.ErrNotYet}},
		{storeFull, []error{driver.ErrReadOnly, driver.ErrFull}},
		{wire.Lost, []error{driver.ErrLost, driver.ErrBarred}},
		{wire.Refused, []error{driver.ErrUnsupported, driver.ErrInvalidName, driver.ErrCorrupt, driver.ErrDenied, driver.ErrTooHeavy}},
		{wire.Unknown, nil},
	}
	// unasked are errors that drivers may return without asking the store.
	unasked = []error{driver.ErrBusy, driver.ErrNotYet, driver.ErrLost, driver.ErrBarred, driver.ErrUnsupported, driver.ErrInvalidName, driver.ErrTooHeavy}
)

type storeOutcome struct {
	outcome string
	errors  []error
}

// outcomeOf returns the outcome of a call to the store that returned err.
func outcomeOf(err error) string {
	for _, o := range storeOutcomes {
		if isAny(err, o.errors) {
			return o.outcome
		}
	}
	return wire.Unknown
}

// isAny reports whether err matches one of targets.
func isAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// A watched counts an engine's calls, and knows whether the engine answers.
type watched struct {
	calls   *counter
	seconds *durations

	mu       sync.Mutex
	answered time.Time // guarded by mu; when a call last ended with an answer of the store
	silent   time.Time // guarded by mu; when a call last ended without one
	granted  time.Time // guarded by mu; when the last attempt that was granted began
	renewed  time.Time // guarded by mu; when the last renewal that was granted began

	asking chan struct{} // full while /metrics asks the store
}

// begin records the start of a call. The returned function must be deferred, with the result.
func (w *watched) begin(ctx context.Context, call string) (end func(err *error)) {
	began := time.Now()
	return func(err *error) {
		outcome := outcomeOf(*err)
		if outcome == wire.Unknown && errors.Is(ctx.Err(), context.Canceled) {
			return // its caller has gone, which says nothing about the store
		}
		now := time.Now()
		w.calls.count(callLabels(call, outcome))
		w.seconds.count(label("call", call), now.Sub(began))
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case *err == nil && call == "try":
			w.granted = later(w.granted, began)
		case *err == nil && call == "renew":
			w.renewed = later(w.renewed, began)
		}
		switch {
		case isAny(*err, unasked): // neither an answer nor silence
		case outcome != wire.Unknown:
			w.answered = now
		case call != "list" || ctx.Err() == nil: // a list that ran out of time may just be long
			w.silent = now
		}
	}
}

// later returns the later of two instants.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// disproves reports whether the store has granted a call that began after at, when it had refused a
// write with err. err matches driver.ErrReadOnly or driver.ErrFull. A full store may renew leases.
func (w *watched) disproves(err error, at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.granted.After(at) || errors.Is(err, driver.ErrReadOnly) && w.renewed.After(at)
}

// answers records an answer that begin does not take for one.
func (w *watched) answers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered = time.Now()
}

// storeFresh is how long the store counts as up after its last answer.
const storeFresh = 10 * time.Second

// up reports whether the store answered its last call, and whether that call was recent.
func (w *watched) up(now time.Time) (up, fresh bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := later(w.answered, w.silent)
	return w.answered.After(w.silent), !last.IsZero() && now.Sub(last) <= storeFresh
}

// storeUp reports whether the store answers. It asks the store unless another call did so recently,
// or does so now. known means that there was a recent call.
func (s *Server) storeUp(ctx context.Context) (up, known bool) {
	if up, known = s.watched.up(time.Now()); known {
		return up, known
	}
	select {
	case s.watched.asking <- struct{}{}:
		defer func() { <-s.watched.asking }()
	case <-ctx.Done(): // nobody reads the answer
		return up, known
	}
	if up, known = s.watched.up(time.Now()); known {
		return up, known
	}
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
func (c *watchedClaim) Try(ctx context.Context) (_ driver.Grant, err error) {
	defer c.w.begin(ctx, "try")(&err)
	return c.Claim.Try(ctx)
}

// Renew implements [driver.Claim].
func (c *watchedClaim) Renew(ctx context.Context, ttl time.Duration) (_ driver.Grant, err error) {
	defer c.w.begin(ctx, "renew")(&err)
	return c.Claim.Renew(ctx, ttl)
}

// Release implements [driver.Claim].
func (c *watchedClaim) Release(ctx context.Context, how driver.End) (err error) {
	defer c.w.begin(ctx, "release")(&err)
	return c.Claim.Release(ctx, how)
}

// Note implements [driver.Claim].
func (c *watchedClaim) Note(ctx context.Context, note string) (err error) {
	defer c.w.begin(ctx, "note")(&err)
	return c.Claim.Note(ctx, note)
}

// LiftFence implements [driver.FenceLifter].
func (c *watchedClaim) LiftFence(ctx context.Context, fence uint64) (err error) {
	l, ok := c.Claim.(driver.FenceLifter)
	if !ok {
		return fmt.Errorf("%w: fences that are lifted", driver.ErrUnsupported)
	}
	defer c.w.begin(ctx, "lift")(&err)
	return l.LiftFence(ctx, fence)
}

// forgets reports whether the driver's claim is a [driver.Forgetter], whose lease is not a session's.
func (c *watchedClaim) forgets() bool {
	_, ok := c.Claim.(driver.Forgetter)
	return ok
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
func (o watchedOperator) Inspect(ctx context.Context, resource string) (_ driver.State, err error) {
	defer o.w.begin(ctx, "inspect")(&err)
	return o.Operator.Inspect(ctx, resource)
}

// List implements [driver.Operator].
func (o watchedOperator) List(ctx context.Context, prefix, after string, limit int) (_ []driver.State, _ string, err error) {
	defer o.w.begin(ctx, "list")(&err)
	return o.Operator.List(ctx, prefix, after, limit)
}

// Evict implements [driver.Operator].
func (o watchedOperator) Evict(ctx context.Context, resource, owner, reason string) (err error) {
	defer o.w.begin(ctx, "evict")(&err)
	return o.Operator.Evict(ctx, resource, owner, reason)
}

// RaiseFence implements [driver.Operator].
func (o watchedOperator) RaiseFence(ctx context.Context, resource string, fence uint64) (err error) {
	defer o.w.begin(ctx, "raise")(&err)
	return o.Operator.RaiseFence(ctx, resource, fence)
}

// SetLimit implements [driver.Operator].
func (o watchedOperator) SetLimit(ctx context.Context, resource string, limit int) (err error) {
	defer o.w.begin(ctx, "limit")(&err)
	return o.Operator.SetLimit(ctx, resource, limit)
}

// A watchedChecker counts its rehearsals.
type watchedChecker struct {
	driver.Checker
	w *watched
}

// Rehearse implements [driver.Checker].
func (c watchedChecker) Rehearse(ctx context.Context) (err error) {
	defer c.w.begin(ctx, "rehearse")(&err)
	return c.Checker.Rehearse(ctx)
}
