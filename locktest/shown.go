package locktest

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter, and hides the owners inside.
func (*Faulty) Format(f fmt.State, _ rune) { discreet.Format(f, "faulty driver") }

// LogValue implements slog.LogValuer.
func (*Faulty) LogValue() slog.Value { return slog.StringValue("faulty driver") }

// Format implements fmt.Formatter, and hides the owners inside.
func (*History) Format(f fmt.State, _ rune) { discreet.Format(f, "history") }

// LogValue implements slog.LogValuer.
func (*History) LogValue() slog.Value { return slog.StringValue("history") }

// Format implements fmt.Formatter. The whole owner is only in the field.
func (b Belief) Format(f fmt.State, _ rune) { discreet.Format(f, b.String()) }

// LogValue implements slog.LogValuer.
func (b Belief) LogValue() slog.Value { return slog.StringValue(b.String()) }
