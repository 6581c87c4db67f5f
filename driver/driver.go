// Package driver is the contract between the core of Leasehold and an engine. Only authors of
// engines need it.
//
// Every call has three outcomes: yes, no ([ErrBusy], [ErrLost]) or unknown (any other error: the
// call may have been applied). A driver logs nothing and leaves repetition to the core, with two
// exceptions. It may repeat a step if the failure proves that nothing was applied. It may also
// repeat one that got no answer over a connection, if applying it twice does no harm. A driver
// may also remove what its own process left behind.
//
// The engine's clock decides expiry, and the core's clock the deadline. A driver uses its own
// clock only to bound its calls and waits, and to report in time that its session may end.
package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sentinels that drivers return, wrapped or bare. Package leasehold exports the same values.
var (
	ErrBusy        = errors.New("busy")                       // another owner holds the resource, or is ahead in the queue
	ErrLost        = errors.New("lease lost")                 // the lease ended without Release; wrap it with the reason
	ErrEvicted     = errors.New("evicted")                    // why the lease was lost; see Evicted
	ErrUnsupported = errors.New("not supported by engine")    // the engine can never serve the request
	ErrClosed      = errors.New("closed")                     // the driver or the Locker was closed
	ErrInvalidName = errors.New("invalid resource name")      // see CheckName
	ErrNotYet      = errors.New("nothing is granted yet")     // from Try: the engine answers, but cannot decide now; waiters try again
	ErrCorrupt     = errors.New("store is damaged or alien")  // the engine's data is not Leasehold's; nothing was changed
	ErrDenied      = errors.New("the store refuses the user") // the user is unknown or lacks a right
	ErrReadOnly    = errors.New("read-only")                  // the engine answers but accepts no writes: it grants and renews nothing
	ErrFull        = errors.New("full")                       // the engine answers but has no space: it grants nothing
	ErrTooHeavy    = errors.New("heavier than the limit")     // no number of releases makes room for the claim; only another limit does
	ErrURL         = errors.New("store URL")                  // from OpenURL: the URL is invalid
)

// A Driver serves claims on one engine. It is safe for concurrent use. It may implement
// [Operator], [BatchRenewer], [BatchTrier], [Checker] and [Identifier]. A wrapper must forward
// those that it wants to keep.
type Driver interface {
	// Claim returns a claim for req. It does no I/O. It returns ErrUnsupported for requests that
	// the engine can never serve. The core has checked name, owner, mode and TTL.
	Claim(req Request) (Claim, error)
	// Features returns what the engine promises. It does no I/O and always returns the same
	// value.
	Features() Features
	// Close ends the driver's own watches and sessions, not the caller's client. Leases stay
	// held, unless they depend on a session: then Close first calls Lost for their holders.
	//
	// From then on all calls on its claims return ErrClosed at once and send nothing to the
	// engine. They may return ErrLost where the driver knows that nothing is held. A Release
	// refused in this way has released nothing. A call in flight may return ErrClosed too: its
	// outcome is unknown.
	Close() error
}

// A Claim is one owner's standing request for one resource: refused or queued, then held, then
// released or lost. It may implement [FenceLifter] and [Forgetter].
//
// Calls on one Claim do not overlap. A call whose ctx has ended must not take effect after a
// later call has returned. Nor must a Renew for less take effect after a later Renew has
// returned.
//
// A call that ended because of ctx returns an error that wraps ctx.Err(). It must not wrap the
// cause of ctx, because the cause belongs to the caller and may match the errors of this
// package.
type Claim interface {
	// Try makes one attempt and never waits for other holders. If the claim is held already, Try
	// restarts the lease and returns the same fence. It keeps a queued place alive, and queues
	// again if the place is gone.
	//
	// A refusal is a *Busy, or ErrBarred. A waiter may be refused by a server that has not yet
	// seen another's release; it is woken once the server has. After any other error the outcome
	// is unknown: call Try again, or Release.
	//
	// No Release follows a refusal without Queue. With Features.Bars, earlier calls of the claim
	// that had no answer are then never granted.
	Try(ctx context.Context) (Grant, error)
	// Renew restarts the lease with ttl, counted by the engine from the moment it serves the
	// call. It never revives a lease that has ended. ErrLost is final. After any other error the
	// outcome is unknown, and the earlier of both deadlines stands. With a shorter ttl than
	// before, the engine may keep the lease for longer than the Grant says.
	Renew(ctx context.Context, ttl time.Duration) (Grant, error)
	// Release gives up the grant or the place in the queue, and disarms Wake and Lost. how says
	// what it leaves behind. ErrLost means that there was nothing to give up. After an unknown
	// outcome Release may be repeated with the same how, or later with less of Linger. After one
	// that returned nil there is nothing to give up until the next Try or Renew, whatever the owner
	// has by another claim. With End.Bar it also gives up such a claim.
	Release(ctx context.Context, how End) error
	// Note replaces the note of the grant and changes nothing else. A hold that lingers keeps
	// the last note. ErrLost means that the claim holds nothing. Note returns [ErrUnsupported]
	// without Features.Notes.
	Note(ctx context.Context, note string) error
}

