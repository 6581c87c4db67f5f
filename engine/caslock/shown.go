package caslock

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter. It hides the owners that a driver contains.
func (d *Driver) Format(f fmt.State, _ rune) { discreet.Format(f, d.opts.Engine+" driver") }

// LogValue implements slog.LogValuer.
func (d *Driver) LogValue() slog.Value { return slog.StringValue(d.opts.Engine + " driver") }
