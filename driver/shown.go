package driver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"
)

// ShortOwner is what of an owner may be printed: its first 8 bytes, and of a short one, which
// is a foreign client's, at most half. What is not printable is a question mark. Whoever knows
// the whole owner can release the lease.
func ShortOwner(owner string) string {
	short := owner[:min(8, (len(owner)+1)/2)]
	if len(owner) == 1 {
		short = "\x00" // nothing of it
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, short)
}

// String is a word for people and labels.
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// Holder, Waiter and Request print, log and marshal with ShortOwner: the whole owner is in the
// field alone. What others wrote is quoted, and drives no terminal.

// String is for people.
func (h Holder) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Limit:%d Fence:%d Held:%v Left:%v Note:%q}",
		ShortOwner(h.Owner), h.Mode, h.Limit, h.Fence, h.Held, h.Left, h.Note)
}

// GoString is String with the type.
func (h Holder) GoString() string { return "driver.Holder" + h.String() }

// LogValue implements slog.LogValuer.
func (h Holder) LogValue() slog.Value { return slog.StringValue(h.String()) }

// MarshalJSON marshals a Holder that does not have its owner.
func (h Holder) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Owner      string
		Mode       Mode
		Limit      int
		Fence      uint64
		Held, Left time.Duration
		Note       string
	}{ShortOwner(h.Owner), h.Mode, h.Limit, h.Fence, h.Held, h.Left, h.Note})
}

// String is for people.
func (w Waiter) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Waited:%v Note:%q}", ShortOwner(w.Owner), w.Mode, w.Waited, w.Note)
}

// GoString is String with the type.
func (w Waiter) GoString() string { return "driver.Waiter" + w.String() }

// LogValue implements slog.LogValuer.
func (w Waiter) LogValue() slog.Value { return slog.StringValue(w.String()) }

// MarshalJSON marshals a Waiter that does not have its owner.
func (w Waiter) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Owner, Note string
		Mode        Mode
		Waited      time.Duration
	}{ShortOwner(w.Owner), w.Note, w.Mode, w.Waited})
}

// String is for people.
func (r Request) String() string {
	return fmt.Sprintf("{Resource:%q Owner:%s Mode:%d Limit:%d TTL:%v Queue:%t Note:%q}",
		r.Resource, ShortOwner(r.Owner), r.Mode, r.Limit, r.TTL, r.Queue, r.Note)
}

// GoString is String with the type.
func (r Request) GoString() string { return "driver.Request" + r.String() }

// LogValue implements slog.LogValuer.
func (r Request) LogValue() slog.Value { return slog.StringValue(r.String()) }
