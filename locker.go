package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/schedule"
)

// A Locker acquires leases from one engine. Make one per program and engine: waiters of
// one Locker hand leases to each other without a call to the engine. It is safe for
// concurrent use.
type Locker struct {
	driver    driver.Driver
	features  driver.Features
	opts      Options
	keeper    keeper
	deadlines deadlines
	queue     localQueue
	owners    owners

	closing  chan struct{}      // closed by Close
	renewing context.Context    // ends with Close
	stop     context.CancelFunc // ends renewing

	mu       sync.Mutex
	terms    map[string]*term // guarded by mu; of Lead, by name; nil until the first
	closed   bool             // guarded by mu; no call may begin
	drained  bool             // guarded by mu; no call is running
	calls    sync.WaitGroup   // running Acquire, TryAcquire, Do and Resume; added to under mu
	cleaning sync.WaitGroup   // clean-ups that outlive their Acquire; added to under mu
}

// New returns a Locker on d; nil options are the defaults. It does no I/O. It returns
// ErrInvalidOption for options out of range and ErrUnsupported for what d cannot serve.
// d stays the caller's: Close does not close it.
func New(d driver.Driver, opts *Options) (*Locker, error) {
	o, err := opts.withDefaults()
	if err == nil && isNil(d) {
		err = fmt.Errorf("%w: no driver", ErrInvalidOption)
	}
	if err != nil {
		return nil, fmt.Errorf("leasehold: new: %w", err)
	}
	l := &Locker{driver: d, features: d.Features(), opts: o, closing: make(chan struct{})}
	if (opts == nil || opts.TTL == 0) && l.features.SessionTTL > 0 {
		l.opts.TTL = l.features.SessionTTL
	}
	if o.RequireFencing && !l.features.Fencing {
		return nil, fmt.Errorf("leasehold: new: fencing is %w", ErrUnsupported)
	}
	if _, err := l.checkTTL(l.opts.TTL); err != nil {
		return nil, fmt.Errorf("leasehold: new: %w", err)
	}
	l.renewing, l.stop = context.WithCancel(context.Background())
	l.deadlines.due = schedule.New[*hold](math.MaxInt, math.MaxInt, l.deadlines.fire)
	l.keeper.renew, l.keeper.apart = l.renewAll, make(chan struct{}, maxApart)
	room, most := maxGroup, 1
	if _, ok := d.(driver.BatchRenewer); ok {
		room, most = maxBatch, maxBatch
	}
	l.keeper.due = schedule.New[*hold](room, most, l.keeper.fire)
	return l, nil
}

// isNil reports whether d is nil, or a nil pointer.
func isNil(d driver.Driver) bool {
	v := reflect.ValueOf(d)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// Features returns what the engine promises.
func (l *Locker) Features() driver.Features { return l.features }

// Acquire waits for its turn and returns a live lease.
//
// It waits until ctx ends, then returns an error that wraps context.Cause(ctx), or until
// Wait runs out, then ErrBusy; when the engine has not answered even once by then, the
// error matches context.DeadlineExceeded instead, because nobody knows whether it is busy.
// An engine that cannot be reached fails the first call; one that goes away while Acquire
// waits is tried again. ErrDeadlock: ctx belongs to a holder
// of name. ErrInvalidName, ErrInvalidOption and ErrUnsupported come before any call to
// the engine. On error nothing is held, and no place in a queue is left behind; where the
// engine could not be told, what it may have granted ends with its TTL.
func (l *Locker) Acquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	lease, err := l.acquire(ctx, name, true, opts)
	return lease, wrap("acquire", name, err)
}

// TryAcquire is Acquire without waiting for other holders: ErrBusy at once, with a
// *BusyError that tells the holder where the engine does. It leaves no place in a queue.
func (l *Locker) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	lease, err := l.acquire(ctx, name, false, opts)
	return lease, wrap("acquire", name, err)
}

// Do acquires name, calls fn with a context that ends when the lease or ctx does, and
// releases the lease, also when fn panics. It returns fn's error, joined with one that
// matches ErrLost when the lease ended before fn did, even if fn returned nil: roll back.
// An error that matches neither means that the release has an unknown outcome.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option) (err error) {
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	held, end := context.WithCancelCause(lease.Context())
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	if ctx.Err() != nil { // AfterFunc is about to say so, but fn may look before
		end(context.Cause(ctx))
	}
	defer func() {
		stop()
		end(nil)
		if released := lease.Release(ctx); released != nil {
			err = errors.Join(err, released)
		}
	}()
	return fn(leaseContext{held, lease})
}

// Resume renews a lease that another process acquired and left, knowing its owner, and
// returns it. Its token is the greatest of the grant, above those of all leases handed over
// inside that process, and the same each time the lease is resumed: once a guard has seen it,
// it refuses those of the process that left the lease. ErrLost: it is over. ErrUnsupported:
// the engine ties leases to processes (driver.Features.Resumes). After any other error the
// outcome is unknown.
func (l *Locker) Resume(ctx context.Context, name, owner string, opts ...Option) (*Lease, error) {
	lease, err := l.resume(ctx, name, owner, opts)
	return lease, wrap("resume", name, err)
}

