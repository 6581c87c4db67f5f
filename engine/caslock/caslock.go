package caslock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/lanes"
	"github.com/leasehold-go/leasehold/internal/life"
	"github.com/leasehold-go/leasehold/internal/links"
)

// ErrRefused is for stores: the write was not done and never will be, and another attempt would
// fail too.
var ErrRefused = errors.New("the store refuses")

// ErrContended: the record changed repeatedly during a call. If the call's context has not
// ended, the call changed nothing. A waiter tries again: the error matches [driver.ErrNotYet].
var ErrContended = fmt.Errorf("caslock: too many write this record at once: %w", driver.ErrNotYet)

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// MinTTL is the shortest lease; 0: 100 ms. It should be about thirty times the duration of a
	// write.
	MinTTL time.Duration
	// Place is how long a place in the queue outlives its waiter's last heartbeat; 0: 4 s. A
	// process writes one heartbeat for all its waiters every quarter of it. On a Queuer it does
	// so every half, and places outlive their process for twice as long. All processes should
	// use the same.
	Place time.Duration
	// Poll is how often the first in the queue asks a store that is not a Watcher; 0: 250 ms.
	// Waiters behind it ask less often.
	Poll time.Duration
	// Engine is the store's name in metrics and spans, see [driver.Features].
	Engine string
}

// A Driver serves claims on a Store. It is safe for concurrent use. It implements
// [driver.Operator] and BatchRenewer; its claims are [driver.FenceLifter]
// and [driver.Forgetter].
type Driver struct {
	store  Store
	opts   Options
	number func(Version) uint64 // nil: the store is no Counter
	watch  *watch               // nil: the store is no Watcher
	crowd  *crowd               // nil: the store is no Queuer
	lanes  *lanes.Lanes         // of waiters

	life *life.Life // ends when the driver is closed

	mu        sync.Mutex
	resources map[string]*resource // guarded by mu
	sweepAt   int                  // guarded by mu; the number at which idle resources are dropped
}

// New returns a Driver on store. It does no I/O.
func New(store Store, opts *Options) (*Driver, error) {
	o := *cmp.Or(opts, &Options{})
	o.MinTTL, o.Place, o.Poll = cmp.Or(o.MinTTL, 100*time.Millisecond), cmp.Or(o.Place, 4*time.Second), cmp.Or(o.Poll, 250*time.Millisecond)
	if min(o.MinTTL, o.Place, o.Poll) < time.Millisecond {
		return nil, errors.New("caslock: MinTTL, Place and Poll are a millisecond or more")
	}
	d := &Driver{store: store, opts: o, life: life.New(), lanes: lanes.New(new(links.Answers), unanswered, nil), resources: make(map[string]*resource), sweepAt: sweepFirst}
	if c, ok := store.(Counter); ok {
		d.number = c.Number
	}
	if w, ok := store.(Watcher); ok {
		d.watch = newWatch(d, w)
	}
	if q, ok := store.(Queuer); ok {
		d.crowd = newCrowd(d, q)
	}
	return d, nil
}

// Features implements [driver.Driver]. All features are supported but Keeps, and Wakes and Recalls if
// the store is a Watcher.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Engine: d.opts.Engine, Fencing: true, Shared: true, Weights: true, Limits: true, Fair: true, Wakes: d.watch != nil, Resumes: true,
		Lingers: true, Bars: true, Notes: true, Raises: true, Tells: true, Recalls: d.watch != nil,
		MinTTL: d.opts.MinTTL, Step: time.Nanosecond,
	}
}

// Close ends the driver's calls and its watch. Later calls return [driver.ErrClosed]. Leases
// stay held, and Close does not close the store.
func (d *Driver) Close() error {
	d.life.End()
	d.life.Wait()
	return nil
}

// Claim implements [driver.Driver]. It returns an error for an owner that is empty or not UTF-8.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if req.Owner == "" || !utf8.ValidString(req.Owner) {
		return nil, fmt.Errorf("caslock: an owner that is empty or no UTF-8 is %w", driver.ErrUnsupported)
	}
	return &claim{d: d, req: req}, nil
}

// enter begins a call, which ends with ctx or with the driver; leave must follow. The store does
// not see the cause of ctx, which belongs to the caller and may match what stores return.
func (d *Driver) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if d.life.Err() != nil {
		return nil, nil, driver.ErrClosed
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	closes := context.AfterFunc(d.life, func() { cancel(driver.ErrClosed) })
	ends := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	end := func() {}
	if at, ok := ctx.Deadline(); ok {
		call, end = context.WithDeadline(call, at)
	}
	return call, func() { closes(); ends(); end(); cancel(nil) }, nil
}

// failed returns the error of a call whose store call returned err.
func failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
