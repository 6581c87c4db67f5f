package driver

import (
	"context"
	"time"
)

// Waiter describes one place in a queue.
type Waiter struct {
	Owner, Note string
	Mode        Mode
	Waited      time.Duration // since its first Try
}

// State is what an engine knows of one resource. A free resource has no holders.
type State struct {
	Resource string
	Fence    uint64   // last given or raised to, in FenceSteps; 0: unknown
	Holders  []Holder // by fence
	Waiters  []Waiter // in order
}

// An Inspector is a Driver that shows what it keeps. What somebody has damaged is ErrCorrupt,
// beside as much as can be told of it, and hides nothing else: List returns the others too,
// and its error names the damaged.
type Inspector interface {
	Inspect(ctx context.Context, resource string) (State, error)
	// List returns, by name, the resources with holders or waiters whose names start with prefix.
	List(ctx context.Context, prefix string) ([]State, error)
}

// An Evictor is a Driver that ends another's lease by force and raises the fence.
// ErrLost: owner did not hold it. The reason reaches the holder where the engine can. An
// empty owner ends one hold that lingers, which is shown with an empty owner.
type Evictor interface {
	Evict(ctx context.Context, resource, owner, reason string) error
}

// A Lingerer is a Claim that ends its grant as Release does, but leaves an ownerless hold for d.
type Lingerer interface {
	Linger(ctx context.Context, d time.Duration) error
}

// A Noter is a Claim that replaces the note of its grant and changes nothing else. What
// lingers keeps the last note. ErrLost: it holds nothing.
type Noter interface {
	Note(ctx context.Context, note string) error
}

// A FenceRaiser is a Driver that lifts a resource's fence: later grants are above it. It takes
// any token, and refuses what leaves no room for later fences.
type FenceRaiser interface {
	RaiseFence(ctx context.Context, resource string, fence uint64) error
}

// A FenceLifter is a Claim that lifts its resource's fence as FenceRaiser does, but only
// if it still holds its grant; ErrLost else.
type FenceLifter interface {
	LiftFence(ctx context.Context, fence uint64) error
}

// A BatchRenewer is a Driver that renews many of its claims in few round trips. RenewAll
// does to each what Renew does, and fills in its Grant and Err before it returns, which is
// when ctx ends at the latest. No two of them are for the same claim. One that gets no answer,
// for its server, its slots or its row hang, holds back no other: all are asked before ctx is
// half through, and what was answered counts although another was not.
type BatchRenewer interface {
	RenewAll(ctx context.Context, renewals []Renewal)
}

// A Renewal is one claim's part of a RenewAll, and what came of it.
type Renewal struct {
	Claim Claim
	TTL   time.Duration
	Grant Grant
	Err   error
}

// A Checker is a Driver that can tell what is configured at the engine so that it weakens what
// a lock promises, or slows it: a sentence for each, none if all is well.
type Checker interface {
	Check(ctx context.Context) (warnings []string, err error)
}

// An Identifier is a Driver that can tell which server it talks to. The id is the same
// for every connection to one server, and to no other.
type Identifier interface {
	Identify(ctx context.Context) (id string, err error)
}
