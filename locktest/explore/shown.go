package explore

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter, and hides the owners inside.
func (*World) Format(f fmt.State, _ rune) { discreet.Format(f, "world") }

// LogValue implements slog.LogValuer.
func (*World) LogValue() slog.Value { return slog.StringValue("world") }

// Format implements fmt.Formatter, and hides the owners inside.
func (Process) Format(f fmt.State, _ rune) { discreet.Format(f, "process") }

// LogValue implements slog.LogValuer.
func (Process) LogValue() slog.Value { return slog.StringValue("process") }
