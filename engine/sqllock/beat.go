package sqllock

import (
	"context"
	cryptorand "crypto/rand"
	"database/sql"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/onecall"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A heartbeat keeps all places of a process, never leases.
const (
	beatEvery = 2 * time.Second
	// beatWithin bounds a heartbeat, and each kind of work after it, because its connection may be
	// dead and the only one.
	beatWithin = beatEvery / 2
	// believed is how long waiters are answered from memory when places cannot be read.
	believed = 3 * beatEvery
	// quietBeats is how many heartbeats without a waiter end the process's row.
	quietBeats = 4
	// sweepEvery is how many heartbeats pass between two removals of dead processes' places.
	// They stop counting before that.
	sweepEvery = 5
	deadGrace  = 10 * time.Second
	// atOnce bounds the places that one statement removes, and the names for which it refuses
	// newcomers: with many waiters there may be thousands.
	atOnce = 500
	// keptBeats is for how many heartbeats the time of sending is kept: more than fit into
	// placeTTL.
	keptBeats = 32
)

// heartbeat is the state of a watcher's heartbeats.
type heartbeat struct {
	one     onecall.Gate               // for heartbeats
	proc    string                     // guarded by watcher.mu; identifies this driver; new after each pause
	beating bool                       // guarded by watcher.mu; the goroutine runs
	count   int64                      // guarded by watcher.mu; number of the last heartbeat
	sent    map[int64]boottime.Instant // guarded by watcher.mu; when heartbeats were sent, by number
	settled boottime.Instant           // guarded by watcher.mu; when places were last compared with waiters
	last    boottime.Instant           // guarded by watcher.mu; when the last answered one was sent; zero: none
}

func (p *heartbeat) init() {
	p.one, p.proc, p.sent = onecall.New(), cryptorand.Text(), make(map[int64]boottime.Instant)
}

// lives reports whether the places of this driver count for a while. Requires watcher.mu.
func (p *heartbeat) lives() bool { return p.last != 0 && boottime.Now().Sub(p.last) < placeTTL/2 }

// ensureAlive makes sure that new places count, and returns the process that they belong to. It
// sends heartbeats until one has an answer, or ctx ends.
func (w *watcher) ensureAlive(ctx context.Context) (proc string, err error) {
	for {
		w.mu.Lock()
		proc, lives := w.proc, w.lives()
		w.mu.Unlock()
		if lives {
			return proc, nil
		}
		if err := w.one.Begin(ctx); err != nil {
			return "", err
		}
		w.mu.Lock()
		lives = w.lives()
		w.mu.Unlock()
		if !lives {
			err = w.sendHeartbeat(ctx)
		}
		w.one.End()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return "", err
		}
	}
}

// sendHeartbeat sends a heartbeat. Requires w.one.
func (w *watcher) sendHeartbeat(ctx context.Context) error {
	w.mu.Lock()
	w.count++
	proc, number, sent := w.proc, w.count, boottime.Now()
	w.sent[number] = sent
	delete(w.sent, number-keptBeats)
	w.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, beatWithin) // a hanging one must not block the next
	defer stop()
	_, err := w.d.changed(ctx, w.d.texts.beat, proc, record.Micros(placeTTL), number)
	if err == nil {
		w.mu.Lock()
		w.last = sent
		w.mu.Unlock()
	}
	return err
}

// beat sends heartbeats until this driver has had no waiter for a while. It does not report
// errors: waiters notice when their places no longer count.
func (w *watcher) beat() {
	for round, quiet := 1, 0; pause.For(w.life, beatEvery-rand.N(beatEvery/8)) == nil; round++ {
		w.mu.Lock()
		if quiet++; len(w.crowds) > 0 {
			quiet = 0
		}
		proc := w.proc
		if quiet == quietBeats {
			// The new process ignores late heartbeats of the old one.
			w.beating, w.proc, w.last = false, cryptorand.Text(), 0
		}
		w.mu.Unlock()
		ctx, stop := context.WithTimeout(w.life, beatWithin)
		if quiet == quietBeats {
			_, _ = w.d.changed(ctx, w.d.texts.unbeat, proc) // if it fails, the row expires soon
			stop()
			return
		}
		if w.one.Begin(ctx) == nil {
			_ = w.sendHeartbeat(ctx)
			w.one.End()
		}
		stop()
		ctx, stop = context.WithTimeout(w.life, beatWithin)
		w.reconcile(ctx, proc)
		stop()
		if round%sweepEvery == 0 {
			ctx, stop = context.WithTimeout(w.life, beatWithin)
			_ = w.d.sweep(ctx)
			stop()
		}
	}
}

// A placed is one place of this driver in the tables.
type placed struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	Seq   int64  `json:"seq"` // the owner may have another place by now
	over  bool
	fence int64         // last fence of the resource
	left  time.Duration // of the owner's lease
	crowd time.Duration // how long newcomers are still refused
}

