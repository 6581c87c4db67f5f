package leasehold

import "time"

// A Trace is a set of optional hooks which the Locker calls as its leases live and end.
// For each lease either Granted or HandedOver is called, and later either Lost or
// Released. Hooks run on the goroutine that caused them, which may be one that asks a
// lease's context for its Err; they may run concurrently and must not block. None is
// given an owner or a password.
type Trace struct {
	// Queued: a call has begun to wait, inside the process or at the engine.
	Queued func(resource string)
	// Granted: the engine has granted a lease, or a nested one has begun, waited after
	// Acquire was called.
	Granted func(resource string, token uint64, waited time.Duration)
	// HandedOver: a lease of this process went straight to its next waiter, waited
	// after that one's Acquire was called.
	HandedOver func(resource string, token uint64, waited time.Duration)
	// Renewed: the lease was renewed when slack was left of its former deadline.
	Renewed func(resource string, token uint64, slack time.Duration)
	// RenewFailed: a renewal that the Locker made has failed, for err, when left was left of
	// the deadline; another will be tried. A lease whose renewals all fail ends by being Lost.
	RenewFailed func(resource string, token uint64, left time.Duration, err error)
	// Lost: the lease ended before Release; cause matches ErrLost.
	Lost func(resource string, token uint64, cause error)
	// Released: Release was answered by the engine, or handed the lease over, or left it
	// to one that is nested, held after it was granted.
	Released func(resource string, token uint64, held time.Duration)
}

func (l *Locker) traceQueued(name string) {
	if f := l.opts.Trace.Queued; f != nil {
		f(name)
	}
}

func (l *Locker) traceGranted(le *Lease, start time.Time) {
	if f := l.opts.Trace.Granted; f != nil {
		f(le.Name(), le.token, time.Since(start))
	}
}

func (l *Locker) traceHandedOver(le *Lease, start time.Time) {
	if f := l.opts.Trace.HandedOver; f != nil {
		f(le.Name(), le.token, time.Since(start))
	}
}

func (l *Locker) traceRenewed(name string, token uint64, slack time.Duration) {
	if f := l.opts.Trace.Renewed; f != nil {
		f(name, token, slack)
	}
}

// traceRenewFailed tells of a hold that goes on, until the Locker is closed.
func (l *Locker) traceRenewFailed(h *hold, now time.Time, err error) {
	f := l.opts.Trace.RenewFailed
	if f == nil || err == nil || l.renewing.Err() != nil {
		return
	}
	h.mu.Lock()
	over, token, left := h.over(), h.token(), h.deadline.Sub(now)
	h.mu.Unlock()
	if !over {
		f(h.req.Resource, token, max(left, 0), err)
	}
}

func (l *Locker) traceLost(le *Lease, cause error) {
	if f := l.opts.Trace.Lost; f != nil {
		f(le.Name(), le.token, cause)
	}
}

func (l *Locker) traceReleased(le *Lease) {
	if f := l.opts.Trace.Released; f != nil {
		f(le.Name(), le.token, time.Since(le.since))
	}
}
