package leasehold

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// Defaults of Options.
const (
	// DefaultTTL is ten seconds: long enough for a few failed renewals, short enough
	// to wait for after a crash. The Redlock page of the Redis manual uses the same.
	DefaultTTL = 10 * time.Second
	// DefaultDrift is the Redlock page's allowance for clocks that run at different rates.
	DefaultDrift = 0.01
	// DefaultHandOver bounds by how much a busy process may delay the others.
	DefaultHandOver = 10 * time.Millisecond

	// driftFloor is added to the drift for the precision of timers, as on the Redlock page.
	driftFloor = 2 * time.Millisecond
	// Of the room above a grant's fence 1 to maxHandOvers are for hand-overs, the top is for a
	// lease that was resumed.
	resumed      = driver.FenceStep - 1
	maxHandOvers = resumed - 1
)

// Options configure a Locker. The zero value of each field is its default.
type Options struct {
	// TTL of leases; 0: DefaultTTL, or the driver's Features.SessionTTL where it has one. At
	// least the driver's Features.MinTTL.
	TTL time.Duration
	// Drift is the share of each TTL kept back because clocks run at different rates;
	// 0: DefaultDrift. It must be below 0.5.
	Drift float64
	// HandOver is how long after a grant an exclusive lease may go from one goroutine
	// of this Locker to the next without a call to the engine; 0: DefaultHandOver,
	// negative: never. Other processes wait that much longer for their turn, and an engine
	// that loses the grant meanwhile is not heard: Release then returns nil, and the next
	// one has a lease that may overlap with another process' and have a smaller token than
	// that. So the time counts from when the engine's answer came in, it is looked at again
	// when the next one takes over, which moves no deadline, and the engine is asked soon after.
	HandOver time.Duration
	// RequireFencing makes New refuse a driver without fencing tokens.
	RequireFencing bool
	// Note is shown to people who ask who holds a lease; "": host, program and process id.
	// UTF-8 without a NUL, at most driver.MaxNote bytes.
	Note string
	// Trace is told of what the Locker does; nil: nobody is, which costs nothing. See LogTrace,
	// TraceAll, and the modules leaseholdotel and leaseholdprom.
	Trace Trace
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.TTL == 0 {
		r.TTL = DefaultTTL
	}
	if r.Drift == 0 {
		r.Drift = DefaultDrift
	}
	if r.HandOver == 0 {
		r.HandOver = DefaultHandOver
	}
	if r.Note == "" {
		host, _ := os.Hostname() // a note without a host is still a note
		r.Note = strings.ToValidUTF8(fmt.Sprintf("%s %s[%d]", host, filepath.Base(os.Args[0]), os.Getpid()), "?")
	}
	if !(r.Drift > 0 && r.Drift < 0.5) {
		return r, fmt.Errorf("%w: Drift %v is not between 0 and 0.5", ErrInvalidOption, r.Drift)
	}
	if err := checkNote(r.Note); err != nil {
		return r, err
	}
	return r, nil
}

func checkNote(note string) error {
	if err := driver.CheckNote(note); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidOption, err)
	}
	return nil
}

// An Option changes one call.
type Option func(*request)

// Shared asks for a lease beside other shared ones; an exclusive lease excludes them all.
func Shared() Option { return func(r *request) { r.mode = driver.Shared } }

// Limit asks for one of at most n shared leases, as a semaphore does; it implies [Shared],
// and n is at least 1.
//
// The smallest limit of those who hold and of the one who asks counts: with two holders that
// came without one, a third is refused under Limit(2), and nobody who comes after a holder
// with Limit(2) makes them three. No lease is taken away for a smaller limit. So all who use a
// semaphore should name the same number; a new one counts in full when the leases of before
// have ended.
func Limit(n int) Option {
	return func(r *request) {
		if n < 1 {
			r.fail("Limit(%d) is below 1", n)
		}
		r.mode, r.limit = driver.Shared, n
	}
}

// TTL sets the length of this lease in place of [Options.TTL], within the same bounds. It is
// rounded up to what the engine counts in, see [driver.Features.Step].
func TTL(d time.Duration) Option {
	return func(r *request) { r.ttl, r.hasTTL = r.positive("TTL", d), true }
}

// Wait bounds how long a call waits for other holders; after that it returns [ErrBusy], or
// what [Locker.Acquire] says of an engine that has not answered. It counts from the call, the
// time that the engine takes to answer included; the call may return a little later, when
// what it left at the engine has been cleaned up. Without Wait only the context bounds it, and
// of both the one that ends first does. A negative d is [ErrInvalidOption].
//
// Wait(0) asks once, as [Locker.TryAcquire] does, which Wait does not change: the question
// is then bounded by the TTL, by 5 seconds and by the context. Of [Locker.AcquireAll] it
// bounds the whole, of [Locker.Lead] each campaign.
func Wait(d time.Duration) Option {
	return func(r *request) {
		if d < 0 {
			r.fail("Wait(%v) is negative", d)
		}
		r.wait = d
	}
}

// NoRenew leaves the lease to end after its TTL unless [Lease.Extend] is called.
func NoRenew() Option { return func(r *request) { r.noRenew = true } }

// MaxHold ends the lease d after it was granted, whatever its holder does: its context ends
// with a cause that matches [ErrLost], renewals stop, and others are let in when the TTL
// has run out.
func MaxHold(d time.Duration) Option {
	return func(r *request) { r.maxHold = r.positive("MaxHold", d) }
}

// AtLeast keeps the resource held until d after the grant, even when it is released
// earlier, without an owner: for jobs that must not run again too soon. Engines
// without Lingers in their [driver.Features] refuse it with [ErrUnsupported].
//
// It holds for a lease that is released. One that is lost, for its holder was killed or by
// [MaxHold], ends with its TTL, however much of d is left; [OncePer] has a TTL as long as d.
// A holder may hold for longer than d: then Release frees the resource at once. Others
// wait for the rest of d as they wait for a holder, so that a shorter [Wait] ends in
// [ErrBusy]. The lease is not handed over inside the process.
func AtLeast(d time.Duration) Option {
	return func(r *request) { r.atLeast = r.positive("AtLeast", d) }
}

// Reentrant allows a holder to acquire its resource again with its lease's context. The
// nested lease shares token and deadline; the resource is given up by the last Release.
// A holder of a shared lease cannot nest an exclusive one: [ErrDeadlock].
func Reentrant() Option { return func(r *request) { r.reentrant = true } }

// Note replaces [Options.Note] for this lease, with the same bounds.
func Note(s string) Option { return func(r *request) { r.note = s } }
