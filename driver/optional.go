package driver

import (
	"context"
	"fmt"
	"time"
)

// Waiter describes one place in a queue.
type Waiter struct {
	Owner  Owner         // of its Request
	Note   string        // of its Request
	Mode   Mode          // of its Request
	Weight int           // of its Request, at least 1; 0 for Exclusive
	Waited time.Duration // time since its first Try
}

// State is an engine's view of one resource. A free resource has no holders.
type State struct {
	Resource string   // name
	Fence    uint64   // last granted or raised fence, a multiple of FenceStep; 0: unknown
	Limit    int      // set by [Operator.SetLimit]; 0: none
	Holders  []Holder // sorted by fence
	Waiters  []Waiter // in order of the queue
	// Evicted are leases that [Operator.Evict] has ended, until they would have ended anyway. It is
	// empty where the engine keeps no reasons, or only the holder can ask for its own.
	Evicted []Eviction
}

// An Eviction describes a lease that was evicted.
type Eviction struct {
	Owner  Owner  // who had the lease
	Fence  uint64 // of the lease
	Reason string // as given to [Operator.Evict]
}

// An Operator is a Driver that can inspect and repair locks.
type Operator interface {
	// Inspect returns the state of one resource; a free one has no holders. If data is damaged,
	// the error is [ErrCorrupt], and State has what could be read.
	Inspect(ctx context.Context, resource string) (State, error)
	// List returns a page of the resources with holders or waiters whose names start with
	// prefix. It has at most limit States, where limit is at least 1. A page may be short, even
	// empty, although more follow. next is the start of the next page, or "" after the last one.
	// after is "" for the first page, or a next that an earlier call with the same prefix
	// returned, in any process. Any other value is an error. It may come from someone who must not
	// see all names, so no value makes List show a name without the prefix.
	//
	// A page has each name once, sorted in byte order. So is the sequence of pages if the engine can
	// sort. Otherwise pages are in the engine's order, and a name may appear on several. A resource
	// that is in use throughout appears at least once, but for exceptions that the driver documents;
	// one that comes or goes meanwhile may be missing.
	//
	// Damaged data does not hide other resources: the error is [ErrCorrupt] and names what is
	// damaged, and states and next are valid. After any other error they are empty, and the call
	// may be repeated.
	List(ctx context.Context, prefix, after string, limit int) (states []State, next string, err error)
	// Evict forcibly ends the lease of owner and raises the fence. ErrLost means that owner did not
	// hold it. The reason is reported to the holder if the engine can. An empty owner ends one hold
	// that lingers, which Inspect shows with an empty owner.
	Evict(ctx context.Context, resource, owner, reason string) error
	// RaiseFence raises the fence of a resource, so that later grants are above it. It accepts
	// the tokens that [CheckRaise] accepts. It returns ErrUnsupported without Features.Raises.
	RaiseFence(ctx context.Context, resource string, fence uint64) error
	// SetLimit sets a limit of the resource. Of this limit and the limits of Requests, the smallest
	// counts. It stays until it is set anew; 0 removes it. It is there before SetLimit returns, and
	// no clean-up of a resource that nobody uses removes it. A higher limit admits those who fit at
	// once. A lower one ends no lease, and admits nobody until there is room below it: not even
	// those who had queued before. Exclusive claims ignore it.
	//
	// After an error other than [ErrUnsupported] and [ErrClosed] the outcome is unknown, and the
	// call may be repeated. SetLimit returns ErrUnsupported without Features.Limits. It accepts
	// limits from 0 to [MaxWeight].
	SetLimit(ctx context.Context, resource string, limit int) error
}

// Evicted returns the error of a holder whose lease was evicted for the given reason.
func Evicted(reason string) error { return fmt.Errorf("%w: %w: %s", ErrLost, ErrEvicted, reason) }

// A Forgetter is a Claim whose driver keeps state between calls. Forget discards that state
// without I/O. The grant or place stays at the engine, for another process. No call may follow. A
// Claim whose grant hangs on the driver's session is no Forgetter: the service releases it instead.
type Forgetter interface {
	Forget()
}

// A FenceLifter is a Claim that raises its resource's fence as [Operator.RaiseFence] does, but
// only while it holds its grant. Otherwise it returns [ErrLost].
type FenceLifter interface {
	LiftFence(ctx context.Context, fence uint64) error
}

// A BatchRenewer is a Driver that renews many of its claims in few round trips.
//
// RenewAll does for each Renewal what Renew does, and sets its Grant and Err. It returns when
// ctx ends at the latest. No two Renewals are for the same claim. A Renewal without an answer,
// because its server, slot or row hangs, does not delay the others. All are sent before half of
// ctx's time has passed, and answers count even if others are missing.
//
// RenewAll calls Answer for each Renewal as soon as it is answered and its claim can be called
// again. Renewals for which Answer was not called are complete when RenewAll returns.
type BatchRenewer interface {
	RenewAll(ctx context.Context, renewals []Renewal)
}

// A Renewal is one claim's part of a RenewAll.
type Renewal struct {
	Claim Claim         // set by the caller: the claim to renew
	TTL   time.Duration // set by the caller: the new length of the lease
	Grant Grant         // set by RenewAll, where Err is nil
	Err   error         // set by RenewAll: what Claim.Renew would return

	// Answered, if not nil, is called by Answer, on any goroutine, maybe concurrently with
	// others of the same RenewAll. The core schedules the next renewal there.
	Answered func()
}

// Answer sets the result of the renewal and calls Answered. It is called at most once, before
// RenewAll returns. By then no part of the driver may use the claim for it any more: the next
// call to the claim may begin while RenewAll waits for other renewals.
func (r *Renewal) Answer(g Grant, err error) {
	r.Grant, r.Err = g, err
	if r.Answered != nil {
		r.Answered()
	}
}

// An Identifier is a Driver that can identify the server it talks to. The id is the same for
// every connection to one server, and differs between servers.
type Identifier interface {
	Identify(ctx context.Context) (id string, err error)
}

// A BatchTrier is a Driver that tries and releases several of its claims in few round trips. An
// answer that is lost is lost for one claim: each of them is then what it is after a Try or Release
// of its own. No two elements are for the same claim.
type BatchTrier interface {
	// TryAll does for each Trial what Try does, and sets its Grant and Err. It returns when ctx
	// ends at the latest, and does not wait for the answer to one before it asks for another.
	TryAll(ctx context.Context, trials []Trial)
	// ReleaseAll does for each Ending what Release does, and sets its Err. It returns when ctx
	// ends at the latest, and does not wait for the answer to one before it sends another.
	// Releases that one server gets together are served in their order.
	ReleaseAll(ctx context.Context, endings []Ending)
}

// A Trial is one claim's part of a TryAll.
type Trial struct {
	Claim Claim // set by the caller: the claim to try
	Grant Grant // set by TryAll, where Err is nil
	Err   error // set by TryAll: what Claim.Try would return
}

// An Ending is one claim's part of a ReleaseAll.
type Ending struct {
	Claim Claim // set by the caller: the claim to release
	How   End   // set by the caller
	Err   error // set by ReleaseAll: what Claim.Release would return
}
