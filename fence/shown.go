package fence

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter, and hides the owners inside.
func (*Memory) Format(f fmt.State, _ rune) { discreet.Format(f, "fencing memory") }

// LogValue implements slog.LogValuer.
func (*Memory) LogValue() slog.Value { return slog.StringValue("fencing memory") }

// Format implements fmt.Formatter, and hides the owner.
func (l lease) Format(f fmt.State, _ rune) {
	discreet.Format(f, fmt.Sprintf("{Name:%q Token:%d}", l.name, l.token))
}

// LogValue implements slog.LogValuer.
func (l lease) LogValue() slog.Value {
	return slog.StringValue(fmt.Sprintf("{Name:%q Token:%d}", l.name, l.token))
}
