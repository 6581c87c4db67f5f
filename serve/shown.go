package serve

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements [fmt.Formatter], because a Server contains owners.
func (*Server) Format(f fmt.State, _ rune) { discreet.Format(f, "lock server") }

// LogValue implements [slog.LogValuer].
func (*Server) LogValue() slog.Value { return slog.StringValue("lock server") }

// Format implements [fmt.Formatter], because an Access contains what identifies clients.
func (*Access) Format(f fmt.State, _ rune) { discreet.Format(f, "access file") }

// LogValue implements [slog.LogValuer].
func (*Access) LogValue() slog.Value { return slog.StringValue("access file") }

// Format implements [fmt.Formatter], because the URL may contain secrets.
func (Webhook) Format(f fmt.State, _ rune) { discreet.Format(f, "webhook") }

// LogValue implements [slog.LogValuer].
func (Webhook) LogValue() slog.Value { return slog.StringValue("webhook") }
