package driver

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"unicode"
)

// ShortOwner returns the part of an owner that may be printed, because anyone who knows the
// whole owner can release the lease. It is the first 8 bytes, but at most half of a short owner,
// which is a foreign client's. Unprintable characters become question marks.
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

// String returns the mode as a word for people and labels.
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// format prints text, after the type for %#v.
func format(f fmt.State, verb rune, name, text string) {
	if verb == 'v' && f.Flag('#') {
		io.WriteString(f, name)
	}
	io.WriteString(f, text)
}

// Holder, Waiter and Request print, log and marshal with ShortOwner: the whole owner is in the
// field alone. Text from others is quoted, so that it cannot control a terminal.

// String formats the value for people.
func (h Holder) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Limit:%d Fence:%d Held:%v Left:%v TTL:%v Note:%q}",
		h.Owner, h.Mode, h.Limit, h.Fence, h.Held, h.Left, h.TTL, h.Note)
}

// Format implements fmt.Formatter, for every verb.
func (h Holder) Format(f fmt.State, verb rune) { format(f, verb, "driver.Holder", h.String()) }

// LogValue implements slog.LogValuer.
func (h Holder) LogValue() slog.Value { return slog.StringValue(h.String()) }

// String formats the value for people.
func (w Waiter) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Waited:%v Note:%q}", w.Owner, w.Mode, w.Waited, w.Note)
}

// Format implements fmt.Formatter, for every verb.
func (w Waiter) Format(f fmt.State, verb rune) { format(f, verb, "driver.Waiter", w.String()) }

// LogValue implements slog.LogValuer.
func (w Waiter) LogValue() slog.Value { return slog.StringValue(w.String()) }

// String formats the value for people.
func (r Request) String() string {
	return fmt.Sprintf("{Resource:%q Owner:%s Mode:%d Limit:%d TTL:%v Queue:%t Note:%q}",
		r.Resource, ShortOwner(r.Owner), r.Mode, r.Limit, r.TTL, r.Queue, r.Note)
}

// Format implements fmt.Formatter, for every verb.
func (r Request) Format(f fmt.State, verb rune) { format(f, verb, "driver.Request", r.String()) }

// LogValue implements slog.LogValuer.
func (r Request) LogValue() slog.Value { return slog.StringValue(r.String()) }
