package leasehold

import (
	"context"
	"errors"
	"fmt"
)

// SetNote replaces the note that people see who ask who holds the resource: how far its work
// is, or its result. With [AtLeast] the last note stays until that time is over, and is the
// record of a finished job. SetNote returns nil if the engine shows the note, [ErrLost] or
// [ErrReleased] if the lease is over, [ErrUnsupported] if the engine cannot change notes, and
// [ErrInvalidOption] for a note that [Options.Note] would not accept. After any other error the
// outcome is unknown. The lease is not affected.
func (le *Lease) SetNote(ctx context.Context, note string) error {
	return le.wrap("note", le.setNote(ctx, note))
}

func (le *Lease) setNote(ctx context.Context, note string) error {
	if !le.hold.locker.features.Notes {
		return ErrUnsupported
	}
	if err := checkNote(note); err != nil {
		return err
	}
	return le.call(ctx, func() error { return le.hold.setNote(ctx, note) })
}

// setNote has the engine show note. Requires h.calling.
func (h *hold) setNote(ctx context.Context, note string) error {
	now, as := h.locker.clock.Read()
	h.mu.Lock()
	left := h.deadline.at.Sub(now)
	h.mu.Unlock()
	// A quarter of what is left, because renewals wait for this call.
	call := h.newCall(ctx, as.Add(min(left/4, callBound)))
	defer call.end()
	err := h.claim.Note(call, note)
	switch {
	case err != nil && ctx.Err() != nil: // its cause is the caller's and may match anything
		return fmt.Errorf("%w: %v", ctx.Err(), err)
	case errors.Is(err, ErrLost):
		h.lose(err)
	case err == nil: // waiters of this process see it too
		h.mu.Lock()
		h.req.Note = note
		h.mu.Unlock()
	}
	return err
}
