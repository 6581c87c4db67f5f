package leaseholdcertmagic

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter, and hides the owners inside.
func (*Storage) Format(f fmt.State, _ rune) { discreet.Format(f, "certmagic storage") }

// LogValue implements slog.LogValuer.
func (*Storage) LogValue() slog.Value { return slog.StringValue("certmagic storage") }
