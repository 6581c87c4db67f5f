package zklock

import (
	"fmt"
	"log/slog"

	"github.com/leasehold-go/leasehold/internal/discreet"
)

// Format implements fmt.Formatter. It hides the owners that a driver contains.
func (*Driver) Format(f fmt.State, _ rune) { discreet.Format(f, "zookeeper driver") }

// LogValue implements slog.LogValuer.
func (*Driver) LogValue() slog.Value { return slog.StringValue("zookeeper driver") }

// String formats the options for people, without the password and anything derived from it.
func (o Options) String() string {
	return fmt.Sprintf("{SessionTimeout:%v Prefix:%q Chroot:%q ReadWriteNames:%t TTLNodes:%t User:%q}",
		o.SessionTimeout, o.Prefix, o.Chroot, o.ReadWriteNames, o.TTLNodes, o.User)
}

// Format implements fmt.Formatter.
func (o Options) Format(f fmt.State, _ rune) { discreet.Format(f, o.String()) }

// LogValue implements slog.LogValuer.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }
