package leasehold

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/internal/details"
)

// SetNote replaces the note that others see for this lease, for example with the progress or the
// result of the work. All other [Details] stay. With [AtLeast] the last note stays until that
// time is over, as the record of a finished job.
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
	now, as := h.locker.clock.Read()
	h.mu.Lock()
	left, said, filled := h.deadline.at.Sub(now), h.who.said, h.who.filled
	h.mu.Unlock()
	change(&said)
	changed, err := newDescription(said, filled)
	if err != nil {
		return err
	}
	// A quarter of the time left, because renewals wait for this call.
	call := h.newCall(ctx, as.Add(min(left/4, callBound)))
	defer call.end()
	err = h.claim.Note(call, changed.note)
	switch {
	case err != nil && ctx.Err() != nil: // the cause belongs to the caller and may match anything
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
