package leasehold

import (
	"cmp"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// Defaults of Options.
const (
	// DefaultTTL is ten seconds: long enough for a few failed renewals, short enough to wait for
	// after a crash. The Redlock page of the Redis manual uses the same value.
	DefaultTTL = 10 * time.Second
	// DefaultDrift is the Redlock page's allowance for clocks that run at different rates.
	DefaultDrift = 0.01
	// DefaultHandOver limits how long a busy process may delay other processes.
	DefaultHandOver = 10 * time.Millisecond

	// driftFloor is added to the drift for the precision of timers, as on the Redlock page.
	driftFloor = 2 * time.Millisecond
	// Of the numbers above a grant's fence, 1 to maxHandOvers are for hand-overs. The last is
	// for a lease that was resumed.
	resumed      = driver.FenceStep - 1
	maxHandOvers = resumed - 1
)

// Options configure a Locker. The zero value of each field is its default.
type Options struct {
	// TTL is the length of leases, which are renewed every third of it. Zero means DefaultTTL, or
	// the driver's Features.SessionTTL if it has one. It must be at least the driver's
	// Features.MinTTL.
	TTL time.Duration
	// Drift is the fraction of each TTL that the deadline leaves out, because clocks run at
	// different rates. Zero means DefaultDrift. It must be below 0.5.
	Drift float64
	// HandOver is how long after a grant an exclusive lease may pass from one goroutine of this
	// Locker to the next without a call to the engine. Zero means DefaultHandOver. A negative
	// value turns hand-overs off.
	//
	// Other processes wait that much longer for their turn. If the engine loses the grant
	// meanwhile, this process does not notice at once. Release returns nil, and the lease of the
	// next goroutine may overlap with another process's, whose token is larger. To keep that short,
	// the time counts from the engine's answer and is checked again when the next goroutine takes
	// over. A hand-over moves no deadline, and the lease is renewed soon after.
	//
	// Until then the engine shows the note and the details of the goroutine that had the lease
	// before. On an engine that cannot change them, a lease is handed over only to the same note.
	HandOver time.Duration
	// Keep is how long a released lease may be kept for the next call of this Locker. Zero, the
	// default, turns it off; the minimum is 10 ms. A released exclusive lease is kept if no
	// other process waits for it. The next Acquire or TryAcquire takes it without a call to the
	// engine, with the next token. So it is cheap to lock the same name again and again.
	//
	// A lease can be kept, and taken by the next call, only within Keep of the engine's last
	// confirmation. While the lease is used, it is renewed twice in that time, in the background. A
	// kept lease is given back if no call uses it, or if another process waits for it. That happens
	// at once on engines with Recalls in their [driver.Features], else within Keep. A grant that
	// another process has waited for is not kept again. A TryAcquire of another process waits until
	// the lease is given back, for about two round trips. If this process ends without Close,
	// others wait for the rest of the TTL.
	//
	// If the engine loses the grant meanwhile, this process does not notice at once: see HandOver,
	// which must not be negative. Leases with NoRenew, AtLeast, MaxHold, Yields or a Details.Kind
	// are not kept, nor are leases of Lead and Resume. Neither is a lease whose Owner was read, or
	// whose TTL or note was changed. A call for a lease of another kind or TTL first gives the kept
	// one back. New returns ErrUnsupported for engines without Keeps in their Features.
	Keep time.Duration
	// RequireFencing makes New refuse a driver without fencing tokens.
	RequireFencing bool
	// Note sets Details.Text, the line of text that others see for a holder or waiter. It is UTF-8
	// without NUL, of at most driver.MaxNote bytes. Empty means host, program and process id.
	Note string
	// Details are what others see for a holder or waiter. Zero values of Host, User, PID,
	// Program and Started are filled in if there is room. The last two are filled in only if PID
	// is this process's.
	Details Details
	// Trace is called with each event of the Locker. Nil costs nothing. See LogTrace, TraceAll,
	// and the modules leaseholdotel and leaseholdprom.
	Trace Trace
}

// withDefaults returns the options with defaults for zero fields. It checks Drift, which needs no
// engine.
func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.TTL = cmp.Or(r.TTL, DefaultTTL)
	r.Drift = cmp.Or(r.Drift, DefaultDrift)
	r.HandOver = cmp.Or(r.HandOver, DefaultHandOver)
	if !(r.Drift > 0 && r.Drift < 0.5) {
		return r, fmt.Errorf("%w: Drift %v is not between 0 and 0.5", ErrInvalidOption, r.Drift)
	}
	return r, nil
}

// An Option changes one call.
type Option func(*request)

