// Package onecall allows one call at a time, to a claim for example.
package onecall

import "context"

// A Gate lets one call at a time through. Unlike a mutex it can be waited for with a context,
// and a call may be ended by another goroutine. It has an element while a call is in flight.
type Gate chan struct{}

// New returns a Gate that no call has passed.
func New() Gate { return make(Gate, 1) }

// TryBegin begins a call, and reports true, if it need not wait. End must follow if it did.
func (g Gate) TryBegin() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

// Begin waits for the call in flight, which may be part of a batch that hangs. It returns nil
// when the caller's call has begun, even if ctx has ended, and End must follow. Otherwise it
// returns the error of ctx.
func (g Gate) Begin(ctx context.Context) error {
	if g.TryBegin() {
		return nil
	}
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// End ends the call that has begun.
func (g Gate) End() { <-g }
