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
	"github.com/leasehold-go/leasehold/internal/life"
	"github.com/leasehold-go/leasehold/internal/record"
)

// Limits of polling for all dialects.
const (
	// maxBlind bounds how long the watcher relies on the version alone, in case it misses a
	// change. The version cannot show that a lease or a place expires, but the time of that is
	// known. maxBlind is also the pause after an error.
	maxBlind = 250 * time.Millisecond
	// Pauses between attempts to listen.
	listenFirst, listenLast = 10 * time.Millisecond, time.Second
)

// A watcher wakes the waiters of one Driver when their turn has come. It uses its Listener once
// that has proved to receive messages, and otherwise polls. Its goroutine runs only while there
// are waiters, and keeps no connection between two polls.
type watcher struct {
	d       *Driver
	life    *life.Life    // ends with close
	nudge   chan struct{} // signals that the watcher must look now
	joined  chan struct{} // signals a new waiter: look soon
	retimed chan struct{} // signals that by may now be earlier

	mu      sync.Mutex
	crowds  map[string]*crowd  // guarded by mu; by resource; none is empty
	byHash  map[string]*waiter // guarded by mu; see givenTo
	by      time.Time          // guarded by mu; when the first obstacle ends by itself; zero: unknown
	running bool               // guarded by mu
	listenState
	recallState
	heartbeat
}

func (w *watcher) init(d *Driver, listener Listener, channel string) {
	w.d, w.listener, w.channel = d, listener, channel
	w.life = life.New()
	w.nudge, w.joined, w.retimed = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	w.crowds, w.byHash = make(map[string]*crowd), make(map[string]*waiter)
	w.heartbeat.init()
	w.recallState.init()
}

// close wakes all waiters, so that they find the driver closed.
func (w *watcher) close() {
	w.life.End()
	w.life.Wait()
	w.wakeAll(func(*waiter) bool { return true })
}

// waiting returns the names with waiters, or ends the watch if there are none.
func (w *watcher) waiting() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.crowds) == 0 || w.life.Err() != nil {
		w.running = false
		return nil
	}
	return slices.Collect(maps.Keys(w.crowds))
}

// wakeAll wakes all waiters for which called returns true.
func (w *watcher) wakeAll(called func(*waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byHash {
		if called(one) {
			w.wakeUp(one)
		}
	}
}

// signal puts a token into c unless there is one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run polls until nobody waits. After an error it polls slowly. It does not report the error:
// waiters get it when they call Try again to keep their places.
func (w *watcher) run() {
	var seen version
	var last view
	var changed, due time.Time
	var failed bool
	first := w.d.traits.pace.first
	wait := first // the first waiter has just looked
	if w.hearsAll() {
		wait = keepPlace
	}
	next := time.Now().Add(wait)
	for {
		select {
		case <-time.After(time.Until(w.dueBy(next))):
		case <-w.nudge:
		case <-w.retimed:
			continue
		case <-w.joined:
			changed = time.Now()
			if soon := changed.Add(first); !failed && soon.Before(next) {
				next = soon
			}
			continue
		case <-w.life.Done():
		}
		start := time.Now()
		if w.passes(start) {
			seen = version{} // an expiry changes no version
		}
		// Bounded, because the only connection may be one that a firewall has forgotten.
		poll, stop := context.WithTimeout(w.life, keepPlace)
		now, err := w.version(poll)
		// Called after version: writes for later waiters change the version again.
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

// dueBy returns when to look: next at the latest.
func (w *watcher) dueBy(next time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.by.IsZero() && w.by.Before(next) {
		return w.by
	}
	return next
}

// passes reports whether an obstacle has ended since the last look.
func (w *watcher) passes(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	over := !w.by.IsZero() && !now.Before(w.by)
	if over {
		w.by = time.Time{}
	}
	return over
}

// after returns the pause after a poll that took spent. The resources have not changed for
// quiet, and each waiter of this Driver has at least ahead places before it.
func (p pace) after(quiet, spent time.Duration, ahead int) time.Duration {
	wait := max(time.Duration(ahead+1)*p.first, quiet/time.Duration(p.share))
	last := p.last
	if ahead > 0 {
		wait = max(wait, p.others)
		if quiet >= p.far { // else it may be next soon, however many were ahead
			last = max(last, p.far)
		}
	}
	return max(min(wait, last), min(maxBlind, time.Duration(p.idle)*spent))
}

// A version equals an earlier one only if nothing was written in between.
type version struct {
	conn          any // the numbers count per connection
	data, changes int64
}

// version returns the version of the database, or the zero value if the dialect has none.
func (w *watcher) version(ctx context.Context) (version, error) {
	if w.d.texts.version == "" {
		return version{}, nil
	}
	conn, err := w.d.db.Conn(ctx)
	if err != nil {
		return version{}, err
	}
	defer conn.Close()
	v := version{conn: new(int)} // unequal to all others
	err = conn.Raw(func(c any) error {
		if reflect.TypeOf(c).Comparable() {
			v.conn = c
		}
		return nil
	})
	if err == nil {
		// The query never waits, so a context would only add the cost of a goroutine in the
		// client.
		err = conn.QueryRowContext(context.WithoutCancel(ctx), w.d.texts.version).Scan(&v.data, &v.changes)
	}
	return v, err
}

// maxAhead is more than any waiter has before it. It stands for an unknown number.
const maxAhead = 1000

// A view summarises what a look has found for the remaining waiters.
type view struct {
	ahead int           // how many places are ahead of the first waiter
	ends  time.Duration // until the first obstacle ends by itself
	sum   int64         // changes with every grant
}

// look reads the resources, decides as a Try would, and wakes the waiters whose turn it is.
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

// needsLine reports whether places must be read, if that needs a statement of its own. They need
// not while the same grant holds exclusively.
func (w *watcher) needsLine(r *row) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.crowds[r.name]
	return of != nil && (of.lined != r.Fence || len(r.Claims) == 0 || !alone(r.Claims[0]))
}

// compare updates the waiters of a resource from a row that was read by a call sent at sent.
// lined means that the row includes its places.
func (w *watcher) compare(r *row, lined bool, sent boottime.Instant, v *view) {
	defer w.tell()
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
			w.give(one, brought{int64(c.Fence), sent.Add(r.now.Left(c)), r.Awaited(c.Owner)})
		case of.holder == driver.Holder{}:
			of.holder = c.Holder(r.now)
		}
	}
	for owner := range r.Next {
		if one := of.waiters[owner]; one != nil {
			w.wakeUp(one)
		}
	}
	if lined && len(r.places) < inView { // all places were read
		for owner, one := range of.waiters {
			if one.after != trying && one.seen < sent && r.placeOf(owner) == nil {
				one.isIn = false // it must acquire or take a place again
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
