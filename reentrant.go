package leasehold

import (
	"context"
	"fmt"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// leaseKey finds the innermost lease that a context belongs to.
type leaseKey struct{}

// FromContext returns the innermost lease that ctx belongs to: that of Do, or the one
// whose Context it was made from. It is how a function inside Do gets at its token.
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

// nest answers an Acquire whose context is that of le: with a nested lease of the same
// hold, or with ErrDeadlock. It returns neither when le is over, so that acquiring it
// again is an ordinary wait.
func (le *Lease) nest(ctx context.Context, r *request, now boottime.Instant) (*Lease, error) {
	h := le.hold
	inner := h.newLease(ctx, now, StepNested)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over() || le.released:
		return nil, nil
	case !r.reentrant:
		return nil, ErrDeadlock
	case r.mode == driver.Exclusive && h.req.Mode == driver.Shared:
		return nil, fmt.Errorf("%w: a shared lease cannot nest an exclusive one", ErrDeadlock)
	case r.atLeast > 0 && !h.locker.features.Lingers:
		return nil, ErrUnsupported
	}
	h.add(inner, r)
	return inner, nil
}
