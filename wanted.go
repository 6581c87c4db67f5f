package leasehold

import "github.com/leasehold-go/leasehold/internal/waiting"

// Yields asks for [Lease.Wanted], so that a holder can give way at a point that suits it. Engines
// without Tells in their [driver.Features] refuse it with [ErrUnsupported]. A nested lease has no
// Wanted of its own unless the outermost one yields.
//
// Inside the process, a lease that does not yield is not handed over to a call that does.
func Yields() Option { return func(r *request) { r.yields = true } }

// Wanted returns a channel that closes when another call waits for the resource, in this process
// or another. A holder that can stop at a safe point releases the lease there, and acquires it
// again behind those who wait. Without [Yields] the channel is nil, and never closes.
//
// The channel closes once. It stays open for a call that does not wait, such as TryAcquire. The
// exception is a TryAcquire of another process that queues briefly because of [Options.Keep]. The
// channel may be closed from the beginning, and the call that waits may have given up meanwhile.
// The lease stays held, whether its holder looks at the channel or not. Engines with Recalls in
// their [driver.Features] report a waiter of another process promptly, all others with the next
// renewal.
func (le *Lease) Wanted() <-chan struct{} {
	if le.wanted == nil {
		return nil
	}
	return le.wanted.closes
}

// wanted is the state of Lease.Wanted.
type wanted struct {
	closes  chan struct{} // closed with hold.mu held
	recalls chan struct{} // capacity 1; receives an element at each recall; nil: without Preference
}

// recall records that another owner waits for the resource. The driver calls it, as Request.Wanted.
func (h *hold) recall() {
	h.mu.Lock()
	gone := false
	if !h.over() {
		h.recalled = true
		h.want()
		h.traceRecalled()
		gone = h.phase == kept && h.reclaim()
	}
	h.mu.Unlock()
	if gone {
		h.giveBack()
	}
}

// recallLocally closes Wanted if a call of this process waits for the turn of h. It checks again,
// because h may have been handed over to that call.
func (h *hold) recallLocally() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waitedForLocally() {
		h.want()
	}
}

// waitedForLocally reports whether a call of this process waits for the turn of h. Requires h.mu.
func (h *hold) waitedForLocally() bool {
	return h.holders.hasTurn && h.locker.queue.isWaitedFor(h.req.Resource)
}

// handsOver reports whether a call of this process waits for the turn of h.
func (h *hold) handsOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waitedForLocally()
}

// want closes Wanted of all leases. Requires h.mu.
func (h *hold) want() {
	for _, le := range h.holders.leases {
		le.want()
	}
}

// want closes Wanted, once, and sends to recalls. Requires hold.mu.
func (le *Lease) want() {
	w := le.wanted
	if w == nil {
		return
	}
	select {
	case w.recalls <- struct{}{}:
	default:
	}
	if !waiting.Closed(w.closes) {
		close(w.closes)
	}
}
