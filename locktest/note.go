package locktest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// noteIsReplaced: a holder can replace its own note and changes nothing else. Nobody else can
// replace it.
func noteIsReplaced(t testing.TB, h Harness) {
	d := open(t, h)
	reqs := []driver.Request{request(newName(t))}
	if d.Features().Shared {
		reqs = append(reqs, shared(newName(t), 0))
	}
	for _, req := range reqs {
		req.Note = "begun"
		holder := contend(t, d, req)
		g := holder.granted("the resource is free")
		holder.noted("done")
		wantNote(t, d, req.Resource, "done")
		sameGrant(t, g, holder.renewed(longTTL), "its renewal after Note")
		wantNote(t, d, req.Resource, "done")
		req.Owner = newOwner()
		stranger := contend(t, open(t, h), req)
		if err := stranger.note("forged"); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Note without a hold: %v; want ErrLost", err)
		}
		wantNote(t, d, req.Resource, "done")
		if d.Features().Lingers {
			if err := holder.linger(longTTL); err != nil {
				t.Fatalf("Linger: %v", err)
			}
			wantNote(t, d, req.Resource, "done")
		} else {
			holder.released()
		}
		if err := holder.note("late"); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Note after the end: %v; want ErrLost", err)
		}
	}
	ttl := shortTTL(d)
	expired := holding(t, d, lasting(request(newName(t)), ttl))
	eventually(t, ttl+Margin, "Note of a lease that has expired is ErrLost", func() bool {
		return errors.Is(expired.note("late"), driver.ErrLost)
	})
}

// refusesBadNotes: a note that some engine could not keep is refused before any engine is called.
func refusesBadNotes(t testing.TB, h Harness) {
	link := NewFaulty(open(t, h))
	l := locker(t, link, leasehold.Options{})
	lease := acquire(t, l, newName(t))
	for _, note := range []string{strings.Repeat("x", driver.MaxNote+1), "\xff", "a\x00b"} {
		before := link.Calls(OpTry) + link.Calls(OpNote)
		got, err := l.TryAcquire(bounded(t), newName(t), leasehold.Note(note))
		if got != nil || !errors.Is(err, leasehold.ErrInvalidOption) {
			t.Errorf("a note of %d bytes: %s, %v; want ErrInvalidOption", len(note), describe(got), err)
		}
		err = lease.SetNote(bounded(t), note)
		if !errors.Is(err, leasehold.ErrInvalidOption) && !errors.Is(err, leasehold.ErrUnsupported) {
			t.Errorf("SetNote with %d bytes: %v; want ErrInvalidOption", len(note), err)
		}
		if link.Calls(OpTry)+link.Calls(OpNote) != before {
			t.Error("the engine was asked")
		}
	}
	release(t, lease)
}

// longNoteIsKept: a note may have the maximum length, and any characters.
func longNoteIsKept(t testing.TB, h Harness) {
	d := open(t, h)
	long := strings.Repeat("\"\\<é\n\x01\U0001f512", driver.MaxNote)[:driver.MaxNote]
	long = strings.ToValidUTF8(long, "")
	req := request(newName(t))
	req.Note = long
	holder := holding(t, d, req)
	wantNote(t, d, req.Resource, long)
	if d.Features().Notes {
		holder.noted("short")
		holder.noted(long)
		wantNote(t, d, req.Resource, long)
	}
	holder.renewed(longTTL)
	holder.released()
}

func (c *contender) note(text string) error {
	c.t.Helper()
	return within(c.t, "Note", callLimit, func(ctx context.Context) error { return c.claim.Note(ctx, text) })
}

func (c *contender) noted(text string) {
	c.t.Helper()
	if err := c.note(text); err != nil {
		c.t.Fatalf("Note of the holder: %v", err)
	}
}

// wantNote checks that the resource has one holder with that note.
func wantNote(t testing.TB, d driver.Driver, name, note string) {
	t.Helper()
	st := inspect(t, d, name)
	if len(st.Holders) != 1 || st.Holders[0].Note != note {
		t.Errorf("%d holders, want one with the note %q: %+v", len(st.Holders), note, st.Holders)
	}
}
