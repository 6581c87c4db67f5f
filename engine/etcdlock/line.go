package etcdlock

import (
	"slices"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A line is what a driver knows of the queue of one resource: who was in it, by a read, and who has left since, by
// the watch. All places of the resource share it, so that neither a deletion nor a read is work for each of them.
// Keys ahead of a place are known by their create revisions, and none can come ahead later. All fields are guarded
// by Driver.mu.
type line struct {
	d      *Driver
	places []*place // of the resource, none of which is over

	watch int              // which watch hears since before the read; 0: none
	from  boottime.Instant // when the read began
	rev   int64            // as of which the keys were read
	queue []entry          // those that are left, in order

	asked boottime.Instant // when the last read was sent from which it may learn
	reads int              // places that want what is deleted while they read
	heard []deletion       // since the first of them began
	freed int64            // the last revision at which a key was deleted

	came  map[string]int64 // keys that came since the watch of changes began, and are there; with their create revisions
	nests bool             // "etcdctl lock" has keys below it, which belong to other resources
}

// maxHeard is how many deletions a line keeps for those who read.
const maxHeard = 10_000

type deletion struct {
	key string
	rev int64
}

// learn takes over what a read told that began at from, of which the watch hears since. It wakes those who are next.
// Requires Driver.mu.
func (l *line) learn(watch int, from boottime.Instant, rev int64, queue []entry) {
	if l.watch != watch || rev >= l.rev { // else it was overtaken
		l.watch, l.from, l.rev, l.queue = watch, from, rev, queue
		l.heard = slices.DeleteFunc(l.heard, func(gone deletion) bool { return gone.rev <= rev })
		for _, gone := range l.heard {
			l.leaves(gone)
		}
	}
	l.wakeNext()
}

// hear is told of each key of the resource that is deleted, and wakes those who are next if that has changed.
// Requires Driver.mu.
func (l *line) hear(gone deletion) {
	l.freed = gone.rev
	if l.reads > 0 {
		l.heard = append(l.heard, gone)
	}
	if len(l.heard) > maxHeard {
		l.heard = nil
		for _, p := range l.places {
			p.wait.watch = 0 // who reads now is to read again
		}
	}
	if l.leaves(gone) {
		l.wakeNext()
	}
}

// leaves takes a key out of the queue, and reports whether it was there.
func (l *line) leaves(gone deletion) bool {
	if gone.rev <= l.rev { // old news: other clients use a key again
		return false
	}
	at := slices.IndexFunc(l.queue, func(e entry) bool { return e.key == gone.key })
	switch {
	case at < 0:
		return false
	case at == 0: // as a rule; the others need not move up
		l.queue = l.queue[1:]
	default:
		l.queue = slices.Delete(l.queue, at, at+1)
	}
	return true
}

// wakeNext wakes those who wait, and for whom nobody is in the way any more. Requires Driver.mu.
func (l *line) wakeNext() {
	for _, e := range holders(l.queue) {
		if p := l.d.at(e.key); p != nil && p.rev == e.rev && p.phase == queued {
			p.wakeUp()
		}
	}
}
