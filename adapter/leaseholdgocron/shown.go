package leaseholdgocron

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter, and hides the owners inside.
func (*Locker) Format(f fmt.State, _ rune) { discreet.Format(f, "gocron locker") }

// LogValue implements slog.LogValuer.
func (*Locker) LogValue() slog.Value { return slog.StringValue("gocron locker") }

// Format implements fmt.Formatter, and hides the owners inside.
func (*Elector) Format(f fmt.State, _ rune) { discreet.Format(f, "gocron elector") }

// LogValue implements slog.LogValuer.
func (*Elector) LogValue() slog.Value { return slog.StringValue("gocron elector") }
