package sqllock

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements [fmt.Formatter], because a Driver contains owners.
func (*Driver) Format(f fmt.State, _ rune) { discreet.Format(f, "SQL driver") }

// LogValue implements [slog.LogValuer].
func (*Driver) LogValue() slog.Value { return slog.StringValue("SQL driver") }
