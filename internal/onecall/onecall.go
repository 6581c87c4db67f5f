// Package onecall lets one call at a time go to a claim.
package onecall

import "context"

// A Gate lets one call at a time through. Unlike a mutex it is waited for no longer than a context lives, and whoever
// ends a call need not be who began it. It has an element while a call is under way.
type Gate chan struct{}

// New returns a Gate that no call has passed.
func New() Gate { return make(Gate, 1) }

// TryBegin begins a call if that needs no waiting. End follows if it did.
func (g Gate) TryBegin() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

// Begin waits for the call that is under way, which may be one of many in a call that hangs. It returns nil when the
// caller's has begun, even if ctx has ended, and End follows; else the error of ctx.
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
