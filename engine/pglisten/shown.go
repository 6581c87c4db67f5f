package pglisten

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements [fmt.Formatter], because a Listener contains a password.
func (*Listener) Format(f fmt.State, _ rune) { discreet.Format(f, "PostgreSQL listener") }

// LogValue implements [slog.LogValuer].
func (*Listener) LogValue() slog.Value { return slog.StringValue("PostgreSQL listener") }
