package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// retryDeaf is how soon a waiter comes back that the watch does not wake.
	retryDeaf = 200 * time.Millisecond
	// reasonWithin bounds the question why a key was deleted: its holder waits for nothing.
	reasonWithin = 200 * time.Millisecond
	// holdQuietly is how long a claim is held before the watch is wanted for it: what is
	// held for moments is not worth hearing of every other key.
	holdQuietly = 100 * time.Millisecond
	// idleAfter is how long the watch outlives its last use.
	idleAfter = 10 * time.Second
	// Pauses before the watch is begun again.
	rewatchFirst, rewatchLast = 10 * time.Millisecond, time.Second
)

// A watch is the one watch of a driver: it hears of every key below the prefix that is
// deleted. It begins at the present: one that begins at a past revision is served by the
// server's loop for those that lag, every 100 ms. What was deleted before it hears is
// found by reading again. All fields are guarded by Driver.mu.
type watch struct {
	running bool
	live    bool   // nothing that is deleted from now on is missed
	since   int    // counts how often it became live
	again   func() // ends the present watch, which then begins anew; nil: there is none
	timing  bool   // a timer for holds is set

	own     map[string][]*place            // by key; several: of one owner
	waiting map[string]map[*place]struct{} // by dir
}

func (w *watch) init() {
	w.own = make(map[string][]*place)
	w.waiting = make(map[string]map[*place]struct{})
}

// attend makes p hear of its own key, and if it may wait, of those ahead. Requires Driver.mu.
func (w *watch) attend(p *place) {
	w.own[p.key] = append(w.own[p.key], p)
	if !p.claim.req.Queue {
		return
	}
	dir := p.claim.dir
	if w.waiting[dir] == nil {
		w.waiting[dir] = make(map[*place]struct{})
	}
	w.waiting[dir][p] = struct{}{}
}

// forget ends that. Requires Driver.mu.
func (w *watch) forget(p *place) {
	// Who goes over the old ones goes on doing so.
	rest := slices.DeleteFunc(slices.Clone(w.own[p.key]), func(one *place) bool { return one == p })
	if w.own[p.key] = rest; len(rest) == 0 {
		delete(w.own, p.key)
	}
	w.settle(p)
}

// settle is for a place that does not wait any more. Requires Driver.mu.
func (w *watch) settle(p *place) {
	dir := p.claim.dir
	delete(w.waiting[dir], p)
	if len(w.waiting[dir]) == 0 {
		delete(w.waiting, dir)
	}
}

// listen starts the watch. Requires d.mu.
func (d *Driver) listen() {
	if !d.watch.running && !d.closed {
		d.watch.running = true
		d.start(d.runWatch)
	}
}

// rewatch begins the watch anew.
func (d *Driver) rewatch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watch.again != nil {
		d.watch.again()
	}
}

// listenIfHeld starts the watch if something has been held for a while. Requires d.mu.
func (d *Driver) listenIfHeld() {
	if d.watch.running || d.watch.timing || d.closed {
		return
	}
	d.watch.timing = true
	time.AfterFunc(holdQuietly, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.watch.timing = false
		switch now := time.Now(); {
		case d.heldSince(now.Add(-holdQuietly)):
			d.listen()
		case d.heldSince(now):
			d.listenIfHeld()
		}
	})
}

// heldSince reports whether anything has been held since then. Requires d.mu.
func (d *Driver) heldSince(then time.Time) bool {
	for _, places := range d.watch.own {
		for _, p := range places {
			if p.held && !p.since.After(then) {
				return true
			}
		}
	}
	return false
}

// inUse reports whether the watch still serves somebody. Requires d.mu.
func (d *Driver) inUse() bool {
	return len(d.watch.waiting) > 0 || d.heldSince(time.Now().Add(-holdQuietly))
}

func (d *Driver) runWatch() {
	pause := rewatchFirst
	for {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(d.life))
		d.mu.Lock()
		d.watch.again = cancel
		d.mu.Unlock()
		heard, idle := d.watchOnce(ctx)
		cancel()
		if d.deaf(idle) {
			return
		}
		if heard {
			pause = rewatchFirst
		}
		select {
		case <-time.After(pause):
		case <-d.life.Done():
			return
		}
		pause = min(2*pause, rewatchLast)
	}
}

