package leasehold

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
)

// State is the engine's view of one resource. A free resource has no holders.
type State struct {
	Resource string   // name
	Token    uint64   // the greatest token of any grant so far, hand-overs aside; 0: unknown
	Limit    int      // set by [Locker.SetLimit]; 0: none
	Holders  []Holder // sorted by token
	Waiters  []Waiter // in order of the queue
}

// A Holder describes one live lease. Durations are measured by the engine's clock. Token belongs to
// the grant. Leases that were handed over inside the holder's process have tokens up to 1,023
// larger, still below the next grant's. The zero Holder means nobody.
type Holder struct {
	Owner  Owner         // empty: the lease was released, and AtLeast keeps the resource
	Mode   driver.Mode   // exclusive or shared
	Limit  int           // the requested limit; 0: none
	Weight int           // how much of the limit it uses, at least 1; 0 for an exclusive holder
	Token  uint64        // token of the grant; 0: unknown
	Held   time.Duration // time since the grant; 0: unknown
	Left   time.Duration // time until it expires unless renewed; 0: unknown
	TTL    time.Duration // TTL of its grant or last renewal, made TTL - Left ago; 0: unknown
	Note   string        // for people: Details().Text, or else host and program

	note string // as the engine keeps it, with details
}

// A Waiter describes one place in a queue.
type Waiter struct {
	Owner  Owner         // owner of the place, and later of the lease
	Mode   driver.Mode   // exclusive or shared
	Weight int           // how much of the limit it asks for, at least 1; 0 for an exclusive waiter
	Waited time.Duration // time since its first attempt
	Note   string        // for people: Details().Text, or else host and program

	note string // as the engine keeps it, with details
}

// An Owner identifies a holder or waiter; see [driver.Owner]. Evict and Resume take the value of
// its Reveal method.
type Owner = driver.Owner

// String is for people. Text from others is quoted, so that it cannot control a terminal.
func (h Holder) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Limit:%d Weight:%d Token:%d Held:%v Left:%v TTL:%v Note:%q}", h.Owner, h.Mode, h.Limit, h.Weight, h.Token, h.Held, h.Left, h.TTL, h.Note)
}

// GoString returns String with the type's name.
func (h Holder) GoString() string { return "leasehold.Holder" + h.String() }

// LogValue implements slog.LogValuer.
func (h Holder) LogValue() slog.Value { return slog.StringValue(h.String()) }

// String is for people. Text from others is quoted, so that it cannot control a terminal.
func (w Waiter) String() string {
	return fmt.Sprintf("{Owner:%s Mode:%d Weight:%d Waited:%v Note:%q}", w.Owner, w.Mode, w.Weight, w.Waited, w.Note)
}

// GoString returns String with the type's name.
func (w Waiter) GoString() string { return "leasehold.Waiter" + w.String() }

// LogValue implements slog.LogValuer.
func (w Waiter) LogValue() slog.Value { return slog.StringValue(w.String()) }

// later returns h as it is after d has passed.
func (h Holder) later(d time.Duration) Holder {
	aged := driver.Holder{Held: h.Held, Left: h.Left, TTL: h.TTL}.Later(d)
	h.Held, h.Left, h.TTL = aged.Held, aged.Left, aged.TTL
	return h
}

// Used returns how much of a limit the holders use: the sum of their weights.
func (s State) Used() (weight int64) {
	for _, h := range s.Holders {
		weight += int64(h.Weight)
	}
	return weight
}

func stateOf(s driver.State) State {
	state := State{Resource: s.Resource, Token: s.Fence, Limit: s.Limit}
	for _, h := range s.Holders {
		state.Holders = append(state.Holders, holderOf(h))
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, Waiter{w.Owner, w.Mode, w.Weight, w.Waited, details.Text(w.Note), w.Note})
	}
	return state
}

func holderOf(h driver.Holder) Holder {
	return Holder{h.Owner, h.Mode, h.Limit, h.Weight, h.Fence, h.Held, h.Left, h.TTL, details.Text(h.Note), h.Note}
}
