package httplock

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter. It hides the owners that a driver contains.
func (*service) Format(f fmt.State, _ rune) { discreet.Format(f, "http driver") }

// LogValue implements slog.LogValuer.
func (*service) LogValue() slog.Value { return slog.StringValue("http driver") }