// watchOnce follows one watch until it breaks or nobody needs it.
func (d *Driver) watchOnce(ctx context.Context) (heard, idle bool) {
	events := d.client.Watch(ctx, d.root, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	quiet := time.NewTicker(idleAfter)
	defer quiet.Stop()
	unused := false
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Canceled {
				return heard, false
			}
			if resp.Created {
				heard = true
				d.hearing()
			}
			d.deleted(resp.Events)
		case <-quiet.C:
			d.mu.Lock()
			was := unused
			unused = !d.inUse()
			d.mu.Unlock()
			if was && unused {
				return heard, true
			}
		}
	}
}

// hearing is the begin of a watch: who waits, or holds, must read again.
func (d *Driver) hearing() {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.watch
	w.live = true
	w.since++
	for _, places := range w.waiting {
		for p := range places {
			p.wakeUp()
		}
	}
	var held []*place
	for _, places := range w.own {
		for _, p := range places {
			if p.held {
				held = append(held, p)
			}
		}
	}
	if len(held) > 0 {
		d.start(func() { d.verify(held) })
	}
}

// deaf is the end of a watch. It reports whether the watch is to stay ended: when nobody
// needs it.
func (d *Driver) deaf(idle bool) (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.watch
	w.live, w.again = false, nil
	if idle && (len(w.waiting) > 0 || d.heldSince(time.Now())) {
		idle = false // also what is held for moments: it set no timer
	}
	w.running = !idle && !d.closed
	return !w.running
}

// deleted tells those whom they concern of all the deletions in one message: what is
// deleted at one revision is not split, and nobody sees half of it.
func (d *Driver) deleted(events []*clientv3.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rev := func(i int) int64 {
		if i < 0 || i == len(events) {
			return 0
		}
		return events[i].Kv.ModRevision
	}
	for i, e := range events {
		d.deletedKey(string(e.Kv.Key), rev(i), rev(i-1) != rev(i) && rev(i+1) != rev(i))
	}
}

// deletedKey tells those whom it concerns that a key is gone since revision rev: alone, or
// with others, as by the end of a session. Requires d.mu.
func (d *Driver) deletedKey(key string, rev int64, alone bool) {
	for p := range d.watch.waiting[dirOf(key)] {
		p.gone(key, rev)
	}
	for _, p := range d.watch.own[key] {
		p.deletedAt(rev, alone)
	}
}

// deletedAt tells a place that its key is gone. Requires Driver.mu.
func (p *place) deletedAt(rev int64, alone bool) {
	d := p.claim.d
	switch {
	case rev < p.rev: // the place before had this key
	case p.rev == 0:
		p.lastGone = rev
	case p.held && alone:
		d.start(func() { d.tell(p, rev) })
	case p.held:
		d.start(func() { d.lost(p, errDeleted) })
	default:
		p.over(errDeleted)
	}
}

// tell ends a lease whose key was deleted at revision rev by somebody else, and says why.
func (d *Driver) tell(p *place, rev int64) {
	ctx, cancel := context.WithTimeout(d.life, reasonWithin)
	defer cancel()
	cause := errDeleted
	// The operator's reason stands in the value that the key had, which the member that told
	// of the end knows by itself.
	resp, err := d.client.Get(ctx, p.key, clientv3.WithRev(rev-1), clientv3.WithSerializable())
	if err == nil && len(resp.Kvs) > 0 {
		if why := decode(resp.Kvs[0].Value).Evicted; why != "" {
			cause = errors.New(why)
		}
	}
	d.lost(p, cause)
}

// lost ends a place and calls its Request.Lost.
func (d *Driver) lost(p *place, cause error) {
	d.mu.Lock()
	notify := p.over(cause)
	d.mu.Unlock()
	notify()
}

// verify ends those of held whose keys are gone: what was deleted before the watch began.
func (d *Driver) verify(held []*place) {
	ctx, cancel := context.WithTimeout(d.life, grantWithin)
	defer cancel()
	for len(held) > 0 {
		n := min(len(held), maxCompared)
		if there, err := d.areThere(ctx, held[:n]); err != nil {
			return // their renewals find out
		} else if !there {
			d.verifyEach(ctx, held[:n])
		}
		held = held[n:]
	}
}

func (d *Driver) verifyEach(ctx context.Context, held []*place) {
	for _, p := range held {
		resp, err := d.read(ctx, clientv3.OpGet(p.key))
		if err != nil {
			return
		}
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].CreateRevision != p.rev {
			d.lost(p, errDeleted)
		}
	}
}

var errDeleted = errors.New("its key was deleted, or its session ended")

// asLost makes cause one that a holder understands.
func asLost(cause error) error {
	if errors.Is(cause, driver.ErrLost) {
		return cause
	}
	return fmt.Errorf("%w: %w", driver.ErrLost, cause)
}