// Shared requests a lease that may overlap with other shared leases, but not with an exclusive
// one.
func Shared() Option { return func(r *request) { r.mode = driver.Shared } }

// Limit requests one of at most n shared leases, as a semaphore does, or leases whose weights
// together are at most n; see [Weight]. It implies [Shared]. n must be from 1 to [driver.MaxWeight].
//
// All users of a semaphore should give the same n. If they do not, the smallest counts, among the
// holders' limits and the caller's. Beside two holders without a limit, Limit(2) is refused. Beside
// two holders of which one has Limit(2), a caller without a limit is refused. A smaller limit ends
// no lease: it takes full effect when the earlier leases have ended.
func Limit(n int) Option {
	return func(r *request) {
		if n < 1 || n > driver.MaxWeight {
			r.fail("Limit(%d) is not between 1 and %d", n, driver.MaxWeight)
		}
		r.mode, r.limit = driver.Shared, n
	}
}

// Weight lets the lease use w of the limit, such as the memory that a job takes. Without it a lease
// uses 1. It implies [Shared]. w must be from 1 to [driver.MaxWeight]. A call whose weight is above
// its limit returns [ErrTooHeavy].
//
// Calls are served in the order of their first attempt, whatever their weights. A heavy call at the
// head of the queue waits until there is room for it, and light ones behind it wait too, even if
// there is room for them. Otherwise a stream of light calls would keep a heavy one waiting forever.
// Give light work a name of its own if it must not wait.
func Weight(w int) Option {
	return func(r *request) {
		if w < 1 || w > driver.MaxWeight {
			r.fail("Weight(%d) is not between 1 and %d", w, driver.MaxWeight)
		}
		r.mode, r.weight = driver.Shared, w
	}
}

// TTL sets the length of this lease in place of [Options.TTL], with the same bounds. It is
// rounded up to a multiple of [driver.Features.Step].
func TTL(d time.Duration) Option {
	return func(r *request) { r.ttl = r.positive("TTL", d) }
}

// Wait limits how long a call waits for other holders. Without it, only the context does. After d
// the call returns [ErrBusy], or the error that [Locker.Acquire] documents for an engine that has
// not answered. The time counts from the start of the call and includes the engine's answers. The
// call may return a little later, after it has cleaned up at the engine. A call with a negative d
// returns [ErrInvalidOption].
//
// Wait(0) asks once, like [Locker.TryAcquire]. The request is then limited by the TTL, by 5 seconds
// and by the context. Wait limits the whole of [Locker.AcquireAll], and each campaign of
// [Locker.Lead]. TryAcquire ignores it.
func Wait(d time.Duration) Option {
	return func(r *request) {
		if d < 0 {
			r.fail("Wait(%v) is negative", d)
		}
		r.wait = d
	}
}

// NoRenew turns renewal off: the lease ends after its TTL unless [Lease.Extend] is called.
func NoRenew() Option { return func(r *request) { r.noRenew = true } }

// MaxHold ends the lease d after its grant, whatever its holder does. Its context ends with a
// cause that matches [ErrLost], renewals stop, and the engine grants the resource to others once
// the TTL is over.
func MaxHold(d time.Duration) Option {
	return func(r *request) { r.maxHold = r.positive("MaxHold", d) }
}

// AtLeast keeps the resource held until d after the grant, even if the lease is released
// earlier. Use it for jobs that must not run again too soon. After the release the resource is
// held without an owner. Engines without Lingers in their [driver.Features] refuse AtLeast with
// [ErrUnsupported].
//
// AtLeast applies only to a lease that is released. A lease that is lost ends with its TTL, even if
// d is longer, as when its holder is killed or [MaxHold] ends it. [OncePer] avoids this: its TTL is
// as long as d. If the lease was held for longer than d, Release frees the resource at once. Others
// wait for the rest of d as they wait for a holder, so a shorter [Wait] ends in [ErrBusy]. The
// lease is not handed over inside the process.
func AtLeast(d time.Duration) Option {
	return func(r *request) { r.atLeast = r.positive("AtLeast", d) }
}

// Reentrant lets a holder acquire its resource again with its lease's context. The nested lease
// shares token and deadline, and the last Release frees the resource. [ErrDeadlock] refuses an
// exclusive lease inside a shared one, and a heavier one inside a lighter one.
func Reentrant() Option { return func(r *request) { r.reentrant = true } }

// Note replaces [Options.Note] for this lease, with the same bounds. After a hand-over inside the
// process it is shown a little later: see [Options.HandOver].
func Note(s string) Option { return func(r *request) { r.ownDetails().Text = s } }
