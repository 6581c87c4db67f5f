package etcdlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
)

const (
	// retryDeaf is how soon a waiter that the watch does not wake comes back.
	retryDeaf = 200 * time.Millisecond
	// reasonWithin bounds the search for the reason of a deletion. Its holder does not wait for it.
	reasonWithin = 200 * time.Millisecond
	// lastWordWithin bounds it when the revision is unknown. A server serves watches of the past
	// only every 100 ms.
	lastWordWithin = time.Second
	// holdQuietly is how long a claim is held before it needs the watch. Claims that are held
	// briefly are not worth the deletions of all other keys.
	holdQuietly = 100 * time.Millisecond
	// idleAfter is how long the watch outlives its last use.
	idleAfter = 10 * time.Second
	// Pauses before the watch is begun again.
	rewatchFirst, rewatchLast = 10 * time.Millisecond, time.Second
)

// A watch reports keys below the prefix that are deleted, or also those that are put. It begins at
// the present, because the server serves a watch that begins in the past only every 100 ms, as one
// that lags. A read then finds what happened before the watch was live.
//
// etcd's client resumes the watch after the last revision that it has received. If it cannot, as
// after a compaction, the watch ends, and another begins.
//
// The silence of a watch proves nothing. While the member that carries it hangs, it looks as if
// nothing had happened, and a progress notification may overtake what it should follow (etcd
// #15220). So renewals read.
//
// Driver.mu guards all fields from running on.
type watch struct {
	d      *Driver
	opts   []clientv3.OpOption         // filters out what it must not report
	isUsed func() bool                 // whether it must run; requires Driver.mu
	begins func()                      // called when it is live; requires Driver.mu
	tells  func(all []*clientv3.Event) // called with the events of each message

	running bool
	live    bool   // it misses nothing from now on
	begun   int    // counts how often it became live
	from    int64  // if it is live: it reports all later revisions
	last    int64  // the last revision that d.changes has reported
	again   func() // ends the present watch, if it has not ended, so that it begins anew; nil: there was none
}

// want starts the watch. Requires Driver.mu.
func (w *watch) want() {
	if !w.running && !w.d.isClosed() {
		w.running = true
		w.d.life.Go(w.run)
	}
}

// rewatch begins the watches anew.
func (d *Driver) rewatch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range []*watch{&d.watch, &d.changes} {
		if w.again != nil {
			w.again()
		}
	}
}

// usesWatch reports whether anybody waits, or has held for a while. Requires d.mu.
func (d *Driver) usesWatch() bool {
	then := d.clock.Now().Add(-holdQuietly)
	return slices.ContainsFunc(d.all(), func(p *place) bool {
		return p.phase < held && p.claim.req.Queue || p.phase == held && p.since <= then
	})
}

func (w *watch) run() {
	d := w.d
	rest := rewatchFirst
	for {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(d.life))
		d.mu.Lock()
		w.again = cancel
		d.mu.Unlock()
		heard, unused := w.once(ctx)
		cancel()
		if unused { // another claim may have started it by now
			return
		}
		d.mu.Lock()
		w.live = false
		d.mu.Unlock()
		if heard {
			rest = rewatchFirst
		}
		if pause.For(d.life, rest) != nil { // the driver was closed
			return
		}
		rest = min(2*rest, rewatchLast)
	}
}

// once follows one watch until it breaks or nobody has used it for a while.
func (w *watch) once(ctx context.Context) (heard, unused bool) {
	d := w.d
	events := d.client.Watch(ctx, d.root, append(w.opts, clientv3.WithPrefix(), clientv3.WithCreatedNotify())...)
	look := time.NewTicker(idleAfter)
	defer look.Stop()
	used := true
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Canceled {
				return heard, false
			}
			if resp.Created {
				heard = true
				w.hearing(resp.Header.Revision)
			}
			w.tells(resp.Events)
		case <-look.C:
			d.mu.Lock()
			was := used
			used = w.isUsed()
			if !was && !used {
				w.running, w.live = false, false
				d.mu.Unlock()
				return heard, true
			}
			d.mu.Unlock()
		}
	}
}

