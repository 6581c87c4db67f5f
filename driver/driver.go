// Package driver is the contract between the core of Leasehold and an engine.
//
// Only authors of engines need it. Every call has three outcomes: yes, no ([ErrBusy],
// [ErrLost]) or unknown (any other error: the call may have been applied). A driver logs
// nothing, and leaves all repeating to the core but for what it may do by itself: repeat a
// step whose failure proves that nothing was applied, or that does no harm when it is applied
// twice and has no answer over one connection; and remove what its own process left behind. The engine's clock decides expiry, the core's the deadline. A driver looks at
// its own to bound its calls and waits, and to tell in time that a session of its own may end.
package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sentinels that drivers return, wrapped or bare. Package leasehold exports the same values.
var (
	ErrBusy        = errors.New("busy")                       // refused: somebody else holds it, or is ahead
	ErrLost        = errors.New("lease lost")                 // ended without Release; wrap it with the reason
	ErrEvicted     = errors.New("evicted")                    // why a lease was lost; see Evicted
	ErrUnsupported = errors.New("not supported by engine")    // the engine can never serve the request
	ErrClosed      = errors.New("closed")                     // the driver or the Locker was closed
	ErrInvalidName = errors.New("invalid resource name")      // see CheckName
	ErrNotYet      = errors.New("nothing is granted yet")     // of Try: the engine answers, but cannot decide now; waiters ask again
	ErrCorrupt     = errors.New("store is damaged or alien")  // the engine's data is not Leasehold's; nothing was changed
	ErrDenied      = errors.New("the store refuses the user") // it does not know the user, or the user lacks a right
	ErrReadOnly    = errors.New("read-only")                  // the engine answers and takes no writes: it grants and renews nothing
	ErrFull        = errors.New("full")                       // the engine answers and has no room: it grants nothing
	ErrURL         = errors.New("store URL")                  // of OpenURL: the URL cannot be used as it is written
)

// A Driver serves claims on one engine. It is safe for concurrent use. It may implement [Operator],
// [BatchRenewer], [Checker] and [Identifier]. A wrapper forwards those that it is to keep.
type Driver interface {
	// Claim does no I/O. It returns ErrUnsupported for what the engine can never serve.
	// The core has checked name, owner, mode and TTL.
	Claim(req Request) (Claim, error)
	// Features does no I/O and always returns the same value.
	Features() Features
	// Close ends the driver's own watches and sessions, not the caller's client. What is held
	// stays held, but for what hangs on a session: its holders are told first, by Lost. All
	// calls on its claims return ErrClosed from then on, at once, and ask the engine nothing;
	// or ErrLost, where the driver knows that there is nothing. A Release so refused has
	// released nothing. A call in flight may return ErrClosed too: its outcome is unknown.
	Close() error
}

// A Claim is one owner's standing request for one resource: refused or queued, then
// held, then released or lost. Calls on one Claim do not overlap, and one whose ctx ended
// must not take effect after a later one has returned, nor a Renew for less after a later
// Renew has. An error matches none of this package because of the cause of ctx, which is the caller's:
// a call that ctx has ended says so by ctx.Err(). It may implement [FenceLifter] and [Forgetter].
type Claim interface {
	// Try makes one attempt and never waits for other holders. Held already, it
	// restarts the lease and returns the same fence. It keeps a queued place alive and
	// queues anew if the place is gone. A refusal is a *Busy, or ErrBarred; who waits may get one though another's
	// Release has returned, from a server that has not heard of it, and is woken when it has. After any other
	// error the outcome is unknown: call Try again, or Release.
	Try(ctx context.Context) (Grant, error)
	// Renew restarts the lease with ttl, counted by the engine from the moment it
	// serves the call. ErrLost is final. Any other error leaves the outcome unknown, and
	// the earlier of both deadlines stands. It never resurrects a lease that has ended. With
	// less than before, the engine may keep the lease for longer than the Grant says.
	Renew(ctx context.Context, ttl time.Duration) (Grant, error)
	// Release gives up the grant or the place in the queue, disarms Wake and Lost, and leaves
	// behind what how says. ErrLost: there was nothing to give up. It may be repeated after an
	// unknown outcome, with the same how.
	Release(ctx context.Context, how End) error
	// Note replaces the note of the grant and changes nothing else. What lingers keeps the
	// last note. ErrLost: it holds nothing. [ErrUnsupported] without Features.Notes.
	Note(ctx context.Context, note string) error
}

// An End says what a Release leaves behind. The zero End leaves nothing.
type End struct {
	// Linger, if not 0, is for how long an ownerless hold takes the place of the grant. ErrLost:
	// there was no grant, and a place in the queue may still be there.
	Linger time.Duration

	// Bar, if not 0, also leaves a mark, whether or not there was something to give up: for so
	// long at least, each Try of the owner is refused with [ErrBarred], in whatever process it is
	// made, or as busy while others have the resource. A Try that was sent before, and comes
	// late, is what the mark is for. The claim is not used again after that.
	Bar time.Duration
}

