package sqllock

import (
	"context"
	cryptorand "crypto/rand"
	"database/sql"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A process keeps all of its places by one statement, a beat: what it costs the database does not grow with the number of
// waiters. A beat keeps places, never leases.
const (
	beatEvery = 2 * time.Second
	// beatWithin bounds a beat, as its connection may be dead and the only one, and what follows it.
	beatWithin = beatEvery / 2
	// believed is for how long waiters are answered from memory when places cannot be read.
	believed = 3 * beatEvery
	// quietBeats is after how many beats without a waiter the process has none, and its row goes.
	quietBeats = 4
	// sweepEvery is after how many beats the places of dead processes are removed. They count no longer before that.
	sweepEvery = 5
	deadGrace  = 10 * time.Second
	// removedAtOnce bounds how many places one statement removes: after a crowd has been served there are thousands.
	removedAtOnce = 500
	// keptBeats is of how many beats it is known when they were sent: of more than end in placeTTL.
	keptBeats = 32
)

// A heartbeat is what a watcher knows of its beats.
type heartbeat struct {
	one     chan struct{}              // has a token while a beat has no answer yet
	proc    string                     // guarded by watcher.mu; tells this driver from all others, anew after each pause
	beating bool                       // guarded by watcher.mu; there is a goroutine
	count   int64                      // guarded by watcher.mu; the number of the last beat
	sent    map[int64]boottime.Instant // guarded by watcher.mu; when beats were, by number
	settled boottime.Instant           // guarded by watcher.mu; when places were last compared with waiters
	last    boottime.Instant           // guarded by watcher.mu; when the last one was that has an answer; zero: none
}

func (p *heartbeat) init() {
	p.one, p.proc, p.sent = make(chan struct{}, 1), cryptorand.Text(), make(map[int64]boottime.Instant)
}

// lives reports whether the places of this driver count for a good while. Requires watcher.mu.
func (p *heartbeat) lives() bool { return p.last != 0 && boottime.Now().Sub(p.last) < placeTTL/2 }

// ensureAlive sees to it that places count that are made now, and returns whose they are.
func (w *watcher) ensureAlive(ctx context.Context) (proc string, err error) {
	for {
		w.mu.Lock()
		proc, lives := w.proc, w.lives()
		w.mu.Unlock()
		if lives {
			return proc, nil
		}
		select {
		case w.one <- struct{}{}:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		w.mu.Lock()
		lives = w.lives()
		w.mu.Unlock()
		if !lives {
			err = w.sendHeartbeat(ctx)
		}
		<-w.one
		if err != nil {
			return "", err
		}
	}
}

// sendHeartbeat makes a beat. Requires the token.
func (w *watcher) sendHeartbeat(ctx context.Context) error {
	w.mu.Lock()
	w.count++
	proc, number, sent := w.proc, w.count, boottime.Now()
	w.sent[number] = sent
	delete(w.sent, number-keptBeats)
	w.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, beatWithin) // else one that hangs keeps the next from being made
	defer stop()
	_, err := w.d.changed(ctx, w.d.texts.beat, proc, record.Micros(placeTTL), number)
	if err == nil {
		w.mu.Lock()
		w.last = sent
		w.mu.Unlock()
	}
	return err
}

// beat keeps the places of this driver until it has had none for a while. An error is not its business: waiters find out
// when their places do not count for sure.
func (w *watcher) beat() {
	for round, quiet := 1, 0; pause.For(w.ctx, beatEvery-rand.N(beatEvery/8)) == nil; round++ {
		w.mu.Lock()
		if quiet++; len(w.crowds) > 0 {
			quiet = 0
		}
		proc := w.proc
		if quiet == quietBeats {
			// A beat that comes late is none of those to come.
			w.beating, w.proc, w.last = false, cryptorand.Text(), 0
		}
		w.mu.Unlock()
		ctx, stop := context.WithTimeout(w.ctx, beatWithin)
		if quiet == quietBeats {
			_, _ = w.d.changed(ctx, w.d.texts.unbeat, proc) // else it is over soon
			stop()
			return
		}
		select {
		case w.one <- struct{}{}:
			_ = w.sendHeartbeat(ctx)
			<-w.one
		case <-ctx.Done():
		}
		stop()
		ctx, stop = context.WithTimeout(w.ctx, beatWithin)
		w.reconcile(ctx, proc)
		if round%sweepEvery == 0 {
			_ = w.d.sweep(ctx)
		}
		stop()
	}
}

// A placed is what the tables say of a place of this driver.
type placed struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	over  bool
	fence int64         // last given of the resource
	left  time.Duration // of the lease that the owner was given
	crowd time.Duration // for how long newcomers are refused
}

// reconcile compares the places that this driver has with its waiters: who was granted, who has lost a place, and which are
// of nobody.
func (w *watcher) reconcile(ctx context.Context, proc string) {
	sent := boottime.Now()
	all, err := w.d.placesOf(ctx, proc)
	if err != nil {
		return
	}
	gone, extend := w.applyPlaces(all, sent)
	for part := range slices.Chunk(gone, removedAtOnce) {
		_, _ = w.d.changed(ctx, w.d.texts.remove, proc, list(part...))
	}
	for name := range extend {
		w.d.extend(ctx, name)
	}
}

// applyPlaces tells the waiters what the tables said, by a call that was sent then. It returns the places that are of nobody,
// and the names of which newcomers are soon not refused.
func (w *watcher) applyPlaces(all []placed, sent boottime.Instant) (gone []placed, extend map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byHash {
		// It was overdue at the last beat: if this process stood still since, its waiters are not to blame.
		if !one.asking && one.ended < w.settled.Add(-overdue) {
			w.drop(one) // and its place is of nobody
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
			w.give(me, brought{p.fence, sent.Add(p.left)})
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

// remove removes a place of this driver that is not needed any more.
func (w *watcher) remove(ctx context.Context, name, owner string) {
	w.mu.Lock()
	proc := w.proc
	w.mu.Unlock()
	_, _ = w.d.changed(ctx, w.d.texts.remove, proc, list(placed{Name: name, Owner: owner}))
}

// extend has newcomers be refused who ask by one statement: they are to look. Should it fail, they overtake for a while.
func (d *Driver) extend(ctx context.Context, name string) {
	_, _ = d.changed(ctx, d.texts.extend, name, record.Micros(placeTTL))
}

// sweep removes what dead processes have left.
func (d *Driver) sweep(ctx context.Context) error {
	found, err := d.changed(ctx, d.texts.dead, record.Micros(deadGrace))
	if found && err == nil {
		_, err = d.changed(ctx, d.texts.bury)
	}
	return err
}

// placesOf returns the places of a process.
func (d *Driver) placesOf(ctx context.Context, proc string) (all []placed, err error) {
	on, err := d.ready(ctx)
	if err != nil {
		return nil, err
	}
	err = d.retry(ctx, on, func(on runner) error {
		all = nil
		return each(ctx, on, func(rows *sql.Rows) error {
			var p placed
			var over, left, crowd int64
			err := rows.Scan(&p.Name, &p.Owner, &over, &p.fence, &left, &crowd)
			p.over, p.left, p.crowd = over != 0, time.Duration(left)*time.Microsecond, time.Duration(crowd)*time.Microsecond
			all = append(all, p)
			return err
		}, d.texts.mine, proc)
	})
	return all, err
}