// hearing handles the beginning of a watch, as the server was at that revision or before.
func (w *watch) hearing(rev int64) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.live, w.from, w.last = true, rev, rev
	w.begun++
	w.begins()
}

// readAgain makes waiters and holders read again. Requires d.mu.
func (d *Driver) readAgain() {
	for _, l := range d.of {
		l.heard, l.limited = nil, 0 // whoever is reading must read again
	}
	var all []*place
	for _, p := range d.all() {
		if p.phase == held {
			all = append(all, p)
		} else {
			p.wakeUp()
		}
	}
	if len(all) > 0 {
		d.life.Go(func() { d.verify(all) })
	}
}

// deleted notifies the places concerned of all deletions in one message. Deletions at one revision
// are not split, so nobody sees half of them.
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
		gone := deletion{string(e.Kv.Key), rev(i)}
		alone := rev(i-1) != rev(i) && rev(i+1) != rev(i) // otherwise a session has ended, or the like
		if dir, ok := d.limitedBy(gone.key); ok && d.of[dir] != nil {
			d.of[dir].limits(dir, gone.rev)
		}
		if l := d.of[dirOf(gone.key)]; l != nil {
			l.hear(gone)
		}
		switch p := d.at(gone.key); {
		case p == nil:
		case p.rev == 0: // whether that was its key is unknown
			p.gone = gone.rev
		default:
			p.deletedAt(gone.rev, alone)
		}
	}
}

// lost records that the key of a place is gone.
func (d *Driver) lost(p *place, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.on(lost, cause)
}

// verify ends the places of all whose keys are gone, because they were deleted before the watch
// began. It gives the reason only if that is known at once: the next may hold already.
func (d *Driver) verify(all []*place) {
	ctx, cancel := context.WithTimeout(d.life, grantWithin)
	defer cancel()
	_ = d.eachGone(ctx, all, func(gone []*place) { // if it fails, the next renewals find out
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range gone {
			if len(gone) > maxSingly { // their session has ended
				p.on(lost, errDeleted)
			} else {
				d.life.Go(func() { d.lost(p, p.lastWord(reasonWithin)) })
			}
		}
	})
}

var (
	errDeleted = errors.New("its key was deleted, or its session ended")
	// errElsewhere: another process of its owner has left the key to linger.
	errElsewhere = errors.New("another process of its owner has released it")
)

// deletedAt records that the key of a place is gone. Requires Driver.mu.
func (p *place) deletedAt(rev int64, alone bool) {
	switch {
	case rev < p.rev: // an earlier place had this key
	case p.phase == held && alone:
		p.d.life.Go(func() { p.d.lost(p, p.d.reason(p.key, rev)) })
	default:
		p.on(lost, errDeleted)
	}
}

// reason returns why another process deleted a key at revision rev. The reason of an operator is in
// the last value of the key. The member that reported the deletion has that value, so a
// serializable read suffices.
func (d *Driver) reason(key string, rev int64) error {
	ctx, cancel := context.WithTimeout(d.life, reasonWithin)
	defer cancel()
	resp, err := d.client.Get(ctx, key, clientv3.WithRev(rev-1), clientv3.WithSerializable())
	if err != nil || len(resp.Kvs) == 0 {
		return errDeleted
	}
	return byOrder(decode(resp.Kvs[0].Value).Evicted)
}

// byOrder returns the cause for a deleted key with the reason evicted in its value.
func byOrder(evicted string) error {
	if evicted == "" {
		return errDeleted
	}
	return driver.Evicted(strings.TrimPrefix(evicted, evictedFor))
}

// lastWord returns why the key was deleted, by its history since it was created.
func (p *place) lastWord(within time.Duration) error {
	created := p.revision()
	if created == 0 {
		return errDeleted
	}
	ctx, cancel := context.WithTimeout(p.d.life, within)
	defer cancel()
	said := ""
	for resp := range p.d.client.Watch(ctx, p.key, clientv3.WithRev(created+1)) {
		for _, e := range resp.Events {
			if e.Type == clientv3.EventTypeDelete {
				return byOrder(said)
			}
			said = decode(e.Kv.Value).Evicted
		}
	}
	return errDeleted
}
