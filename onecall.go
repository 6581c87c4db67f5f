package leasehold

import "context"

// oneCall lets one call at a time go to a claim. Unlike a mutex it is waited for no longer
// than a context lives. It has an element while a call is in flight.
type oneCall chan struct{}

func (c oneCall) tryBegin() bool {
	select {
	case c <- struct{}{}:
		return true
	default:
		return false
	}
}

// begin waits for the call in flight, which may be one of many in a call that hangs.
func (c oneCall) begin(ctx context.Context) error {
	if c.tryBegin() {
		return nil
	}
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c oneCall) end() { <-c }
