package leasehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/several"
)

// Leases are several resources held together, see AcquireAll. They are safe for
// concurrent use.
type Leases struct {
	leases []*Lease // by name, at least one
	ctx    leasesContext
}

// AcquireAll acquires several resources, all or nothing, and returns live leases of them.
// Names that are given twice count once. The options apply to each of them, but Wait limits
// the whole: a wait for ten resources is one wait.
//
// AcquireAll asks for all names at once. If some are busy, it keeps those that sort before
// the first busy one, gives up the others, waits for its turn at the busy one, and asks for
// the rest again. A waiting caller thus holds only names that sort before the one it waits
// for, so that callers never wait for each other in a circle, in whatever order they list the
// names. Its places in the queues are those of Acquire: a caller that wants several names is
// not overtaken, and waits at each name at most once. Leases that are acquired
// one by one, while others are held, do not follow that order.
//
// With Wait(0) it asks for the smallest name first, and for the rest at once. Of several callers
// that want the same names, one gets them. Callers whose names only overlap may refuse each other.
//
// Errors are those of Acquire, for the resource that failed, or [ErrLost] if a lease was lost
// during the wait for the others. On error nothing is held.
func (l *Locker) AcquireAll(ctx context.Context, names []string, opts ...Option) (*Leases, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return nil, fmt.Errorf("leasehold: acquire: %w: no names", ErrInvalidName)
	}
	g := &gathering{locker: l, names: names, opts: opts, leases: make([]*Lease, len(names))}
	if failed, err := g.acquire(ctx); err != nil {
		return nil, wrap("acquire", failed, err)
	}
	return newLeases(ctx, g.leases), nil
}

// DoAll is [Locker.Do] for several resources: it acquires them as [Locker.AcquireAll] does, calls fn with a context
// that ends when any of the leases or ctx does, and releases all of them, even if fn panics. It returns fn's
// error. If any lease ended before fn did, the error also matches [ErrLost], even if fn returned nil: roll back. Any
// other error means that the outcome of some release is unknown.
//
// [AllFromContext] finds the leases in fn's context, for their tokens.
func (l *Locker) DoAll(ctx context.Context, names []string, fn func(ctx context.Context) error, opts ...Option) error {
	all, err := l.AcquireAll(ctx, names, opts...)
	if err != nil {
		return err
	}
	return during(ctx, all, fn, func(live context.Context, end context.CancelCauseFunc) context.Context {
		return leasesContext{live, end, all}
	})
}

// A gathering is one AcquireAll on its way.
type gathering struct {
	locker *Locker
	names  []string // sorted, each once
	opts   []Option
	leases []*Lease // of names; nil: not held

	// waited is for Wait that runs out between two calls. Its holder is in the way of the
	// name that is waited for.
	waited heard
}

// acquire fills in all leases, or none and returns the name that failed.
func (g *gathering) acquire(ctx context.Context) (failed string, err error) {
	var r request
	for _, name := range g.names { // before any call to the engine
		r = request{}
		if err = r.fill(g.locker, name, g.opts); err != nil {
			return name, err
		}
	}
	blocking := r.wait > 0
	if blocking && r.wait < forever {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.wait, errWaited)
		defer cancel()
	}
	i, err := g.gather(ctx, blocking)
	if err == nil {
		i, err = g.lost()
	}
	if err != nil {
		g.letGo(ctx, 0)
		return g.names[i], g.waited.gaveUp(g.names[i], err)
	}
	return "", nil
}

// lost returns the first lease that was lost while the others were asked for, and why.
func (g *gathering) lost() (i int, cause error) {
	for i, le := range g.leases {
		if le.ctx.Err() != nil {
			return i, context.Cause(le.ctx)
		}
	}
	return 0, nil
}

// gather returns the index of the name that failed.
func (g *gathering) gather(ctx context.Context, blocking bool) (i int, err error) {
	if !blocking {
		if i, err = g.try(ctx, 0, 1); err != nil {
			return i, err
		}
		return g.try(ctx, 1, len(g.names))
	}
	for from := 0; from < len(g.names); from = i + 1 {
		i = from
		if i < len(g.names)-1 {
			if i, err = g.try(ctx, from, len(g.names)); !errors.Is(err, ErrBusy) {
				return i, err
			}
			refusal, _ := errors.AsType[*BusyError](err)
			g.waited.refused(refusal)
			g.letGo(ctx, i) // what is behind it: i itself is not held
		}
		if err = g.wait(ctx, i); err != nil {
			return i, err
		}
		g.waited.refusal = nil
	}
	return i, nil
}

// try asks once for the names from from to below to, all at the same time. It returns the
// first that was refused, or one that failed otherwise.
func (g *gathering) try(ctx context.Context, from, to int) (failed int, err error) {
	errs := several.Errors(to-from, to-from, func(i int) (err error) {
		g.leases[from+i], err = g.locker.acquire(ctx, g.names[from+i], false, g.opts)
		return err
	})
	for i, one := range slices.Backward(errs) {
		if one != nil && (err == nil || errors.Is(err, ErrBusy) || !errors.Is(one, ErrBusy)) {
			failed, err = from+i, one
		}
	}
	return failed, err
}

