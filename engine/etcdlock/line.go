package etcdlock

import (
	"context"
	"slices"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A line is the queue of one resource as a driver knows it: the keys that a read found, without
// those whose deletion the watch has reported since. All places of the resource share it, so that
// neither a deletion nor a read costs work for each of them. Keys ahead of a place are known by
// their create revisions, and none can come ahead later. Driver.mu guards all fields.
type line struct {
	d      *Driver
	places []*place // none of them is over

	watch int              // the watch that has reported everything since the read; 0: none
	from  boottime.Instant // when the read began
	look                   // what was read, without the keys that have left since

	asked   boottime.Instant // when the last read was sent that may update the line
	reads   int              // pending reads, which need the deletions meanwhile
	heard   []deletion       // deletions since the first of these reads began
	missed  int              // how often the limit of heard was exceeded
	freed   int64            // the last revision at which a key was deleted
	limited int64            // the last revision at which the present watch has reported another limit

	came  map[string]int64 // keys that came since the watch of changes began and have not left; by key: create revision
	nests bool             // "etcdctl lock" has keys below it, which belong to other resources
}

// maxHeard is how many deletions a line keeps for pending reads.
const maxHeard = 10_000

type deletion struct {
	key string
	rev int64
}

// learn takes over a read that began at from. The watch has reported everything since then. learn
// wakes the places that are next. Requires Driver.mu.
func (l *line) learn(watch int, from boottime.Instant, seen look) {
	if seen.rev >= l.limited && (l.watch != watch || seen.rev >= l.rev) { // otherwise it is older than what the line has
		l.watch, l.from, l.look = watch, from, seen
		l.heard = slices.DeleteFunc(l.heard, func(gone deletion) bool { return gone.rev <= seen.rev })
		for _, gone := range l.heard {
			l.leaves(gone)
		}
	}
	l.wakeNext()
}

// hear records the deletion of a key of the resource, and wakes the next if that has changed.
// Requires Driver.mu.
func (l *line) hear(gone deletion) {
	l.freed = gone.rev
	if l.reads > 0 {
		l.heard = append(l.heard, gone)
	}
	if len(l.heard) > maxHeard {
		l.heard = nil
		l.missed++
		for _, p := range l.places {
			p.watch = 0 // whoever reads now must read again
		}
	}
	if l.leaves(gone) {
		l.wakeNext()
	}
}

// leaves removes a key from the queue and reports whether it was there.
func (l *line) leaves(gone deletion) bool {
	if gone.rev <= l.rev { // other clients use keys again, and this is an earlier deletion
		return false
	}
	at := slices.IndexFunc(l.queue, func(e entry) bool { return e.key == gone.key })
	switch {
	case at < 0:
		return false
	case at == 0: // the usual case; the others need not move up
		l.queue = l.queue[1:]
	default:
		l.queue = slices.Delete(l.queue, at, at+1)
	}
	return true
}

// wakeNext wakes the waiters that nobody blocks any more, and those that are now too heavy, to
// learn of it. Requires Driver.mu.
func (l *line) wakeNext() {
	for _, e := range l.holders() {
		l.wake(e)
	}
	if l.limit.Most == 0 {
		return
	}
	for _, e := range l.queue {
		if l.tooHeavy(e) {
			l.wake(e)
		}
	}
}

func (l *line) wake(e entry) {
	if p := l.d.at(e.key); p != nil && p.rev == e.rev && p.phase == queued {
		p.wakeUp()
	}
}

// tooHeavy reports whether e is heavier than its limit. Requires Driver.mu.
func (l *line) tooHeavy(e entry) bool {
	return !l.limit.doubts(e.rev) && l.limit.decided(e.claim(), e.rev).TooHeavy()
}

// limits records that an operator has changed the limit of the resource at dir. Earlier reads count
// no more, so that later deletions let nobody in. The limit is read again, once for all waiters.
// Requires Driver.mu.
func (l *line) limits(dir string, rev int64) {
	l.limited = rev
	if l.watch != 0 && l.rev >= rev && !l.limit.unknown {
		return // the line was read with this limit
	}
	l.watch = 0
	if slices.ContainsFunc(l.places, func(p *place) bool { return p.phase < held }) {
		l.d.life.Go(func() { l.readAgain(dir) })
	}
}

// readAgain reads the queue and the limit. If it cannot, all waiters look for themselves.
func (l *line) readAgain(dir string) {
	d := l.d
	ctx, cancel := context.WithTimeout(d.life, grantWithin)
	defer cancel()
	d.mu.Lock()
	watch, missed, from := d.watch.begun, l.missed, d.clock.Now()
	l.reads++
	d.mu.Unlock()
	seen, err := d.list(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.watch.hears(watch) && l.missed == missed {
		l.learn(watch, from, seen)
	} else {
		for _, p := range l.places {
			p.wakeUp()
		}
	}
	if l.reads--; l.reads == 0 {
		l.heard = nil
	}
}
