package sqllock

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// How the watcher polls.
const (
	// minPoll is the pause of who is next after something has changed: about what a
	// commit takes, so that polling faster would find nothing more. A turn takes no
	// less, so who is further back polls as many times slower.
	minPoll = 500 * time.Microsecond
	// maxPoll is the pause where nothing has changed for long.
	maxPoll = 20 * time.Millisecond
	// pollShare makes the pause a share of the quiet time: between minPoll and maxPoll,
	// nobody waits 3 % longer than it has to.
	pollShare = 32
	// idleShare bounds what polling may cost: the pause is at least so many times as
	// long as the poll took, at most maxBlind. It matters where many wait in a store
	// that is written to all the time, or where the machine is too busy to poll.
	idleShare = 4
	// maxBlind bounds how long the version alone is believed, in case it does not tell
	// everything. What it cannot tell, that a lease or a place expires, is known before.
	maxBlind = 250 * time.Millisecond
)

// A watcher wakes the waiters of one Driver when their turn has come. Its goroutine
// lives only while there are any. It keeps no connection between two polls.
type watcher struct {
	d    *Driver
	ctx  context.Context // ends with close
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	armed   map[string]*waiter // by owner; guarded by mu
	running bool               // guarded by mu
}

type waiter struct {
	req  driver.Request
	wake chan struct{}
}

func (w *watcher) init(d *Driver) {
	w.d = d
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.armed = make(map[string]*waiter)
}

// arm returns a channel that closes when req may be granted, or earlier. It replaces
// an earlier one of the same owner.
func (w *watcher) arm(req *driver.Request) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	me := &waiter{req: *req, wake: make(chan struct{})}
	w.armed[req.Owner] = me
	if !w.running && w.ctx.Err() == nil {
		w.running = true
		w.done.Go(w.run)
	}
	return me.wake
}

// disarm lets go of owner's channel, which need not close any more.
func (w *watcher) disarm(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.armed, owner)
}

// close wakes all, so that they find the driver closed.
func (w *watcher) close() {
	w.mu.Lock()
	w.stop() // under mu, so that no goroutine starts from here on
	w.mu.Unlock()
	w.done.Wait()
	w.wake(func(*waiter) bool { return true })
}

// waiting returns the names that are waited for, or ends the watch if there are none.
func (w *watcher) waiting() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.armed) == 0 || w.ctx.Err() != nil {
		w.running = false
		return nil
	}
	seen := make(map[string]bool, len(w.armed))
	var all []string
	for _, one := range w.armed {
		if name := one.req.Resource; !seen[name] {
			seen[name] = true
			all = append(all, name)
		}
	}
	return all
}

// wake closes the channels of those whose turn it is.
func (w *watcher) wake(turn func(*waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for owner, one := range w.armed {
		if turn(one) {
			close(one.wake)
			delete(w.armed, owner)
		}
	}
}

// run polls until nobody waits. An error is not its business: it polls slowly, and the
// waiters find out by themselves when they try again to keep their places.
func (w *watcher) run() {
	var seen version
	var last view
	var changed, due time.Time
	for pause := time.Duration(0); ; {
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
		}
		start := time.Now()
		now, err := w.version()
		// Only now: what is written for those who arm later changes the version again.
		all := w.waiting()
		if all == nil {
			return
		}
		if err == nil && (now != seen || !start.Before(due)) {
			var v view
			if v, err = w.look(all); v.sum != last.sum {
				changed = start
			}
			due, last = start.Add(min(v.ends, maxBlind)), v
		}
		seen = now
		pause = pace(time.Since(changed), time.Since(start), last.ahead)
		if err != nil {
			seen, pause = version{}, maxBlind
		}
	}
}

// pace is the pause after a poll that took spent, where nothing that is waited for has
// changed for quiet, and every waiter of this Driver has at least ahead before it.
func pace(quiet, spent time.Duration, ahead int) time.Duration {
	pause := max(time.Duration(ahead+1)*minPoll, quiet/pollShare)
	return min(maxBlind, max(min(pause, maxPoll), idleShare*spent))
}

// A version is equal to an earlier one only if nothing was written in between.
type version struct {
	conn          any // the numbers count per connection
	data, changes int64
}

func (w *watcher) version() (version, error) {
	conn, err := w.d.db.Conn(w.ctx)
	if err != nil {
		return version{}, err
	}
	defer conn.Close()
	v := version{conn: new(int)} // like no other
	if w.d.texts.version == "" {
		return v, nil
	}
	err = conn.Raw(func(c any) error {
		if reflect.TypeOf(c).Comparable() {
			v.conn = c
		}
		return nil
	})
	if err == nil {
		// Never waits, so that a context would only cost: clients watch it in a goroutine.
		err = conn.QueryRowContext(context.WithoutCancel(w.ctx), w.d.texts.version).Scan(&v.data, &v.changes)
	}
	return v, err
}

// A view sums up what a look has seen of those who go on waiting.
type view struct {
	ahead int           // how many are before the foremost
	ends  time.Duration // until something that is in the way first ends by itself
	sum   int64         // changes with every turn
}

// look reads what is waited for, decides as a Try would, and wakes whose turn it is.
func (w *watcher) look(all []string) (view, error) {
	found, err := w.d.look(w.ctx, w.d.texts.state, names(all...))
	if err != nil {
		return view{}, err
	}
	byName := make(map[string]*resource, len(all))
	for _, name := range all {
		byName[name] = &resource{} // free, unless found
	}
	for i := range found {
		byName[found[i].lock.name] = &found[i]
	}
	v := view{ahead: int(maxPoll / minPoll), ends: maxBlind}
	w.wake(func(one *waiter) bool {
		r := byName[one.req.Resource]
		if r == nil {
			return false // armed since
		}
		until := r.obstacle(&one.req)
		if until == 0 {
			return true
		}
		ahead := r.ahead(one.req.Owner)
		v.ahead, v.ends = min(v.ahead, ahead), min(v.ends, millis(until-r.now))
		v.sum += r.lock.fence + int64(ahead)
		return false
	})
	return v, nil
}
