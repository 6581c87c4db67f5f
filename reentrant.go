package leasehold

import (
	"context"
	"fmt"

	"github.com/leasehold-go/leasehold/driver"
)

// leaseKey is the context key of the innermost lease.
type leaseKey struct{}

// FromContext returns the innermost lease that ctx belongs to. The context of a callback of Do or
// Lead belongs to its lease, as does [Lease.Context], and so do contexts derived from them. A
// function called inside Do gets its token this way.
func FromContext(ctx context.Context) (*Lease, bool) {
	le, ok := ctx.Value(leaseKey{}).(*Lease)
	return le, ok
}

// heldBy returns the lease of name that ctx belongs to, at any depth, or nil.
func (l *Locker) heldBy(ctx context.Context, name string) *Lease {
	le, _ := FromContext(ctx)
	for le != nil && (le.hold.locker != l || le.Name() != name || le.live() != nil) {
		le = le.outer
	}
	return le
}

// nest handles a call whose context belongs to a holder of the resource. It returns a nested lease
// of the same hold, or ErrDeadlock. If the context belongs to no holder, or its lease is over, nest
// returns neither, and the call waits as any other.
func (a *acquisition) nest() (*Lease, error) {
	outer := a.locker.heldBy(a.ctx, a.name)
	if outer == nil {
		return nil, nil
	}
	h := outer.hold
	inner := a.newLease(h, StepNested)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over() || outer.released:
		return nil, nil
	case !a.reentrant:
		return nil, ErrDeadlock
	case a.mode == driver.Exclusive && h.req.Mode == driver.Shared:
		return nil, fmt.Errorf("%w: a shared lease cannot nest an exclusive one", ErrDeadlock)
	case h.req.Mode == driver.Shared && a.mode.Uses(a.weight) > h.req.Mode.Uses(h.req.Weight):
		return nil, fmt.Errorf("%w: a lease of weight %d cannot nest one of weight %d", ErrDeadlock, h.req.Mode.Uses(h.req.Weight), a.weight)
	}
	if h.keep != nil {
		h.keep.able = h.keep.able && a.keeps
	}
	h.add(inner, a.start)
	return inner, nil
}
