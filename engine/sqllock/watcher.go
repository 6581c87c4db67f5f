package sqllock

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/record"
)

// How the watcher polls, whatever the dialect's pace.
const (
	// maxBlind bounds how long the version alone is believed, in case it does not tell
	// everything. What it cannot tell, that a lease or a place expires, is known before.
	// It is also the pause after an error.
	maxBlind = 250 * time.Millisecond
	// Pauses between attempts to listen.
	listenFirst, listenLast = 10 * time.Millisecond, time.Second
)

// A watcher wakes the waiters of one Driver when their turn has come: as a Listener hears
// it that has proved to hear, else by polling. It polls, by a goroutine, only while there are any waiters, and
// keeps no connection between two polls.
type watcher struct {
	d      *Driver
	ctx    context.Context // ends with close
	stop   context.CancelFunc
	done   sync.WaitGroup
	nudge  chan struct{} // has a token when it is to look now
	joined chan struct{} // has a token when somebody has come to wait: it is to look soon

	mu           sync.Mutex
	crowds       map[string]*crowd  // guarded by mu; by resource; none is empty
	byHash       map[string]*waiter // guarded by mu; see givenTo
	by           time.Time          // guarded by mu; when something that is in the way ends; zero: not known
	joinedLately bool               // guarded by mu; somebody has come to wait since the last look
	running      bool               // guarded by mu
	listenState
	heartbeat
}

func (w *watcher) init(d *Driver, listener Listener, channel string) {
	w.d, w.listener, w.channel = d, listener, channel
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.nudge, w.joined = make(chan struct{}, 1), make(chan struct{}, 1)
	w.crowds, w.byHash = make(map[string]*crowd), make(map[string]*waiter)
	w.heartbeat.init()
}

// close wakes all, so that they find the driver closed.
func (w *watcher) close() {
	w.mu.Lock()
	w.stop() // under mu, so that no goroutine starts from here on
	w.mu.Unlock()
	w.done.Wait()
	w.wakeAll(func(*waiter) bool { return true })
}

// waiting returns the names that are waited for, or ends the watch if there are none.
func (w *watcher) waiting() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.crowds) == 0 || w.ctx.Err() != nil {
		w.running = false
		return nil
	}
	return slices.Collect(maps.Keys(w.crowds))
}

