package leasehold

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// The types below print and log without owners, with every verb.

// String returns the name, the token and the time left, for people.
func (le *Lease) String() string {
	if le == nil || le.hold == nil { // such as an embedded *Lease that is not set
		return "<nil>"
	}
	return fmt.Sprintf("{Name:%q Token:%d Left:%v}", le.Name(), le.token, time.Until(le.Deadline()).Round(time.Millisecond))
}

// Format implements fmt.Formatter.
func (le *Lease) Format(f fmt.State, _ rune) { fmt.Fprint(f, le.String()) }

// LogValue implements slog.LogValuer.
func (le *Lease) LogValue() slog.Value {
	if le == nil || le.hold == nil {
		return slog.StringValue(le.String())
	}
	return slog.GroupValue(slog.String("name", le.Name()), slog.Uint64("token", le.token), slog.Duration("left", time.Until(le.Deadline())))
}

// String formats each lease, for people.
func (ls *Leases) String() string {
	all := make([]string, len(ls.leases))
	for i, le := range ls.leases {
		all[i] = le.String()
	}
	return "[" + strings.Join(all, " ") + "]"
}

// Format implements fmt.Formatter.
func (ls *Leases) Format(f fmt.State, _ rune) { fmt.Fprint(f, ls.String()) }

// LogValue implements slog.LogValuer.
func (ls *Leases) LogValue() slog.Value { return slog.StringValue(ls.String()) }

// String returns the engine's name, for people.
func (l *Locker) String() string { return "locker on " + l.features.Engine }

// Format implements fmt.Formatter.
func (l *Locker) Format(f fmt.State, _ rune) { fmt.Fprint(f, l.String()) }

// LogValue implements slog.LogValuer.
func (l *Locker) LogValue() slog.Value { return slog.StringValue(l.String()) }

// Format implements fmt.Formatter, so that the context's internals are not printed.
func (c leaseContext) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "context of %v", c.lease) }

// Format implements fmt.Formatter.
func (c leasesContext) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "context of %v", c.all)
}
