package leasehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/several"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// Leases are the leases of several resources held together; see AcquireAll. They are safe for
// concurrent use.
type Leases struct {
	leases []*Lease // by name, at least one
	ctx    leasesContext
}

// AcquireAll acquires several resources, all or nothing, and returns their leases. A name that
// is given twice counts once. The options apply to each name, but Wait limits the whole call. With
// [For], a name has options of its own, such as a limit:
//
//	locks.AcquireAll(ctx, nil,
//		leasehold.For("tenant/7", leasehold.Limit(2)),
//		leasehold.For("total", leasehold.Limit(100), leasehold.Weight(3)))
//
// AcquireAll asks for all names at once. If some are busy, it keeps those that sort before the
// first busy one and gives up the others. It waits for its turn at the busy one, and asks for the
// rest again. A waiting caller thus holds only names that sort before the one it waits for. So
// callers never wait for each other in a circle, in whatever order they list the names. At each
// name AcquireAll queues as Acquire does: it is not overtaken there, and waits for each name at
// most once. Leases that are acquired one by one inside others do not follow that order.
//
// With Wait(0) it asks for the name that sorts first, and then for all others together. Among
// callers that want the same names, one gets them. Callers whose names only overlap may refuse each
// other.
//
// AcquireAll returns the errors of Acquire, for the name that failed, or [ErrLost] if a lease
// was lost during the wait for the others. On error nothing is held.
func (l *Locker) AcquireAll(ctx context.Context, names []string, opts ...Option) (*Leases, error) {
	opts = append([]Option{together}, opts...)
	names = allNames(names, opts)
	if len(names) == 0 {
		return nil, fmt.Errorf("leasehold: acquire: %w: no names", ErrInvalidName)
	}
	g := &gathering{locker: l, names: names, opts: opts, leases: make([]*Lease, len(names))}
	if failed, err := g.acquire(ctx); err != nil {
		return nil, wrap("acquire", failed, err)
	}
	return newLeases(ctx, g.leases), nil
}

// For adds name to the names of [Locker.AcquireAll] or [Locker.DoAll], and gives it options of its
// own. They come after the options for all names. They cannot be [Wait] or [OncePer], which concern
// the whole call. Other calls refuse For with [ErrInvalidOption].
func For(name string, opts ...Option) Option {
	return func(r *request) { r.each = append(r.each, ownOptions{name, opts}) }
}

// ownOptions are the options of one name.
type ownOptions struct {
	name string
	opts []Option
}

// together marks a request as part of AcquireAll.
func together(r *request) { r.together = true }

