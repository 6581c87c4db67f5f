package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/schedule"
)

// A Locker acquires leases from one engine. Create one per program and engine: waiters of one
// Locker hand leases to each other without a call to the engine. A Locker is safe for concurrent
// use.
type Locker struct {
	driver    driver.Driver
	operator  driver.Operator   // the driver, if it is an Operator; or nil
	batches   driver.BatchTrier // the driver, if it is a BatchTrier; or nil
	clock     *boottime.Clock   // for deadlines
	features  driver.Features
	opts      Options
	who       *description // the default description of holders
	whoKeeps  *description // the same with the kind of a lease that may be kept; nil: none may
	keeper    keeper
	deadlines deadlines
	queue     localQueue
	owners    owners
	calls     calls
	terms     sync.Map // by name; the *term of the current leader
}

// New returns a Locker on d. Nil options are the defaults. New does no I/O. It returns
// [ErrInvalidOption] for options out of range and [ErrUnsupported] for options that d cannot
// serve. The caller must close d after the Locker; Close does not.
func New(d driver.Driver, opts *Options) (*Locker, error) {
	return newLocker(d, opts, boottime.Machine())
}

// newLocker is New with a clock, which tests replace.
func newLocker(d driver.Driver, opts *Options, clock *boottime.Clock) (*Locker, error) {
	o, err := opts.withDefaults()
	if err == nil && isNil(d) {
		err = fmt.Errorf("%w: no driver", ErrInvalidOption)
	}
	var who *description
	if err == nil {
		who, err = o.description()
	}
	if err != nil {
		return nil, fmt.Errorf("leasehold: new: %w", err)
	}
	l := &Locker{driver: d, clock: clock, features: d.Features(), opts: o, who: who, calls: calls{closing: make(chan struct{})}}
	l.operator, _ = d.(driver.Operator)
	l.batches, _ = d.(driver.BatchTrier)
	if (opts == nil || opts.TTL == 0) && l.features.SessionTTL > 0 {
		l.opts.TTL = l.features.SessionTTL
	}
	if o.RequireFencing && !l.features.Fencing {
		return nil, fmt.Errorf("leasehold: new: fencing is %w", ErrUnsupported)
	}
	if _, err := l.checkTTL(l.opts.TTL); err != nil {
		return nil, fmt.Errorf("leasehold: new: %w", err)
	}
	if err := l.prepareKeep(); err != nil {
		return nil, fmt.Errorf("leasehold: new: %w", err)
	}
	l.deadlines.clock = l.clock
	l.deadlines.due = schedule.New[*hold](l.clock, math.MaxInt, math.MaxInt, l.deadlines.fire)
	l.keeper.open(l.clock, d)
	return l, nil
}

// isNil reports whether d is nil, or a nil pointer.
func isNil(d driver.Driver) bool {
	v := reflect.ValueOf(d)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// Features returns what the engine promises.
func (l *Locker) Features() driver.Features { return l.features }

// Acquire waits for its turn and returns a live lease. Without [Wait] it waits until ctx ends.
//
// If ctx ends first, the error wraps context.Cause(ctx). If Wait ends first, the error is
// [ErrBusy]. It matches context.DeadlineExceeded instead if the engine has never answered, because
// nobody knows then whether name is busy. If the engine does not answer the first request, Acquire
// fails, within 5 seconds, with an error that matches no other of this package. If the engine goes
// away during the wait, Acquire tries again. [ErrDeadlock] means that ctx belongs to a holder of
// name. [ErrInvalidName], [ErrInvalidOption] and [ErrUnsupported] are returned before any call to
// the engine.
//
// On error nothing is held and no place in a queue is left. If the engine could not be reached
// for the clean-up, a lease that it may have granted expires after its TTL.
func (l *Locker) Acquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	lease, err := l.acquire(ctx, name, true, opts)
	return lease, wrap("acquire", name, err)
}

// TryAcquire is Acquire without waiting for other holders. If name is held, it returns [ErrBusy] at
// once, as a [*BusyError] with the holder if the engine names it. It leaves no place in a queue. If
// another process may have the lease only because of [Options.Keep], TryAcquire first waits for it,
// for about two round trips. If an earlier call of this Locker still cleans up after it failed,
// TryAcquire first waits for that, for 5 seconds at most. If its own grant is lost before the lease
// begins, it releases the grant and tries once more. Each of these calls is also limited to
// 5 seconds.
func (l *Locker) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	lease, err := l.acquire(ctx, name, false, opts)
	return lease, wrap("acquire", name, err)
}

// Do acquires name, calls fn with a context that ends when the lease or ctx does, and releases the
// lease, even if fn panics. It returns the error of Acquire, or the joined errors of fn and of the
// release. If the lease ended before fn did, the error matches [ErrLost], even if fn returned nil:
// roll back. After any other error of the release its outcome is unknown. To tell an error of fn
// from one of the release, let fn return errors of your own.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option) error {
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	return runHolding(ctx, lease, fn, func(live context.Context, _ context.CancelCauseFunc) context.Context {
		return leaseContext{live, lease}
	})
}