// Check returns [ErrUnsupported] if an engine with these features cannot end a lease like that:
// its Release then has released nothing.
func (e End) Check(f Features) error {
	switch {
	case e.Linger > 0 && !f.Lingers:
		return fmt.Errorf("%w: leases that linger", ErrUnsupported)
	case e.Bar > 0 && !f.Bars:
		return fmt.Errorf("%w: owners that are kept out", ErrUnsupported)
	}
	return nil
}

// ErrBarred refuses a Try whose owner was given up; see [End].
var ErrBarred = fmt.Errorf("%w: its owner was given up", ErrLost)

// Mode says with whom a holder shares the resource.
type Mode uint8

const Exclusive, Shared Mode = 0, 1 // alone; with other Shared holders, up to Limit

// A Request describes a Claim.
type Request struct {
	Resource string        // name, see CheckName; drivers escape injectively
	Owner    string        // unique to this claim: 160 random bits
	Mode     Mode          // Exclusive or Shared
	Limit    int           // most Shared grants at once; 0: no limit. The smallest of all live holders' limits counts
	TTL      time.Duration // lease asked for
	Queue    bool          // the caller will Try again: keep its place, for seconds without a Try
	Note     string        // for people: host, pid, what for

	// Lost, if not nil, is called at most once when the driver learns on its own that
	// the grant ended early; cause wraps ErrLost. The driver holds no mutex then.
	Lost func(cause error)
}

// A Grant is the engine's yes.
type Grant struct {
	TTL   time.Duration // as granted; the caller counts from before its call
	Fence uint64        // a multiple of FenceStep, above every earlier grant's of the resource; 0 without Features.Fencing
}

// Busy is the refusal of a Try; errors.Is(err, [ErrBusy]) holds.
type Busy struct {
	Wake   <-chan struct{} // armed before the state was read; nil: poll; may close early
	Retry  time.Duration   // latest useful retry, counted from the answer, such as what is left of the holder's lease; 0: unknown, the core's pace
	Holder Holder          // one who holds it, as far as the engine tells

	// Granted, if not nil, may bring the grant that this Try was refused, before Wake
	// closes: the engine gave it without being asked again. Its TTL counts from before
	// this Try was called, and what is left of it may be less than was asked for. Who
	// does not take it finds it by the next Try, or gives it up by Release.
	Granted <-chan Grant
}

// Error says no more than [ErrBusy]: what the holder wrote is for the caller to show.
func (*Busy) Error() string { return ErrBusy.Error() }

// Is reports whether target is [ErrBusy].
func (*Busy) Is(target error) bool { return target == ErrBusy }

// Holder describes one live lease. Durations are by the engine's clock.
type Holder struct {
	Owner Owner         // zero: the grant lingers, and is nobody's
	Mode  Mode          // as requested
	Limit int           // the limit that its Request named; 0: none
	Fence uint64        // of its grant; 0: unknown, such as that of a holder who is no client of ours
	Held  time.Duration // since the grant; 0: unknown
	Left  time.Duration // until it expires unless renewed; 0: unknown
	TTL   time.Duration // of its grant or its last renewal, which was TTL - Left ago; 0: unknown
	Note  string        // of its Request, or what Claim.Note put there later
}

// Later is what is known of h when d has passed: it has been held for longer, and has less left. Left and TTL are 0
// when h must have been renewed since, or has ended.
func (h Holder) Later(d time.Duration) Holder {
	if h.Held > 0 {
		h.Held += d
	}
	if h.Left = max(0, h.Left-d); h.Left == 0 {
		h.TTL = 0
	}
	return h
}

// Features declares what an engine promises. What is false is refused with [ErrUnsupported].
type Features struct {
	Engine  string        // its name for metrics and spans: one word in lower case, such as redis
	Fencing bool          // grants carry growing fences
	Shared  bool          // Mode Shared and Limit
	Fair    bool          // grants in the order of the first Try
	Wakes   bool          // Busy.Wake is set: waiters need not poll
	Resumes bool          // another process may Renew and Release by Owner alone
	Lingers bool          // End.Linger
	Bars    bool          // End.Bar
	Notes   bool          // Claim.Note
	Raises  bool          // Operator.RaiseFence
	MinTTL  time.Duration // shorter TTLs are refused
	LeastBy string        // what MinTTL comes from, for the refusal, such as an option's name; "": nothing to be told
	Step    time.Duration // TTLs are rounded up to a multiple of Step; 0: any

	// SessionTTL, if not 0, is the TTL of all leases: they hang on one session of the
	// driver, which outlasts them. Others are refused. A grant is shorter when the engine
	// may not have heard of the session for too long.
	SessionTTL time.Duration
}