// wait waits for the turn at name i, as long as the smaller names are held.
func (g *gathering) wait(ctx context.Context, i int) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, le := range g.leases[:i] {
		defer context.AfterFunc(le.ctx, func() { cancel(context.Cause(le.ctx)) })()
	}
	g.leases[i], err = g.locker.acquire(ctx, g.names[i], true, g.opts)
	return err
}

// letGo gives up what is held from index from on. AtLeast keeps none of it: nobody has
// acted under it.
func (g *gathering) letGo(ctx context.Context, from int) {
	var held []*Lease
	for _, le := range g.leases[from:] {
		if le != nil {
			held = append(held, le)
		}
	}
	clear(g.leases[from:])
	if len(held) == 0 {
		return
	}
	for _, le := range held {
		le.hold.forgetAtLeast()
	}
	g.locker.calls.tidy(func() {
		eachButFirstAtOnce(held, func(_ int, le *Lease) {
			le.release(ctx) // its answer matters to nobody: it ends by itself
		})
	})
}

// forgetAtLeast lets the only lease of a hold go without AtLeast.
func (h *hold) forgetAtLeast() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.holders.leases) == 1 {
		h.holders.keepUntil = 0
	}
}

// eachButFirstAtOnce calls do for all leases but the first at the same time, then for the
// first: whoever waits for that one, holding nothing, then finds the others free.
func eachButFirstAtOnce(leases []*Lease, do func(i int, le *Lease)) {
	others := len(leases) - 1
	several.Bounded(others, others, func(i int) { do(i+1, leases[i+1]) })
	do(0, leases[0])
}

// newLeases joins leases that were acquired with ctx.
func newLeases(ctx context.Context, leases []*Lease) *Leases {
	live, cancel := context.WithCancelCause(unending(ctx))
	for i, le := range leases {
		if i > 0 {
			le.outer = leases[i-1] // so that the context of the last finds them all
		}
		context.AfterFunc(le.ctx, func() { cancel(context.Cause(le.ctx)) })
	}
	ls := &Leases{leases: leases}
	ls.ctx = leasesContext{live, cancel, ls}
	return ls
}

// leasesKey finds the innermost leases that a context belongs to.
type leasesKey struct{}

// AllFromContext returns the innermost leases that ctx belongs to: those of DoAll, or those whose Context it
// is derived from.
func AllFromContext(ctx context.Context) (*Leases, bool) {
	ls, ok := ctx.Value(leasesKey{}).(*Leases)
	return ls, ok
}

// A leasesContext is the leaseContext of several leases.
type leasesContext struct {
	context.Context
	cancel context.CancelCauseFunc
	all    *Leases
}

func (c leasesContext) Err() error {
	for _, le := range c.all.leases {
		if c.Context.Err() == nil && le.ctx.Err() != nil {
			c.cancel(context.Cause(le.ctx))
		}
	}
	return c.Context.Err()
}

func (c leasesContext) Value(key any) any {
	switch key {
	case leaseKey{}:
		return c.all.leases[len(c.all.leases)-1]
	case leasesKey{}:
		return c.all
	}
	return c.Context.Value(key)
}

// Names returns the resources, sorted, each once.
func (ls *Leases) Names() []string {
	names := make([]string, len(ls.leases))
	for i, le := range ls.leases {
		names[i] = le.Name()
	}
	return names
}

// Lease returns the lease of one resource, for its token, owner and deadline. It is nil if name
// is none of Names. If that lease is released alone, the context of all ends.
func (ls *Leases) Lease(name string) *Lease {
	for _, le := range ls.leases {
		if le.Name() == name {
			return le
		}
	}
	return nil
}

// Context ends as soon as any of the leases does, with its cause. Otherwise it is like the
// context of a Lease: it belongs to the holder of each of the resources.
func (ls *Leases) Context() context.Context { return ls.ctx }

// Deadline returns the first of the leases' deadlines.
func (ls *Leases) Deadline() time.Time {
	first := ls.leases[0].Deadline()
	for _, le := range ls.leases[1:] {
		if d := le.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}

// Release gives all leases up and ends their context. A failure does not keep it from releasing
// the others. It returns nil if all were released, or else their joined errors. [ErrLost] means
// that a lease had ended before: roll back what the leases guarded together. After an unknown
// outcome Release may be called again for the leases that are left. [ErrReleased] means that
// none were.
func (ls *Leases) Release(ctx context.Context) error {
	if ls.ctx.Err() == nil {
		ls.ctx.cancel(ErrReleased)
	}
	errs := make([]error, len(ls.leases))
	eachButFirstAtOnce(ls.leases, func(i int, le *Lease) { errs[i] = le.Release(ctx) })
	if !slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, ErrReleased) }) {
		return errs[0]
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, ErrReleased) })...)
}