// runHolding calls fn with a context that ends when held or ctx does, and then releases held. as
// converts that context, which end ends, to the one that fn gets.
func runHolding(ctx context.Context, held interface {
	Context() context.Context
	Release(ctx context.Context) error
}, fn func(ctx context.Context) error, as func(live context.Context, end context.CancelCauseFunc) context.Context) (err error) {
	live, end := context.WithCancelCause(held.Context())
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	if ctx.Err() != nil { // AfterFunc will end it, but fn may check before that
		end(context.Cause(ctx))
	}
	defer func() {
		stop()
		end(nil)
		if released := held.Release(ctx); released != nil {
			err = errors.Join(err, released)
		}
	}()
	return fn(as(live, end))
}

// Resume renews a lease that another process acquired and left, and returns it. The caller must
// know its owner. The token is the greatest of the grant: above the tokens of all leases that
// the other process handed over, and the same each time the lease is resumed. A guard that has
// seen it refuses the tokens of the other process.
//
// The options must say if the lease is shared, with [Shared], [Limit] or [Weight]: the engine does
// not. Without them Resume takes it for exclusive, and [Reentrant] calls may nest exclusive leases
// in it.
//
// [ErrLost] means that the lease is over, [ErrUnsupported] that the engine ties leases to
// processes: its [driver.Features] lack Resumes. After any other error the outcome is unknown.
func (l *Locker) Resume(ctx context.Context, name, owner string, opts ...Option) (*Lease, error) {
	lease, err := l.resume(ctx, name, owner, opts)
	return lease, wrap("resume", name, err)
}

// Inspect returns the holders of name and its waiters. A free resource has no holders. If data
// at the engine is damaged, the error is [driver.ErrCorrupt], and State has what could be read.
// [ErrUnsupported] means that the engine cannot inspect.
func (l *Locker) Inspect(ctx context.Context, name string) (State, error) {
	if err := driver.CheckName(name); err != nil {
		return State{}, wrap("inspect", name, err)
	}
	if l.operator == nil {
		return State{}, wrap("inspect", name, ErrUnsupported)
	}
	state, err := l.operator.Inspect(ctx, name)
	return stateOf(state), wrap("inspect", name, err)
}

// Evict forcibly ends the lease that owner holds on name. The reason is reported to the holder if
// the engine can. The holder's context ends at its next renewal at the latest or, with [NoRenew],
// at its deadline. Until then two holders may believe that they hold name, and only the fencing
// token tells them apart: the next holder's is larger. [ErrLost] means that owner does not hold
// name.
func (l *Locker) Evict(ctx context.Context, name, owner, reason string) error {
	if err := driver.CheckName(name); err != nil {
		return wrap("evict", name, err)
	}
	if l.operator == nil {
		return wrap("evict", name, ErrUnsupported)
	}
	return wrap("evict", name, l.operator.Evict(ctx, name, owner, reason))
}

// SetLimit sets a limit of name for everybody, beside the [Limit] of each call: the smallest counts.
// It stays until it is changed, even while nobody uses name; 0 removes it. limit is at most
// [driver.MaxWeight].
//
// A higher limit admits at once those who fit. A lower one ends no lease. It admits nobody until
// there is room below it, not even those who queued before, and calls that are too heavy for it fail
// with [ErrTooHeavy]. Exclusive calls ignore it. name is the name of one resource, never a pattern.
//
// [ErrUnsupported] means that the engine keeps no limits: its [driver.Features] lack Limits. After
// any other error the outcome is unknown, and SetLimit may be called again.
func (l *Locker) SetLimit(ctx context.Context, name string, limit int) error {
	if err := driver.CheckName(name); err != nil {
		return wrap("limit", name, err)
	}
	if err := driver.CheckLimit(limit); err != nil {
		return wrap("limit", name, fmt.Errorf("%w: %w", ErrInvalidOption, err))
	}
	if l.operator == nil {
		return wrap("limit", name, ErrUnsupported)
	}
	return wrap("limit", name, l.operator.SetLimit(ctx, name, limit))
}

// Close ends waiting calls to Acquire with [ErrClosed], refuses later ones, and stops all
// renewals. It waits for calls to the engine that are in flight, clean-ups included, each of
// which is limited to 5 seconds. Leases that are still held end at their deadlines unless they
// are released before. Close does not release them: their holders may still act, and successors
// must not start until the deadlines. It gives back what [Options.Keep] has kept. Close does not
// close the driver. It returns nil.
func (l *Locker) Close() error {
	l.calls.close()
	l.keeper.close()
	l.giveBackKept()
	l.calls.wait()
	l.deadlines.close()
	return nil
}