// wakeAll wakes those who are called.
func (w *watcher) wakeAll(called func(*waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byHash {
		if called(one) {
			w.wakeUp(one)
		}
	}
}

// signal leaves a token in c unless there is one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run polls until nobody waits. An error is not its business: it polls slowly, and the
// waiters find out by themselves when they try again to keep their places.
func (w *watcher) run() {
	var seen version
	var last view
	var changed, due time.Time
	var failed bool
	first := w.d.traits.pace.first
	wait := first // whoever armed has just looked
	if w.hearsAll() {
		wait = keepPlace
	}
	next := time.Now().Add(wait)
	for {
		select {
		case <-time.After(time.Until(w.dueBy(next))):
		case <-w.nudge:
		case <-w.joined:
			if !w.hasJoined() {
				continue
			}
			changed = time.Now()
			if soon := changed.Add(first); !failed && soon.Before(next) {
				next = soon
			}
			continue
		case <-w.ctx.Done():
		}
		start := time.Now()
		if w.passes(start) {
			seen = version{} // what ends by itself is no write
		}
		// Bounded: a connection that a firewall has forgotten may be the only one.
		poll, stop := context.WithTimeout(w.ctx, keepPlace)
		now, err := w.version(poll)
		// Only now: what is written for those who arm later changes the version again.
		all := w.waiting()
		if all == nil {
			stop()
			return
		}
		w.prove(poll)
		if err == nil && (now == version{} || now != seen || !start.Before(due)) {
			var v view
			if v, err = w.look(poll, all); v.sum != last.sum {
				changed = start
			}
			due, last = start.Add(min(v.ends, maxBlind)), v
		}
		stop()
		seen, failed = now, err != nil
		switch {
		case err != nil:
			seen, wait = version{}, maxBlind
		case w.hearsAll():
			wait = keepPlace // in case a message was lost
		default:
			wait = w.d.traits.pace.after(time.Since(changed), time.Since(start), last.ahead)
		}
		next = time.Now().Add(wait)
	}
}

// hasJoined reports whether somebody has come to wait since it was last called.
func (w *watcher) hasJoined() (joined bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	joined, w.joinedLately = w.joinedLately, false
	return joined
}

// dueBy is when to look, next at the latest.
func (w *watcher) dueBy(next time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.by.IsZero() && w.by.Before(next) {
		return w.by
	}
	return next
}

// passes reports whether something that was in the way has ended since it was seen.
func (w *watcher) passes(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	over := !w.by.IsZero() && !now.Before(w.by)
	if over {
		w.by = time.Time{}
	}
	return over
}

// after is the pause after a poll that took spent, where nothing that is waited for has
// changed for quiet, and every waiter of this Driver has at least ahead before it.
func (p pace) after(quiet, spent time.Duration, ahead int) time.Duration {
	wait := max(time.Duration(ahead+1)*p.first, quiet/time.Duration(p.share))
	last := p.last
	if ahead > 0 {
		wait, last = max(wait, p.others), max(last, p.far)
	}
	return max(min(wait, last), min(maxBlind, time.Duration(p.idle)*spent))
}

// A version is equal to an earlier one only if nothing was written in between.
type version struct {
	conn          any // the numbers count per connection
	data, changes int64
}

// version returns the zero value where the dialect has none.
func (w *watcher) version(ctx context.Context) (version, error) {
	if w.d.texts.version == "" {
		return version{}, nil
	}
	conn, err := w.d.db.Conn(ctx)
	if err != nil {
		return version{}, err
	}
	defer conn.Close()
	v := version{conn: new(int)} // like no other
	err = conn.Raw(func(c any) error {
		if reflect.TypeOf(c).Comparable() {
			v.conn = c
		}
		return nil
	})
	if err == nil {
		// Never waits, so that a context would only cost: clients watch it in a goroutine.
		err = conn.QueryRowContext(context.WithoutCancel(ctx), w.d.texts.version).Scan(&v.data, &v.changes)
	}
	return v, err
}

// maxAhead is more than any waiter has before it, where none is known.
const maxAhead = 1000

// A view sums up what a look has seen of those who go on waiting.
type view struct {
	ahead int           // how many are before the foremost
	ends  time.Duration // until something that is in the way first ends by itself
	sum   int64         // changes with every turn
}

// look reads what is waited for, decides as a Try would, and wakes whose turn it is.
func (w *watcher) look(ctx context.Context, all []string) (view, error) {
	sent := boottime.Now()
	found, err := w.d.look(ctx, w.d.texts.state, list(all...))
	if err != nil {
		return view{}, err
	}
	v := view{ahead: maxAhead, ends: maxBlind}
	for _, r := range found {
		lined := w.d.texts.first == "" || w.needsLine(r)
		if lined {
			if err := w.d.line(ctx, r); err != nil {
				return view{}, err
			}
		}
		w.compare(r, lined, sent, &v)
	}
	return v, nil
}

// needsLine reports whether places are to be read where that is a statement of its own: not while the same one holds alone.
func (w *watcher) needsLine(r *row) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.crowds[r.name]
	return of != nil && (of.lined != r.Fence || len(r.Claims) == 0 || !alone(r.Claims[0]))
}

// compare takes in what was read of a resource, lined with its places, by a call that was sent then.
func (w *watcher) compare(r *row, lined bool, sent boottime.Instant, v *view) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.crowds[r.name]
	if of == nil {
		return // nobody waits any more
	}
	of.holder, of.at = driver.Holder{}, sent
	ahead, ours := 0, false
	ends := keepPlace
	for i := range r.Claims {
		c := &r.Claims[i]
		one := of.waiters[c.Owner]
		ours = ours || one != nil
		if ends = min(ends, r.now.Left(c)); c.Status == record.Waiting && !ours {
			ahead++
		}
		switch {
		case c.Status != record.Holding && c.Status != record.Lingering:
		case one != nil && c.Status == record.Holding:
			w.give(one, brought{int64(c.Fence), sent.Add(r.now.Left(c))})
		case of.holder == driver.Holder{}:
			of.holder = c.Holder(r.now)
		}
	}
	for owner := range r.Next {
		if one := of.waiters[owner]; one != nil {
			w.wakeUp(one)
		}
	}
	if lined && len(r.places) < inView { // all are seen
		for owner, one := range of.waiters {
			if one.after != trying && one.seen < sent && r.placeOf(owner) == nil {
				one.isIn = false // it is to take a place anew, or the resource
				w.wakeUp(one)
			}
		}
	}
	switch {
	case !lined:
		ahead = of.ahead
	case !ours:
		ahead = maxAhead
	}
	of.lined, of.ahead = r.Fence, ahead
	if ends < keepPlace {
		w.lookBy(time.Now().Add(ends + time.Millisecond))
	}
	v.ahead, v.ends = min(v.ahead, ahead), min(v.ends, ends)
	v.sum += int64(r.Fence) + int64(ahead)
}
