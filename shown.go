package leasehold

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// A Lease, Leases and a Locker print and log without owners, with every verb.

// String returns the name, the token and the time left, for people.
func (le *Lease) String() string {
	if le == nil || le.hold == nil { // such as one that is embedded, and not there yet
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

// String is for people: each lease as it prints.
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

// String is for people.
func (l *Locker) String() string { return "locker on " + l.features.Engine }

// Format implements fmt.Formatter.
func (l *Locker) Format(f fmt.State, _ rune) { fmt.Fprint(f, l.String()) }

// LogValue implements slog.LogValuer.
func (l *Locker) LogValue() slog.Value { return slog.StringValue(l.String()) }

// Format implements fmt.Formatter: what a context is made of is nobody's to print.
func (c leaseContext) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "context of %v", c.lease) }

// Format implements fmt.Formatter.
func (c leasesContext) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "context of %v", c.all)
}