// An End says what a Release leaves behind. The zero End leaves nothing.
type End struct {
	// Linger, if not 0, replaces the grant with an ownerless hold of that length. ErrLost then
	// means that there was no grant; a place in the queue may still exist.
	Linger time.Duration

	// Bar, if not 0, also bars the owner for at least that long, whether or not there was
	// something to give up. Every Try of the owner, in any process, is then refused with
	// [ErrBarred], or as busy while others have the resource. This stops a Try that was sent
	// earlier and arrives late. The claim is not used again after that, except for another Release
	// without Linger.
	Bar time.Duration
}

// Check returns [ErrUnsupported] if an engine with these features cannot end a lease in this
// way. Release then returns that error and has released nothing.
func (e End) Check(f Features) error {
	switch {
	case e.Linger > 0 && !f.Lingers:
		return fmt.Errorf("%w: leases that linger", ErrUnsupported)
	case e.Bar > 0 && !f.Bars:
		return fmt.Errorf("%w: owners that are kept out", ErrUnsupported)
	}
	return nil
}

// ErrBarred refuses a Try whose owner was barred by [End].
var ErrBarred = fmt.Errorf("%w: its owner was given up", ErrLost)

// Mode says with whom a holder shares the resource.
type Mode uint8

const Exclusive, Shared Mode = 0, 1 // alone; or with other Shared holders, up to Limit

// Uses returns how much of a limit a claim of mode m and this weight uses: 0 if it is Exclusive, else
// at least 1.
func (m Mode) Uses(weight int) int {
	if m == Exclusive {
		return 0
	}
	return max(weight, 1)
}

// MaxWeight is the largest weight of a claim.
const MaxWeight = 1<<31 - 1

// A Request describes a Claim.
type Request struct {
	Resource string        // name, see CheckName; drivers must escape it injectively
	Owner    string        // unique to this claim: 160 random bits
	Mode     Mode          // Exclusive or Shared
	Limit    int           // most weight of Shared grants at once; the smallest of all limits counts; 0: none
	Weight   int           // how much of the limit a Shared grant uses, at most MaxWeight; see Mode.Uses
	TTL      time.Duration // requested length of the lease
	Queue    bool          // the caller will call Try again: keep its place for seconds without a Try
	Note     string        // for people: host, pid, purpose

	// Fresh says that nobody else knows Owner before the grant, so no other process tries with it. It
	// may be ignored. An engine need not check then whether another process has taken over the place.
	Fresh bool

	// Lost, if not nil, is called at most once, when the driver learns by itself that the grant
	// ended early. cause wraps ErrLost. The driver must not hold a mutex during the call. Lost is
	// not a channel, which would need a goroutine per lease.
	Lost func(cause error)

	// Wanted, if not nil, is called while this claim holds its grant and another owner has a place
	// in the queue of the resource. A call comes at the grant, when another place comes, and with
	// the answer to each Renew, also by a BatchRenewer. One call may stand for several of these, and
	// there may be calls that none of them explains. No call comes because of the claim's own place,
	// because of a refused Try without Queue, or while the claim only waits. Calls stop when the
	// lease is lost or Release begins, except for one that is under way.
	//
	// A call may come before the answer with the grant, and calls may overlap. Wanted
	// returns soon. The driver must not hold a mutex during the call. The waiter may be gone by
	// then: Wanted is a reason to look, not a promise. See Features.Tells and Features.Recalls; a
	// driver without either ignores it.
	Wanted func()

	// WantedOnce says that one call of Wanted is enough until the answer to the next Renew. It saves
	// an engine the notices of further places, and may be ignored.
	WantedOnce bool
}

