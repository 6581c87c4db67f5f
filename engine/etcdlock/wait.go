package etcdlock

import (
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// A wait is what a place in the queue knows of those ahead: who they were, by a read, and
// which of them have gone since, by the watch. Keys ahead are known by their create revisions,
// and none can come ahead later. All fields are guarded by Driver.mu.
type wait struct {
	watch int              // which watch hears since before they were read; 0: none
	from  boottime.Instant // when the call began that read them, and the place's own key
	rev   int64            // as of which they were read; 0: they are not yet
	ahead []entry          // those that are left
	heard []deletion       // what was deleted before they were read
	free  bool             // nobody keeps it from being granted any more
	wake  chan struct{}    // closed when Try may bring news; nil: nobody waits
}

type deletion struct {
	key string
	rev int64
}

// listen is called before those ahead are read. Requires Driver.mu.
func (p *place) listen() {
	p.wait = wait{wake: p.wait.wake}
	if w := &p.d.watch; w.live {
		p.wait.watch = w.begun
	}
}

// reliable reports whether the watch has told all since listen. Requires Driver.mu.
func (p *place) reliable() bool {
	w := &p.d.watch
	return w.live && p.wait.watch == w.begun
}

// waitFor makes p wait for those ahead, as they were at revision rev, and returns what
// closes when nobody is ahead. Requires Driver.mu.
func (p *place) waitFor(ahead []entry, rev int64, started boottime.Instant) <-chan struct{} {
	p.wakeUp() // whoever waits for an earlier one: nobody, or another claim of its owner
	wake := make(chan struct{})
	w := &p.wait
	w.wake, w.ahead, w.rev, w.from = wake, slices.Clone(ahead), rev, started
	heard := w.heard
	w.heard = nil
	for _, h := range heard {
		p.hear(h)
	}
	return wake
}

// hear is told of each key of the resource that is deleted. Requires Driver.mu.
func (p *place) hear(gone deletion) {
	w := &p.wait
	switch {
	case w.rev == 0 && p.calls > 0:
		w.heard = append(w.heard, gone)
		return
	case w.rev == 0, gone.rev <= w.rev: // old news: other clients use a key again
		return
	}
	before := len(w.ahead)
	w.ahead = slices.DeleteFunc(w.ahead, func(e entry) bool { return e.key == gone.key })
	if len(w.ahead) < before && p.holdsBehind(w.ahead) {
		w.free = true
		p.wakeUp()
	}
}

// hearOwn tells whether its own key was deleted, by what was heard before it was known to
// exist. Requires Driver.mu.
func (p *place) hearOwn() {
	if slices.ContainsFunc(p.wait.heard, func(h deletion) bool { return h.key == p.key && h.rev > p.rev }) {
		p.on(lost, errDeleted)
	}
}

// holdsBehind reports whether the place holds with all of ahead before it. It goes on doing
// so: others come behind, and those ahead only go.
func (p *place) holdsBehind(before []entry) bool {
	ahead := queue.Behind(before, len(before), entry.claim)
	return ahead.Admits(queue.Claim{Mode: p.claim.req.Mode, Limit: p.claim.req.Limit})
}

// wakeUp closes Wake. Requires Driver.mu.
func (p *place) wakeUp() {
	if p.wait.wake != nil {
		close(p.wait.wake)
		p.wait.wake = nil
	}
}

// endWait is for a place that waits no more. Requires Driver.mu.
func (p *place) endWait() {
	p.wakeUp()
	p.wait = wait{}
}

// isNext reports whether nothing is ahead: it holds already, or the watch has told so. It
// is sure of it when its key needs no reading. The watch tells of its own key too, in
// order: so the key was there when the last one ahead went. From then on only somebody who
// ends leases by force deletes it, as long as its session lives; and that it does, for the
// TTL, a keep-alive has told that was sent within the last moment. A leader that is new may
// answer one although the end of the lease is decided: so its TTL must not have passed
// since the key was found. Requires Driver.mu.
func (p *place) isNext(ttl time.Duration, started boottime.Instant) (next, sure bool) {
	free := p.phase == queued && p.wait.free && p.reliable()
	sure = free && len(p.unsure.moves) == 0 &&
		p.fits(ttl) && p.in.covers(started) &&
		started < p.wait.from.Add(p.in.ttl)
	return p.phase == held || free, sure
}
