package locktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// ErrInjected is the error of a call that a Fault made fail. Like the error of a broken
// connection, it does not say whether the engine has applied the call.
var ErrInjected = errors.New("locktest: link failed")

// An Op is a kind of call that a Faulty passes on.
type Op uint8

// The calls that a Fault can affect.
const (
	OpTry Op = iota
	OpRenew
	OpRelease
	OpLinger
	OpNote
	OpInspect // Inspect and List
	OpEvict
	OpRaiseFence
	OpSetLimit
	ops
)

// A Fault replaces the link during one call. apply lets the engine serve the call and returns
// the engine's error. If the Fault returns nil, the caller gets the engine's answer, otherwise
// the Fault's error.
type Fault func(ctx context.Context, apply func() error) error

// LoseRequest fails at once; the engine has not seen the call.
func LoseRequest(context.Context, func() error) error { return ErrInjected }

// LoseReply fails after the engine has served the call.
func LoseReply(_ context.Context, apply func() error) error {
	_ = apply() // the answer is lost
	return ErrInjected
}

// HangRequest never reaches the engine and returns when the caller's context ends.
func HangRequest(ctx context.Context, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

// HangReply lets the engine serve the call and returns when the caller's context ends.
func HangReply(ctx context.Context, apply func() error) error {
	_ = apply() // the answer is lost
	<-ctx.Done()
	return ctx.Err()
}

// SlowReply lets the engine serve the call and passes its answer on after d.
func SlowReply(d time.Duration) Fault {
	return func(ctx context.Context, apply func() error) error {
		err := apply()
		select {
		case <-time.After(d):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A Faulty is a Driver whose link to the Driver behind it can fail. It is safe for concurrent
// use. It is a [driver.Operator], and returns ErrUnsupported if the driver behind it is none.
type Faulty struct {
	inner driver.Driver

	mu       sync.Mutex
	faults   [ops][]Fault  // guarded by mu; for the next calls, in order
	standing [ops]Fault    // guarded by mu; for all calls after those
	calls    [ops]int      // guarded by mu; number of calls so far
	noWakes  bool          // guarded by mu
	noGrants bool          // guarded by mu
	severed  chan struct{} // guarded by mu; closed by the last heal; nil: the link is up
	cuts     int           // guarded by mu; calls of Sever that are not healed

	done  chan struct{} // closed by Close
	close func()        // closes done, once
}

// NewFaulty returns d behind a link without faults.
func NewFaulty(d driver.Driver) *Faulty {
	done := make(chan struct{})
	return &Faulty{inner: d, done: done, close: sync.OnceFunc(func() { close(done) })}
}

// Next applies each of faults to one of the next calls of op, in order. A nil Fault lets a call
// pass.
func (f *Faulty) Next(op Op, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = append(f.faults[op], faults...)
}

// Always applies fault to every call of op after the calls of Next, until it is replaced; nil
// ends it.
func (f *Faulty) Always(op Op, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.standing[op] = fault
}

// LoseWakes loses all Wakes from now on, like a push channel that has died unnoticed. Grants that
// would come with them are lost, too.
func (f *Faulty) LoseWakes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noWakes = true
}

// loseGrants loses all grants that would come with a Wake. A waiter must try again to get them.
func (f *Faulty) loseGrants() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noGrants = true
}

// Calls returns how many calls of op were made, whatever happened to them.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Sever makes the link a black hole until heal is called: calls hang until their context ends,
// and no Wake, no grant, no Lost and no Wanted arrives. heal delivers what was held back. A link that
// was severed several times works when all of that is healed.
func (f *Faulty) Sever() (heal func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.severed == nil {
		f.severed = make(chan struct{})
	}
	f.cuts++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.cuts--; f.cuts == 0 {
			close(f.severed)
			f.severed = nil
		}
	})
}

// cut returns a channel that closes when the link works again, or nil if it works.
func (f *Faulty) cut() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.severed
}

// pass sends one call over the link.
func (f *Faulty) pass(ctx context.Context, op Op, apply func() error) error {
	if fault := f.fault(op); fault != nil {
		return fault(ctx, apply)
	}
	return apply()
}

func (f *Faulty) fault(op Op) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	if f.severed != nil {
		return HangRequest
	}
	if len(f.faults[op]) == 0 {
		return f.standing[op]
	}
	next := f.faults[op][0]
	f.faults[op] = f.faults[op][1:]
	return next
}

// Features returns the features of the Driver behind the link.
func (f *Faulty) Features() driver.Features { return f.inner.Features() }

// Close closes the Driver behind the link.
func (f *Faulty) Close() error {
	f.close()
	return f.inner.Close()
}