// allNames returns names and those of For, sorted, each once.
func allNames(names []string, opts []Option) []string {
	var r request
	r.who = &description{} // options may use it
	r.apply(opts)
	all := slices.Clone(names)
	for _, one := range r.each {
		all = append(all, one.name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// applyOwn applies the options that For gives to name.
func (r *request) applyOwn(name string) {
	each := r.each
	if len(each) > 0 && !r.together {
		r.fail("For belongs to AcquireAll")
	}
	r.each = nil
	wait, once := r.wait, r.oncePer
	for _, one := range each {
		if one.name == name {
			r.apply(one.opts)
		}
	}
	if r.wait != wait || r.oncePer != once || len(r.each) > 0 {
		r.fail("For has no Wait, OncePer or For inside")
	}
}

// DoAll is [Locker.Do] for several resources. It acquires them as [Locker.AcquireAll] does and
// calls fn with a context that ends when any of the leases or ctx ends. The error matches [ErrLost]
// if any lease ended before fn did: roll back. Inside fn, [AllFromContext] returns the leases, for
// their tokens.
func (l *Locker) DoAll(ctx context.Context, names []string, fn func(ctx context.Context) error, opts ...Option) error {
	all, err := l.AcquireAll(ctx, names, opts...)
	if err != nil {
		return err
	}
	return runHolding(ctx, all, fn, func(live context.Context, end context.CancelCauseFunc) context.Context {
		return leasesContext{live, end, all}
	})
}

// A gathering is one AcquireAll in progress.
type gathering struct {
	locker *Locker
	names  []string // sorted, each once
	opts   []Option
	leases []*Lease      // of names; nil: not held
	bound  time.Duration // of a first call to the engine; 0: they differ

	// waited is the last refusal of the name waited for. It becomes the error if Wait runs out
	// between two calls.
	waited waitState
}

// acquire fills in all leases, or none and returns the name that failed.
func (g *gathering) acquire(ctx context.Context) (failed string, err error) {
	if !g.locker.calls.begin() {
		return g.names[0], ErrClosed
	}
	defer g.locker.calls.end() // after releaseFrom has begun: Close waits for that, too
	var r request
	for i, name := range g.names { // before any call to the engine
		r = request{}
		if err = r.fill(g.locker, name, g.opts); err != nil {
			return name, err
		}
		switch bound := callBoundOf(r.firstTTL(g.locker)); {
		case i == 0:
			g.bound = bound
		case g.bound != bound:
			g.bound = 0
		}
	}
	blocking := r.wait > 0
	if blocking && r.wait < forever {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.wait, errWaited)
		defer cancel()
	}
	i, err := g.gather(ctx, blocking)
	if err == nil && r.oncePer > 0 {
		i, err = g.lengthen(ctx)
	}
	if lost, cause := g.lost(); cause != nil { // which may be why the calls for others ended
		i, err = lost, cause
	}
	if err != nil {
		g.releaseFrom(ctx, 0)
		return g.names[i], g.waited.waitError(g.names[i], err)
	}
	return "", nil
}

// lengthen renews the leases for their whole TTL, all at the same time. Until all names are
// granted, leases last for request.firstTTL. lengthen returns the first error and the index of its
// name. That error ends the other renewals, because no lease will be used. So does the loss of a
// lease that was renewed.
func (g *gathering) lengthen(ctx context.Context) (failed int, err error) {
	ctx, cancel := g.whileHeld(ctx, len(g.leases))
	defer cancel()
	var first sync.Once
	several.Bounded(len(g.leases), len(g.leases), func(i int) {
		if one := g.leases[i].lengthen(ctx); one != nil {
			first.Do(func() { failed, err = i, one })
			cancel()
		}
	})
	return failed, err
}

// lengthen renews le for the whole TTL. It repeats the call until its outcome is known, or until
// the lease or ctx ends. After Close it returns ErrClosed, whatever the engine answered.
func (le *Lease) lengthen(ctx context.Context) error {
	if le.longer == 0 {
		return nil
	}
	calls := &le.hold.locker.calls
	for fails := 0; ; fails++ {
		err := le.extend(ctx, le.longer)
		switch {
		case calls.isClosing():
			return ErrClosed
		case err == nil || le.live() != nil || waiting.Final(err):
			return err
		}
		pause := waiting.Backoff(fails, 10*time.Millisecond, time.Second)
		if _, err := waiting.Sleep(ctx, calls.closing, nil, pause); err != nil {
			return err
		}
	}
}

// whileHeld returns a context that ends when one of the leases below to is lost. Until cancel is
// called, the leases refer to it.
func (g *gathering) whileHeld(ctx context.Context, to int) (held context.Context, cancel func()) {
	held, end := context.WithCancelCause(ctx)
	stops := make([]func() bool, to)
	for i, le := range g.leases[:to] {
		stops[i] = context.AfterFunc(le.ctx, func() { end(context.Cause(le.ctx)) })
	}
	return held, func() {
		for _, stop := range stops {
			stop()
		}
		end(nil)
	}
}

// lost returns the first of the leases that was lost while others were asked for, and why.
func (g *gathering) lost() (i int, cause error) {
	for i, le := range g.leases {
		if le != nil && le.ctx.Err() != nil {
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
			g.releaseFrom(ctx, i) // the later names; i itself is not held
		}
		if err := g.wait(ctx, i); err != nil {
			return i, err
		}
		g.waited = waitState{}
	}
	return i, nil
}

// try asks once for the names from from to below to, all at the same time. It returns the first
// error other than a refusal, or else the first refusal. Names with different bounds are asked for
// one by one: one call would end with the shortest, or leave that lease unrenewed for too long. If a
// lease of a smaller name is lost, the calls end.
func (g *gathering) try(ctx context.Context, from, to int) (failed int, err error) {
	if from > 0 {
		var cancel func()
		ctx, cancel = g.whileHeld(ctx, from)
		defer cancel()
	}
	var errs []error
	if d := g.locker.batches; d != nil && to-from > 1 && g.bound > 0 {
		errs = g.tryTogether(ctx, d, from, to)
	} else {
		errs = several.Errors(to-from, to-from, func(i int) (err error) {
			g.leases[from+i], err = g.locker.acquire(ctx, g.names[from+i], false, g.opts)
			return err
		})
	}
	for i, one := range slices.Backward(errs) {
		if one != nil && (err == nil || errors.Is(err, ErrBusy) || !errors.Is(one, ErrBusy)) {
			failed, err = from+i, one
		}
	}
	return failed, err
}

// tryTogether is try with one call to the driver, for the names that need the engine.
func (g *gathering) tryTogether(ctx context.Context, d driver.BatchTrier, from, to int) (errs []error) {
	errs = make([]error, to-from)
	asking := make([]*acquisition, to-from) // nil: answered without the engine
	trials := make([]driver.Trial, 0, to-from)
	for i := range asking {
		var a acquisition
		if errs[i] = a.open(ctx, g.locker, g.names[from+i], g.opts); errs[i] != nil {
			continue
		}
		defer a.end(&g.leases[from+i], &errs[i])
		a.traceBegin()
		if ctx.Err() != nil {
			errs[i] = context.Cause(ctx)
		} else if g.leases[from+i], errs[i] = a.prepare(); g.leases[from+i] == nil && errs[i] == nil {
			asking[i], trials = &a, append(trials, driver.Trial{Claim: a.hold.claim})
		}
	}
	sent, now := g.locker.clock.Read()
	if len(trials) > 0 {
		call := newBound(ctx, now.Add(g.bound))
		d.TryAll(call, trials)
		call.end()
	}
	for _, a := range asking {
		if a != nil {
			a.sent, a.tried, trials = sent, &trials[0], trials[1:]
			a.grant = a.tried.Grant
		}
	}
	finish := func(i int) {
		if a := asking[i]; a != nil {
			g.leases[from+i], errs[i] = a.conclude(a.contend())
		}
	}
	usable := func(a *acquisition) bool {
		return a == nil || a.tried.Err == nil && a.isUsable() && !g.locker.calls.isClosing()
	}
	next := 0
	for ; next < len(asking) && usable(asking[next]); next++ {
		finish(next)
	}
	rest := len(asking) - next // these may call the engine again
	several.Bounded(rest, rest, func(i int) { finish(next + i) })
	return errs
}

// wait waits for name i. It stops if a lease of a smaller name is lost.
func (g *gathering) wait(ctx context.Context, i int) (err error) {
	ctx, cancel := g.whileHeld(ctx, i)
	defer cancel()
	g.leases[i], err = g.locker.acquire(ctx, g.names[i], true, g.opts)
	return err
}

// releaseFrom releases the leases from index from on, under which nobody has acted.
func (g *gathering) releaseFrom(ctx context.Context, from int) {
	held := slices.DeleteFunc(slices.Clone(g.leases[from:]), func(le *Lease) bool { return le == nil })
	clear(g.leases[from:])
	if len(held) == 0 {
		return
	}
	for _, le := range held {
		le.giveUp()
	}
	g.locker.calls.cleanUp(func() {
		releaseAll(ctx, held, true) // its result is not needed: the leases expire
	})
}

// giveUp marks a lease under which nobody has acted. Its release ignores AtLeast.
func (le *Lease) giveUp() {
	le.hold.mu.Lock()
	defer le.hold.mu.Unlock()
	le.unused = true
}

// releaseAll releases all leases but the first concurrently, then the first. A caller that waits
// for the first name, and holds nothing, then finds the others free. Until then the first is renewed.
// One that is given up is let at once all the same, unless a call of this process waits for it: the
// next call is not refused because of it. If it was lost, its clean-up does not wait for the
// others.
func releaseAll(ctx context.Context, leases []*Lease, givenUp bool) []error {
	errs := make([]error, len(leases))
	others := len(leases) - 1
	if d := leases[0].hold.locker.batches; d != nil && others > 0 && oneBound(leases) {
		releaseTogether(ctx, d, leases, errs, givenUp)
		return errs
	}
	first, last := leases[0], false
	var separately sync.WaitGroup
	early := givenUp && !first.hold.handsOver()
	if early {
		if last, errs[0] = first.let(ctx); last && errs[0] != nil { // lost
			last = false
			separately.Go(func() { _ = first.end(ctx, errs[0]) })
		}
	}
	several.Bounded(others, others, func(i int) { errs[i+1] = leases[i+1].release(ctx) })
	separately.Wait()
	switch {
	case !early:
		errs[0] = first.release(ctx)
	case last:
		errs[0] = first.end(ctx, nil)
	}
	return errs
}

// oneBound reports whether one time limit applies to the releases of all leases.
func oneBound(leases []*Lease) bool {
	bound := leases[0].hold.releaseBound()
	return !slices.ContainsFunc(leases, func(le *Lease) bool { return le.hold.releaseBound() != bound })
}

// releaseTogether is releaseAll with one call to the driver, for the leases that need the engine.
// The first lease is the last in that call. It is released afterwards, and renewed until then, if a
// call of this process waits for it or a call for it is in flight. Another lease with a call in flight
// is released separately, because that call may hang, or the others' release. So is one that was
// lost, because nobody waits long for its clean-up.
func releaseTogether(ctx context.Context, d driver.BatchTrier, leases []*Lease, errs []error, givenUp bool) {
	var ending []int
	var separately sync.WaitGroup
	end := func(i int) {
		var last bool
		switch last, errs[i] = leases[i].let(ctx); {
		case last && (errs[i] != nil || len(leases[i].hold.calling) > 0):
			separately.Go(func() { errs[i] = leases[i].end(ctx, errs[i]) })
		case last:
			ending = append(ending, i)
		}
	}
	for i := range leases[1:] {
		end(i + 1)
	}
	first := leases[0]
	after := first.hold.handsOver() || !givenUp && len(first.hold.calling) > 0
	if !after {
		end(0)
	}
	endings, calls := make([]driver.Ending, len(ending)), make([]*bound, len(ending))
	for n, i := range ending {
		h := leases[i].hold
		endings[n].Claim = h.claim
		endings[n].How, calls[n] = h.beginRelease(ctx)
	}
	if len(ending) > 0 {
		call := newBound(withoutCancel(ctx), calls[0].deadline)
		d.ReleaseAll(call, endings)
		call.end()
	}
	finish := func(n int) {
		le, e := leases[ending[n]], &endings[n]
		defer le.hold.calling.End()
		defer calls[n].end()
		errs[ending[n]] = le.finishRelease(le.hold.endRelease(calls[n], e.How, nil, e.Err))
	}
	if slices.ContainsFunc(endings, func(e driver.Ending) bool { return e.Err != nil }) {
		several.Bounded(len(ending), len(ending), finish)
	} else {
		for n := range ending {
			finish(n)
		}
	}
	separately.Wait()
	if after {
		errs[0] = first.release(ctx)
	}
}

// newLeases joins leases that were acquired with ctx.
func newLeases(ctx context.Context, leases []*Lease) *Leases {
	live, cancel := context.WithCancelCause(withoutCancel(ctx))
	for i, le := range leases {
		if i > 0 {
			le.outer = leases[i-1] // so that the context of the last lease belongs to all
		}
		context.AfterFunc(le.ctx, func() { cancel(context.Cause(le.ctx)) })
	}
	ls := &Leases{leases: leases}
	ls.ctx = leasesContext{live, cancel, ls}
	return ls
}

// leasesKey is the context key of the innermost Leases.
type leasesKey struct{}

// AllFromContext is [FromContext] for the Leases of a callback of DoAll or of [Leases.Context].
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

// Lease returns the lease of one resource, for its token, owner and deadline, or nil if name is
// not one of Names. If that lease is released alone, the context of all ends.
func (ls *Leases) Lease(name string) *Lease {
	for _, le := range ls.leases {
		if le.Name() == name {
			return le
		}
	}
	return nil
}

// Context ends as soon as any of the leases does, with that lease's cause. In all else it is like
// the context of a Lease, for each of the resources: see [ErrDeadlock] and [Reentrant].
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

// Release releases all leases and ends their context. If one release fails, Release still tries
// the others. It returns nil if all were released, or else their joined errors. [ErrLost] means
// that a lease had ended before: roll back what the leases guarded together. After an unknown
// outcome Release may be called again for the leases that are left. [ErrReleased] means that
// none were left.
func (ls *Leases) Release(ctx context.Context) error {
	if ls.ctx.Err() == nil {
		ls.ctx.cancel(ErrReleased)
	}
	errs := releaseAll(ctx, ls.leases, false)
	for i, le := range ls.leases {
		errs[i] = le.wrap("release", errs[i])
	}
	if !slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, ErrReleased) }) {
		return errs[0]
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, ErrReleased) })...)
}
