package leasehold

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/internal/details"
)

// SetNote replaces the note shown to people who ask who holds the resource, such as how far
// its work is, or its result. All other [Details] stay. With [AtLeast] the last note stays until that
// time is over, and is the record of a finished job. SetNote returns nil if the engine shows
// the note, [ErrLost] or [ErrReleased] if the lease is over, [ErrUnsupported] if the engine
// cannot change notes, and [ErrInvalidOption] for a note that [Options.Note] would not accept.
// After any other error the outcome is unknown. The lease is not affected.
func (le *Lease) SetNote(ctx context.Context, note string) error {
	return le.wrap("note", le.setNote(ctx, func(said *details.Details) { said.Text = note }))
}

// setNote has the engine show what change makes of the details.
func (le *Lease) setNote(ctx context.Context, change func(said *details.Details)) error {
	if !le.hold.locker.features.Notes {
		return ErrUnsupported
	}
	return le.call(ctx, func() error { return le.hold.setNote(ctx, change) })
}

// setNote requires h.calling.
func (h *hold) setNote(ctx context.Context, change func(said *details.Details)) error {
	now, as := h.locker.clock.Read()
	h.mu.Lock()
	left, said, filled := h.deadline.at.Sub(now), h.who.said, h.who.filled
	h.mu.Unlock()
	change(&said)
	changed, err := newDescription(said, filled)
	if err != nil {
		return err
	}
	// A quarter of what is left, because renewals wait for this call.
	call := h.newCall(ctx, as.Add(min(left/4, callBound)))
	defer call.end()
	err = h.claim.Note(call, changed.note)
	switch {
	case err != nil && ctx.Err() != nil: // its cause is the caller's and may match anything
		return fmt.Errorf("%w: %v", ctx.Err(), err)
	case errors.Is(err, ErrLost):
		h.lose(err)
	case err == nil: // waiters of this process see it too
		h.mu.Lock()
		h.who = changed
		h.mu.Unlock()
	}
	return err
}