// Claim returns a claim whose calls pass over the link.
func (f *Faulty) Claim(req driver.Request) (driver.Claim, error) {
	if lost := req.Lost; lost != nil {
		req.Lost = func(cause error) { f.notify(func() { lost(cause) }) }
	}
	if wanted := req.Wanted; wanted != nil {
		req.Wanted = func() { f.notify(wanted) }
	}
	inner, err := f.inner.Claim(req)
	if err != nil {
		return nil, err
	}
	return &faultyClaim{f: f, inner: inner}, nil
}

// notify calls the caller of the driver back as soon as the link works.
func (f *Faulty) notify(call func()) {
	cut := f.cut()
	if cut == nil {
		call()
		return
	}
	go func() {
		select {
		case <-cut:
			call()
		case <-f.done:
		}
	}()
}

// A faultyClaim is a claim behind the link. Its calls do not overlap.
type faultyClaim struct {
	f        *Faulty
	inner    driver.Claim
	stopWake func() // ends the goroutine that passes the current Wake on
}

func (c *faultyClaim) Try(ctx context.Context) (g driver.Grant, err error) {
	c.endWake()
	err = c.f.pass(ctx, OpTry, func() (err error) { g, err = c.inner.Try(ctx); return err })
	if busy, ok := errors.AsType[*driver.Busy](err); ok && busy.Wake != nil {
		passed := *busy
		passed.Wake, passed.Granted = c.passWake(busy)
		err = &passed
	}
	return granted(g, err)
}

// granted removes a grant from an answer that the link has lost.
func granted(g driver.Grant, err error) (driver.Grant, error) {
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

func (c *faultyClaim) Renew(ctx context.Context, ttl time.Duration) (g driver.Grant, err error) {
	err = c.f.pass(ctx, OpRenew, func() (err error) { g, err = c.inner.Renew(ctx, ttl); return err })
	return granted(g, err)
}

func (c *faultyClaim) Release(ctx context.Context, how driver.End) error {
	c.endWake()
	op := OpRelease
	if how.Linger > 0 {
		op = OpLinger
	}
	return c.f.pass(ctx, op, func() error { return c.inner.Release(ctx, how) })
}

func (c *faultyClaim) Note(ctx context.Context, note string) error {
	return c.f.pass(ctx, OpNote, func() error { return c.inner.Note(ctx, note) })
}

// passWake returns a channel that closes after Wake of busy does, but not while the link is cut, and
// a channel that holds the grant, if there is one, before the first closes.
func (c *faultyClaim) passWake(busy *driver.Busy) (<-chan struct{}, <-chan driver.Grant) {
	stop, out, granted := make(chan struct{}), make(chan struct{}), make(chan driver.Grant, 1)
	c.stopWake = func() { close(stop) }
	wait := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		case <-stop:
		case <-c.f.done:
		}
		return false
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.f.noWakes {
		return out, nil
	}
	var inner <-chan driver.Grant
	if !c.f.noGrants {
		inner = busy.Granted
	}
	go func() {
		if !wait(busy.Wake) {
			return
		}
		if cut := c.f.cut(); cut != nil && !wait(cut) {
			return
		}
		select {
		case g := <-inner:
			granted <- g
		default:
		}
		close(out)
	}()
	return out, granted
}

func (c *faultyClaim) endWake() {
	if c.stopWake != nil {
		c.stopWake()
		c.stopWake = nil
	}
}

// operate sends a call to the [driver.Operator] behind the link.
func (f *Faulty) operate(ctx context.Context, op Op, apply func(inner driver.Operator) error) error {
	inner, ok := f.inner.(driver.Operator)
	if !ok {
		return driver.ErrUnsupported
	}
	return f.pass(ctx, op, func() error { return apply(inner) })
}

// Inspect passes the call to the [driver.Operator] behind the link.
func (f *Faulty) Inspect(ctx context.Context, resource string) (st driver.State, err error) {
	err = f.operate(ctx, OpInspect, func(inner driver.Operator) (err error) { st, err = inner.Inspect(ctx, resource); return err })
	return st, err
}

// List passes the call to the [driver.Operator] behind the link.
func (f *Faulty) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	err = f.operate(ctx, OpInspect, func(inner driver.Operator) (err error) {
		states, next, err = inner.List(ctx, prefix, after, limit)
		return err
	})
	return states, next, err
}

// Evict passes the call to the [driver.Operator] behind the link.
func (f *Faulty) Evict(ctx context.Context, resource, owner, reason string) error {
	return f.operate(ctx, OpEvict, func(inner driver.Operator) error { return inner.Evict(ctx, resource, owner, reason) })
}

// RaiseFence passes the call to the [driver.Operator] behind the link.
func (f *Faulty) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	return f.operate(ctx, OpRaiseFence, func(inner driver.Operator) error { return inner.RaiseFence(ctx, resource, fence) })
}

// SetLimit passes the call to the [driver.Operator] behind the link.
func (f *Faulty) SetLimit(ctx context.Context, resource string, limit int) error {
	return f.operate(ctx, OpSetLimit, func(inner driver.Operator) error { return inner.SetLimit(ctx, resource, limit) })
}
