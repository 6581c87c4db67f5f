package leaseholdgoose

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter, and hides the owners inside.
func (*Locker) Format(f fmt.State, _ rune) { discreet.Format(f, "goose locker") }

// LogValue implements slog.LogValuer.
func (*Locker) LogValue() slog.Value { return slog.StringValue("goose locker") }