// A Grant is a lease granted by the engine.
type Grant struct {
	TTL   time.Duration // granted length; the caller counts from before its call
	Fence uint64        // a multiple of FenceStep, above every earlier grant's of the resource; 0 without Features.Fencing
}

// Busy is the refusal of a Try; errors.Is(err, [ErrBusy]) holds.
type Busy struct {
	Wake   <-chan struct{} // armed before the state was read; may close early; nil: poll
	Retry  time.Duration   // latest useful retry, from the answer on, such as the end of the holder's lease; 0: unknown
	Holder Holder          // a holder, as far as the engine reports it

	// Granted, if not nil, may deliver the grant that this Try was refused, before Wake closes,
	// without another Try. Its TTL counts from before this Try was called, so part of it may
	// have passed. A caller that does not receive it gets it from the next Try, or gives it up
	// by Release.
	Granted <-chan Grant
}

// Error returns the text of [ErrBusy] alone. The holder's note is for the caller to show.
func (*Busy) Error() string { return ErrBusy.Error() }

// Is reports whether target is [ErrBusy].
func (*Busy) Is(target error) bool { return target == ErrBusy }

// Holder describes one live lease. Durations are measured by the engine's clock.
type Holder struct {
	Owner  Owner         // zero: a hold that lingers
	Mode   Mode          // as requested
	Limit  int           // requested limit; 0: none
	Weight int           // of its Request, at least 1; 0 for Exclusive
	Fence  uint64        // fence of the grant; 0: unknown, as with foreign clients
	Held   time.Duration // time since the grant; 0: unknown
	Left   time.Duration // time until it expires unless renewed; 0: unknown
	TTL    time.Duration // TTL of its grant or last renewal, made TTL - Left ago; 0: unknown
	Note   string        // from its Request, or from a later Claim.Note
}

// Later returns h as it is known when d has passed: Held has grown and Left has shrunk. Left and
// TTL are 0 if h must have been renewed since, or has ended.
func (h Holder) Later(d time.Duration) Holder {
	if h.Held > 0 {
		h.Held += d
	}
	if h.Left = max(0, h.Left-d); h.Left == 0 {
		h.TTL = 0
	}
	return h
}

// Features declares what an engine promises. Requests for missing features fail with
// [ErrUnsupported].
type Features struct {
	Engine  string        // name for metrics and spans: one lower-case word, such as redis
	Fencing bool          // grants carry growing fences
	Shared  bool          // Mode Shared and Limit
	Weights bool          // Request.Weight above 1
	Limits  bool          // Operator.SetLimit
	Fair    bool          // grants in the order of the first Try
	Wakes   bool          // Busy.Wake is set: waiters need not poll
	Resumes bool          // another process may Renew and Release by Owner alone
	Lingers bool          // End.Linger
	Bars    bool          // End.Bar
	Notes   bool          // Claim.Note
	Raises  bool          // Operator.RaiseFence
	Tells   bool          // Request.Wanted is called, with the answer to a Renew at the latest
	Recalls bool          // Request.Wanted is called promptly, without a Renew; implies Tells
	Keeps   bool          // several Renews a second are an ordinary load: leasehold.Options.Keep may be used; implies Tells
	MinTTL  time.Duration // the shortest TTL that is accepted
	LeastBy string        // source of MinTTL, such as an option's name, for error messages; "": none
	Step    time.Duration // TTLs are rounded up to a multiple of Step; 0: any

	// SessionTTL, if not 0, is the TTL of all leases, and other TTLs are refused. All leases
	// depend on one session of the driver, which outlives each of them. A grant is shorter if
	// the engine may not have received a sign of life of the session for too long.
	SessionTTL time.Duration
}
