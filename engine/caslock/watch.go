package caslock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

const (
	// watchIdle is how long the watch continues when no waiter needs it.
	watchIdle = 10 * time.Second
	// watchBegin is how long a waiter waits for the watch to begin. If it has not begun by then,
	// the waiter asks again to keep its place.
	watchBegin = time.Second
	// watchLate is when a watch that has not begun is given up and another one begun.
	watchLate = 4 * time.Second
	// watchAgain is the pause after a watch that failed, and watchDenied after one for which the
	// store refuses the user.
	watchAgain, watchDenied = 250 * time.Millisecond, 10 * time.Second
)

// A watch receives the store's changes while a claim waits, or holds and wants to know of waiters.
type watch struct {
	d     *Driver
	store Watcher

	mu   sync.Mutex
	run  *run          // guarded by mu; nil: no watch is needed
	last uint64        // guarded by mu; the last session
	now  atomic.Uint64 // set with mu held; the session that hears; 0: none

	checking chan struct{} // has an element for each running check for waiters
}

// A run is a watch in progress.
type run struct {
	stop   context.CancelFunc
	idle   *time.Timer   // stops the run
	hears  chan struct{} // guarded by watch.mu; closed while it hears
	over   func()        // guarded by watch.mu; ends its last session
	failed error         // guarded by watch.mu; why its last session has ended
}

func newWatch(d *Driver, store Watcher) *watch {
	return &watch{d: d, store: store, checking: make(chan struct{}, maxRenewals)}
}

// listen returns when the watch hears, or after a moment that leaves ctx time for a call. Waiters
// call it repeatedly.
func (w *watch) listen(ctx context.Context) {
	_, _ = waiting.Sleep(ctx, w.d.life.Done(), w.going(), aMoment(ctx, watchBegin)) // the next step finds how it ended
}

// aMoment returns most, or less if ctx would have no time left for a call.
func aMoment(ctx context.Context, most time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(most, time.Until(end)/4)
	}
	return most
}

// going continues the current run or begins one, which ends with the driver. It returns a channel
// that is closed while the watch hears.
func (w *watch) going() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run != nil {
		w.run.idle.Reset(watchIdle)
		return w.run.hears
	}
	ctx, stop := context.WithCancel(w.d.life)
	r := &run{stop: stop, hears: make(chan struct{})}
	r.idle = time.AfterFunc(watchIdle, func() { w.idle(r) })
	w.run = r
	w.d.life.Go(func() { w.watch(ctx, r) })
	return r.hears
}

// idle stops a run, unless a holder wants to know of waiters.
func (w *watch) idle(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run == r && len(w.d.wanting()) > 0 { // a later holder starts another run
		r.idle.Reset(watchIdle)
		return
	}
	w.stop(r)
}

// stop stops a run, which may end after the next one has begun. Requires w.mu.
func (w *watch) stop(r *run) {
	if w.run == r {
		w.run = nil
		w.now.Store(0)
	}
	r.stop()
}

// watch watches until ctx ends.
func (w *watch) watch(ctx context.Context, r *run) {
	defer r.idle.Stop()
	if w.d.crowd != nil {
		w.d.crowd.recount()
	}
	for first := true; ctx.Err() == nil; first = false {
		var session uint64
		one, over := context.WithCancel(ctx)
		late := time.AfterFunc(watchLate, over)
		err := w.store.Watch(one, func() {
			late.Stop()
			session = w.began(r, over)
			if !first {
				w.d.wakeAll()
			}
			for _, s := range w.d.wanting() {
				w.d.check(s)
			}
		}, func(i Item) { w.d.heard(i, session) })
		late.Stop()
		over()
		w.ended(r, err)
		again := watchAgain
		if errors.Is(err, driver.ErrDenied) {
			again = watchDenied
		}
		_ = pause.For(ctx, again)
	}
}

// began begins a session, which reports all changes from now on. It returns 0 if the run was
// stopped.
func (w *watch) began(r *run, over func()) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run != r {
		return 0
	}
	w.last++
	w.now.Store(w.last)
	r.over = over
	close(r.hears)
	return w.last
}

// again ends a session that reports nothing, and begins another one.
func (w *watch) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run != nil && w.run.over != nil {
		w.run.over()
	}
}

func (w *watch) ended(r *run, err error) {
	w.mu.Lock()
	if r.failed = err; w.run == r {
		w.now.Store(0)
	}
	select {
	case <-r.hears:
		r.hears = make(chan struct{})
	default: // it has not begun
	}
	w.mu.Unlock()
	if w.d.crowd != nil {
		w.d.crowd.unheard()
	}
}

// errDeaf means that the watch has not begun. Waiters that need it wait.
var errDeaf = fmt.Errorf("caslock: the watch does not hear yet: %w", driver.ErrNotYet)

// session returns the session that hears; 0: none.
func (w *watch) session() uint64 { return w.now.Load() }

// deaf returns why no session hears.
func (w *watch) deaf() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run != nil && errors.Is(w.run.failed, driver.ErrDenied) {
		return w.run.failed
	}
	return errDeaf
}

// heard applies a change if this process knows the name. If the value cannot be read, the next call
// reports it.
func (d *Driver) heard(i Item, session uint64) {
	if first, second, two := parts(i.Name); two {
		if d.crowd != nil {
			d.crowd.heard(first, second, i, session)
		}
		return
	}
	s := d.seen(i.Name)
	if s != nil && d.crowd != nil {
		s.heardUpTo(d.number(i.Version), session)
	}
	if s == nil || d.number != nil && s.newer(d.number, i.Version) {
		return
	}
	if err := d.take(s, i); errors.Is(err, driver.ErrCorrupt) {
		s.doubt()
		s.wakeAll()
	}
}

// heardUpTo records that the line has every change before a change of the record.
func (s *resource) heardUpTo(number, session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil && s.line.session == session {
		s.line.upTo = max(s.line.upTo, number)
	}
}

// newer reports whether a later version than v is known.
func (s *resource) newer(number func(Version) uint64, v Version) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known && number(s.version) > number(v)
}

// wakeAll makes all waiters look again.
func (d *Driver) wakeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.resources {
		s.wakeAll()
	}
}