func (l *Locker) resume(ctx context.Context, name, owner string, opts []Option) (*Lease, error) {
	start := time.Now()
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.calls.Done()
	r, err := l.newRequest(name, opts)
	switch {
	case err != nil:
		return nil, err
	case owner == "":
		return nil, fmt.Errorf("%w: empty owner", ErrInvalidOption)
	case !l.features.Resumes:
		return nil, ErrUnsupported
	}
	h, err := l.newHold(name, owner, r, false)
	if err != nil {
		return nil, err
	}
	h.handOvers = resumed // how often it was handed over is not known
	call, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	sent := time.Now()
	grant, err := h.claim.Renew(call, r.ttl)
	switch {
	case err != nil && ctx.Err() != nil: // its cause is the caller's and may match anything
		err = fmt.Errorf("%w: %v", ctx.Err(), err)
	case err == nil && l.isClosing():
		err = ErrClosed
	case err == nil && !h.useful(sent, grant):
		err = errTooLate(r.ttl)
	case err == nil:
		err = h.begin(sent, grant, false)
	}
	if err != nil {
		return nil, err
	}
	lease := h.adopt(ctx, r, start)
	if lease == nil {
		return nil, h.lostFor()
	}
	h.plan(h.granted, nil)
	return lease, nil
}

// Inspect tells who holds name and who waits for it. A free resource has no holders. What
// somebody has damaged at the engine is driver.ErrCorrupt, beside what can be told.
func (l *Locker) Inspect(ctx context.Context, name string) (State, error) {
	if err := driver.CheckName(name); err != nil {
		return State{}, wrap("inspect", name, err)
	}
	in, ok := l.driver.(driver.Inspector)
	if !ok {
		return State{}, wrap("inspect", name, ErrUnsupported)
	}
	state, err := in.Inspect(ctx, name)
	return stateOf(state), wrap("inspect", name, err)
}

// List tells, by name, of all resources with holders or waiters whose names start with
// prefix; "" is all. Those that somebody has damaged are named by an error that matches
// driver.ErrCorrupt, and all others are told of as ever.
func (l *Locker) List(ctx context.Context, prefix string) ([]State, error) {
	in, ok := l.driver.(driver.Inspector)
	if !ok {
		return nil, wrap("list", prefix, ErrUnsupported)
	}
	list, err := in.List(ctx, prefix)
	var states []State
	for _, s := range list {
		states = append(states, stateOf(s))
	}
	return states, wrap("list", prefix, err)
}

// Evict ends the lease that owner holds on name by force. The holder's context ends as
// soon as it hears of it, at the latest at its next renewal: until then two may believe
// to hold name, which only the fencing token tells apart; the next one is larger.
// ErrLost: owner does not hold name.
func (l *Locker) Evict(ctx context.Context, name, owner, reason string) error {
	if err := driver.CheckName(name); err != nil {
		return wrap("evict", name, err)
	}
	ev, ok := l.driver.(driver.Evictor)
	if !ok {
		return wrap("evict", name, ErrUnsupported)
	}
	return wrap("evict", name, ev.Evict(ctx, name, owner, reason))
}

// Close ends waiting calls to Acquire with ErrClosed and refuses later ones, stops all
// renewals, and waits for what is in flight, clean-ups included: each call to the engine
// is bounded by 5 seconds. Leases still held end at their deadlines unless they are
// released before; releasing them for their holders would let successors in too early.
// It does not close the driver. It returns nil.
func (l *Locker) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
		l.stop()
	}
	l.mu.Unlock()
	l.keeper.close()
	l.calls.Wait()
	l.mu.Lock()
	l.drained = true
	l.mu.Unlock()
	l.cleaning.Wait()
	l.deadlines.close()
	return nil
}

// enter begins a call that Close waits for; false after Close.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.calls.Add(1)
	}
	return !l.closed
}

// isClosing reports whether Close was called.
func (l *Locker) isClosing() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// background runs clean in a goroutine that Close waits for; after Close, at once.
func (l *Locker) background(clean func()) {
	l.mu.Lock()
	if l.drained {
		l.mu.Unlock()
		clean()
		return
	}
	l.cleaning.Go(clean)
	l.mu.Unlock()
}

// newRequest checks what a call asks for before anything is done.
func (l *Locker) newRequest(name string, opts []Option) (*request, error) {
	r := &request{ttl: l.opts.TTL, note: l.opts.Note}
	for _, o := range opts {
		if o == nil {
			o = func(r *request) { r.fail("an Option is nil") }
		}
		o(r)
	}
	r.settle()
	switch {
	case r.err != nil:
		return nil, r.err
	case r.mode == driver.Shared && !l.features.Shared:
		return nil, ErrUnsupported
	}
	if err := driver.CheckName(name); err != nil {
		return nil, err
	}
	if err := checkNote(r.note); err != nil {
		return nil, err
	}
	ttl, err := l.checkTTL(r.ttl)
	r.ttl = ttl
	return r, err
}

// maxTTL is ten years: longer is a slip, and far from where engines' integers overflow.
const maxTTL = 10 * 365 * 24 * time.Hour

// checkTTL returns ttl rounded up to what the engine can serve.
func (l *Locker) checkTTL(ttl time.Duration) (time.Duration, error) {
	f := l.features
	switch {
	case ttl <= 0:
		return 0, fmt.Errorf("%w: TTL %v is not positive", ErrInvalidOption, ttl)
	case ttl > maxTTL:
		return 0, fmt.Errorf("%w: TTL %v is above %v", ErrInvalidOption, ttl, maxTTL)
	case f.SessionTTL > 0 && ttl != f.SessionTTL:
		return 0, fmt.Errorf("%w: TTL %v: %w, leases hang on the driver's session, whose length gives them all %v", ErrInvalidOption, ttl, ErrUnsupported, f.SessionTTL)
	case ttl < f.MinTTL:
		return 0, fmt.Errorf("%w: TTL %v: %w, the least is %v", ErrInvalidOption, ttl, ErrUnsupported, f.MinTTL)
	case ttl <= l.drift(ttl):
		return 0, fmt.Errorf("%w: TTL %v leaves nothing after the drift of %v", ErrInvalidOption, ttl, l.drift(ttl))
	}
	if f.Step > 0 {
		ttl = (ttl + f.Step - 1) / f.Step * f.Step
	}
	return ttl, nil
}