// reconcile compares this driver's places with its waiters. It delivers grants, wakes waiters
// that have lost their place, and removes places without a waiter.
func (w *watcher) reconcile(ctx context.Context, proc string) {
	sent := boottime.Now()
	all, err := w.d.placesOf(ctx, proc)
	if err != nil {
		return
	}
	gone, extend := w.applyPlaces(all, sent)
	for part := range slices.Chunk(gone, atOnce) {
		_, _ = w.d.changed(ctx, w.d.texts.remove, proc, list(part...))
	}
	for names := range slices.Chunk(slices.Collect(maps.Keys(extend)), atOnce) {
		_, _ = w.d.extend(ctx, names...)
	}
}

// applyPlaces updates the waiters from places that were read by a call sent at sent. It returns
// the places without a waiter, and the names for which newcomers will soon not be refused.
func (w *watcher) applyPlaces(all []placed, sent boottime.Instant) (gone []placed, extend map[string]bool) {
	unsaid := false // whether others may wait behind a grant that was found here
	defer func() {
		if unsaid {
			w.lookForMissed()
		}
	}()
	defer w.tell()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byHash {
		// It was overdue at the last heartbeat already. If this process was stopped since, its
		// waiters had no chance to try.
		if !one.asking && !one.leaves && one.ended < w.settled.Add(-overdue) {
			w.drop(one) // its place now has no waiter
		}
	}
	w.settled = sent
	extend = make(map[string]bool)
	has := make(map[*waiter]bool, len(all))
	for _, p := range all {
		me := w.waiterOf(p.Name, p.Owner)
		switch {
		case me == nil:
			gone = append(gone, p)
			continue
		case p.left > 0:
			w.give(me, brought{number: p.fence, ends: sent.Add(p.left)})
			unsaid = unsaid || me.recall != nil
		}
		if p.over {
			gone = append(gone, p)
			continue
		}
		has[me] = true
		if me.after != trying && p.left <= 0 {
			me.after = max(me.after, p.fence)
		}
		if p.crowd < placeTTL/2 {
			extend[p.Name] = true
		}
	}
	for _, one := range w.byHash {
		if one.after != trying && one.seen < sent && !has[one] {
			one.isIn = false
			w.wakeUp(one)
		}
	}
	return gone, extend
}

// remove removes a place of this driver that is no longer needed.
func (w *watcher) remove(ctx context.Context, name, owner string, seq int64) {
	w.mu.Lock()
	proc := w.proc
	w.mu.Unlock()
	_, _ = w.d.changed(ctx, w.d.texts.remove, proc, list(placed{Name: name, Owner: owner, Seq: seq}))
}

// extend refuses newcomers that ask by one statement for longer, so that they look at the queue.
// If it fails, they overtake for a while. It changes nothing where they are refused already, or
// where the row is locked.
func (d *Driver) extend(ctx context.Context, names ...string) (changed bool, err error) {
	return d.changed(ctx, d.texts.extend, list(names...), record.Micros(placeTTL))
}

// mostExtensions bounds how often a waiter that has just come asks for a row that is locked.
const mostExtensions = 5

// keepNewcomersOut is extend for a waiter that found newcomers not refused, or not for long. It asks
// again because a renewal locks the row for a moment. A stranger may lock it for long. Where a join
// changes the row, it refused newcomers already.
func (d *Driver) keepNewcomersOut(ctx context.Context, name string) {
	for try := 1; ; try++ {
		changed, err := d.extend(ctx, name)
		if changed || err != nil || try == mostExtensions || d.texts.join != "" {
			return
		}
		r, err := d.lookBy(ctx, d.texts.show, name)
		if err != nil || !r.lapses() || rest(ctx, time.Duration(try)*time.Millisecond) != nil {
			return
		}
	}
}

// sweep removes the places of dead processes. It reads them all, so only if there may be some.
func (d *Driver) sweep(ctx context.Context) error {
	found, err := d.changed(ctx, d.texts.dead, record.Micros(deadGrace))
	if found || err != nil { // without an answer, it may have found some
		d.unburied.Store(true)
	}
	if err == nil && d.unburied.Swap(false) {
		if _, err = d.changed(ctx, d.texts.bury); err != nil {
			d.unburied.Store(true)
		}
	}
	return err
}

// placesOf returns the places of a process.
func (d *Driver) placesOf(ctx context.Context, proc string) ([]placed, error) {
	return read(ctx, d, func(rows *sql.Rows) (p placed, err error) {
		var over, left, crowd int64
		err = rows.Scan(&p.Name, &p.Owner, &p.Seq, &over, &p.fence, &left, &crowd)
		p.over, p.left, p.crowd = over != 0, time.Duration(left)*time.Microsecond, time.Duration(crowd)*time.Microsecond
		return p, err
	}, d.texts.mine, proc)
}
