package leasehold

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
)

// State is what the engine knows about one resource. A free resource has no holders.
type State struct {
	Resource string   // name
	Token    uint64   // no grant so far has a greater one, hand-overs aside; 0: unknown
	Holders  []Holder // by token
	Waiters  []Waiter // in order
}

// A Holder is one live lease, by the engine's clock. The zero Holder is nobody.
type Holder struct {
	Owner Owner         // empty: the lease was released, and AtLeast keeps the resource
	Mode  driver.Mode   // exclusive or shared
	Limit int           // the limit that it asked for; 0: none
	Token uint64        // of its grant, comparable with Lease.Token; 0: unknown. Leases that were handed over have up to 1,023 more
	Held  time.Duration // since the grant; 0: unknown
	Left  time.Duration // until it expires unless renewed; 0: unknown
	TTL   time.Duration // of its grant or its last renewal, which was TTL - Left ago; 0: unknown
	Note  string        // for people: Details().Text, or else host and program

	note string // as the engine keeps it, with details
}

// A Waiter is one place in a queue.
type Waiter struct {
	Owner  Owner         // of the place; the lease will have it too
	Mode   driver.Mode   // exclusive or shared
	Waited time.Duration // since its first attempt
	Note   string        // for people: Details().Text, or else host and program

	note string // as the engine keeps it, with details
}

// An Owner is who holds or waits, see [driver.Owner]. Evict and Resume take what Reveal returns.
type Owner = driver.Owner

// String is for people. What others wrote is quoted, so that it cannot control a terminal.
func (h Holder) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Limit:%d Token:%d Held:%v Left:%v TTL:%v Note:%q}", h.Owner, h.Mode, h.Limit, h.Token, h.Held, h.Left, h.TTL, h.Note)
}

// GoString is String with the type.
func (h Holder) GoString() string { return "leasehold.Holder" + h.String() }

// LogValue implements slog.LogValuer.
func (h Holder) LogValue() slog.Value { return slog.StringValue(h.String()) }

// String is for people. What others wrote is quoted, so that it cannot control a terminal.
func (w Waiter) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Waited:%v Note:%q}", w.Owner, w.Mode, w.Waited, w.Note)
}

// GoString is String with the type.
func (w Waiter) GoString() string { return "leasehold.Waiter" + w.String() }

// LogValue implements slog.LogValuer.
func (w Waiter) LogValue() slog.Value { return slog.StringValue(w.String()) }

// later is what is known of h when d has passed.
func (h Holder) later(d time.Duration) Holder {
	aged := driver.Holder{Held: h.Held, Left: h.Left, TTL: h.TTL}.Later(d)
	h.Held, h.Left, h.TTL = aged.Held, aged.Left, aged.TTL
	return h
}

func stateOf(s driver.State) State {
	state := State{Resource: s.Resource, Token: s.Fence}
	for _, h := range s.Holders {
		state.Holders = append(state.Holders, holderOf(h))
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, Waiter{w.Owner, w.Mode, w.Waited, details.Text(w.Note), w.Note})
	}
	return state
}

func holderOf(h driver.Holder) Holder {
	return Holder{h.Owner, h.Mode, h.Limit, h.Fence, h.Held, h.Left, h.TTL, details.Text(h.Note), h.Note}
}
