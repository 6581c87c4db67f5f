package etcdlock

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter. It hides the owners that a driver contains.
func (*Driver) Format(f fmt.State, _ rune) { discreet.Format(f, "etcd driver") }

// LogValue implements slog.LogValuer.
func (*Driver) LogValue() slog.Value { return slog.StringValue("etcd driver") }
