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
	Waited time.Duration // since its first Try
}

// State is what an engine knows of one resource. A free resource has no holders.
type State struct {
	Resource string   // name
	Fence    uint64   // last given or raised to, in FenceSteps; 0: unknown
	Holders  []Holder // by fence
	Waiters  []Waiter // in order
}

// An Operator is a Driver by which people inspect and repair locks.
type Operator interface {
	// Inspect returns the state of one resource; a free one has no holders. What somebody has
	// damaged is [ErrCorrupt], beside as much as can be told of it.
	Inspect(ctx context.Context, resource string) (State, error)
	// List returns a page of the resources with holders or waiters whose names start with prefix: at
	// most limit, which is at least 1, and maybe fewer, even none, while there are more. next is where
	// the next page begins, "" after the last one. after is "" for the first page, or a next that an
	// earlier call for the same prefix returned, in whatever process; another is an error.
	//
	// A page is sorted by name, in the order of its bytes, and so is page after page where the engine can
	// sort. Elsewhere pages are in the engine's order, and a name may come on several. From "" to "",
	// each resource that is in use throughout comes at least once; what comes or goes meanwhile may or
	// may not.
	//
	// What is damaged hides nothing else: the error is [ErrCorrupt] and names it, and states and next
	// are as ever. After any other error they are nothing, and the same call may be made again.
	List(ctx context.Context, prefix, after string, limit int) (states []State, next string, err error)
	// Evict ends another's lease by force and raises the fence. ErrLost: owner did not hold it.
	// The reason reaches the holder where the engine can. An empty owner ends one hold that
	// lingers, which is shown with an empty owner.
	Evict(ctx context.Context, resource, owner, reason string) error
	// RaiseFence lifts a resource's fence: later grants are above it. It takes any token that
	// [CheckRaise] passes, and refuses others. ErrUnsupported without Features.Raises.
	RaiseFence(ctx context.Context, resource string, fence uint64) error
}

// Evicted is why the holder of a lease that was evicted for a reason has lost it.
func Evicted(reason string) error { return fmt.Errorf("%w: %w: %s", ErrLost, ErrEvicted, reason) }

// A Forgetter is a Claim of which its driver keeps something between calls. Forget, which does no I/O, lets go of
// that: what the claim has stays, for another process. No call follows.
type Forgetter interface {
	Forget()
}

// A FenceLifter is a Claim that lifts its resource's fence as [Operator.RaiseFence] does, but only
// if it still holds its grant; [ErrLost] else.
type FenceLifter interface {
	LiftFence(ctx context.Context, fence uint64) error
}

// A BatchRenewer is a Driver that renews many of its claims in few round trips. RenewAll
// does to each what Renew does, and fills in its Grant and Err before it returns, which is
// when ctx ends at the latest. No two of them are for the same claim. One that gets no answer,
// for its server, its slots or its row hang, holds back no other: all are asked before ctx is
// half through, and what was answered counts although another was not. Each that is answered is
// told by Answer, as soon as its claim can be called again; those that RenewAll returns
// without are answered then.
type BatchRenewer interface {
	RenewAll(ctx context.Context, renewals []Renewal)
}

// A Renewal is one claim's part of a RenewAll, and what came of it.
type Renewal struct {
	Claim Claim         // set by the caller: what to renew
	TTL   time.Duration // set by the caller: the new length of the lease
	Grant Grant         // set by RenewAll, where Err is nil
	Err   error         // set by RenewAll: what Claim.Renew would return

	// Answered, unless nil, is called by Answer, in any goroutine, maybe for several of one
	// RenewAll at once. The core plans the next renewal there.
	Answered func()
}

// Answer fills in what came of the renewal and tells whoever waits for it. It is called once at
// most, before RenewAll returns and not after another part of the driver still uses the claim
// for it: the next call to the claim may come while RenewAll waits for others.
func (r *Renewal) Answer(g Grant, err error) {
	r.Grant, r.Err = g, err
	if r.Answered != nil {
		r.Answered()
	}
}

// An Identifier is a Driver that can tell which server it talks to. The id is the same
// for every connection to one server, and to no other.
type Identifier interface {
	Identify(ctx context.Context) (id string, err error)
}
