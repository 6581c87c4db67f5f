package leasehold

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// SetNote replaces the Text of the lease's [Details], for example by the progress or the result of
// the work. All other fields stay. With [AtLeast] the last note stays until that time is over, as
// the record of a finished job.
//
// SetNote returns nil if the engine shows the note, and [ErrLost] or [ErrReleased] if the lease
// is over. It returns [ErrUnsupported] if the engine cannot change notes, and [ErrInvalidOption]
// for a note that [Options.Note] would not accept. After any other error the outcome is unknown.
// The lease is not affected.
func (le *Lease) SetNote(ctx context.Context, note string) error {
	return le.wrap("note", le.setNote(ctx, func(said *details.Details) { said.Text = note }))
}

// setNote writes the details, changed by change, to the engine.
func (le *Lease) setNote(ctx context.Context, change func(said *details.Details)) error {
	if !le.hold.locker.features.Notes {
		return ErrUnsupported
	}
	return le.call(ctx, func() error { return le.hold.setNote(ctx, change) })
}

// setNote requires h.calling.
func (h *hold) setNote(ctx context.Context, change func(said *details.Details)) error {
	h.mu.Lock()
	said, filled := h.who.said, h.who.filled
	h.mu.Unlock()
	change(&said)
	if h.keep != nil && said.Kind == HolderKeeps { // a lease whose note was changed is not kept
		said.Kind = ""
	}
	changed, err := newDescription(said, filled)
	if err != nil {
		return err
	}
	if err = h.tell(ctx, changed); err == nil { // waiters of this process see it too
		h.mu.Lock()
		h.who, h.untold = changed, false
		h.mu.Unlock()
	}
	return err
}

// tell writes a description to the engine. Requires h.calling.
func (h *hold) tell(ctx context.Context, said *description) error {
	now, as := h.locker.clock.Read()
	h.mu.Lock()
	left := h.deadline.at.Sub(now)
	h.mu.Unlock()
	// A quarter of what is left, because renewals wait for this call.
	call := h.newCall(ctx, as.Add(min(left/4, callBound)))
	defer call.end()
	err := h.claim.Note(call, said.note)
	h.mu.Lock()
	if h.shows = said; err != nil {
		h.shows = nil
	}
	h.mu.Unlock()
	switch {
	case err != nil && isOver(ctx): // compare with ctx.Err: the cause belongs to the caller and may match anything
		return fmt.Errorf("%w: %v", ctx.Err(), err)
	case errors.Is(err, ErrLost):
		h.lose(err)
	}
	return err
}

// endRenewal ends the call of a renewal that returned err. If the engine still shows the
// description of a former lease, the current one is written first, outside of the workers. If too
// many such calls are in flight, a later renewal does it.
func (h *hold) endRenewal(err error) {
	h.mu.Lock()
	untold := h.untold && !h.over()
	h.mu.Unlock()
	if k := &h.locker.keeper; err == nil && untold {
		told := k.separately(func() {
			h.tellAnew(k.renewing)
			h.calling.End()
		})
		if told {
			return
		}
	}
	h.calling.End()
}

// tellAnew writes the description of the current lease to the engine. Requires h.calling.
func (h *hold) tellAnew(ctx context.Context) {
	h.mu.Lock()
	who := h.who
	h.mu.Unlock()
	err := h.tell(ctx, who)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil || waiting.Final(err) || errors.Is(err, ErrDenied) { // after any other error, the next renewal tries again
		h.untold = err == nil && !h.who.same(who) // the hold may have been handed over meanwhile
	}
}
