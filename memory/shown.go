package memory

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter, and hides the owners inside.
func (*Driver) Format(f fmt.State, _ rune) { discreet.Format(f, "memory driver") }

// LogValue implements slog.LogValuer.
func (*Driver) LogValue() slog.Value { return slog.StringValue("memory driver") }

// Format implements fmt.Formatter, and hides the owners inside.
func (*Server) Format(f fmt.State, _ rune) { discreet.Format(f, "memory server") }

// LogValue implements slog.LogValuer.
func (*Server) LogValue() slog.Value { return slog.StringValue("memory server") }
