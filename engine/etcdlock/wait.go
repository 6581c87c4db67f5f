package etcdlock

import (
	"cmp"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// listen must be called before those ahead are read. Requires Driver.mu.
func (p *place) listen() {
	if !p.listens && p.claim.req.Queue {
		p.listens = true
		p.line.reads++
	}
	if p.listens {
		p.line.asked = p.d.clock.Now()
	}
	p.gone = 0
	p.watch = 0
	if w := &p.d.watch; w.live {
		p.watch = w.begun
	}
}

// deaf undoes listen. Requires Driver.mu.
func (p *place) deaf() {
	if !p.listens {
		return
	}
	p.listens = false
	if p.line.reads--; p.line.reads == 0 {
		p.line.heard = nil
	}
}

// hears reports whether the watch is live and has missed nothing since its begin number since.
// Requires Driver.mu.
func (w *watch) hears(since int) bool { return w.live && since == w.begun }

// waitFor makes p wait for those ahead in a queue that was read by a call that started then. It
// returns a channel that closes when Try may bring news. Requires Driver.mu.
func (p *place) waitFor(seen look, started boottime.Instant) <-chan struct{} {
	p.wakeUp() // an earlier channel may have a caller, of another claim of the same owner
	p.wake = make(chan struct{})
	wake := p.wake
	if p.listens && p.d.watch.hears(p.watch) {
		p.line.learn(p.watch, started, seen)
	}
	return wake
}

// ahead returns how many are ahead of the place. It knows this if the line has its key as it is,
// and the watch has reported all deletions since the line was read. Otherwise it returns -1, and
// the queue must be read. Requires Driver.mu.
func (p *place) ahead() int {
	l := p.line
	if p.phase != queued || !p.d.watch.hears(l.watch) {
		return -1
	}
	i, _ := slices.BinarySearchFunc(l.queue, p.rev, func(e entry, rev int64) int { return cmp.Compare(e.rev, rev) })
	for ; i < len(l.queue) && l.queue[i].rev == p.rev; i++ { // another client may make several keys at one revision
		if l.queue[i].key == p.key {
			return i
		}
	}
	return -1
}

// stays refuses a place that a recent read has shown behind others. It returns nil if the queue
// must be read. Requires Driver.mu.
func (p *place) stays() *driver.Busy {
	l, ahead := p.line, p.ahead()
	if ahead < 1 || !p.known(l.queue[ahead]) || l.tooHeavy(l.queue[ahead]) || l.limit.unknown && ahead < len(l.holders()) {
		return nil
	}
	busy := p.busy(l.queue[:ahead])
	// One read at a time is enough, unless those reads fail.
	if now := p.d.clock.Now(); now >= l.asked.Add(busy.Retry) || now >= l.from.Add(2*busy.Retry) {
		return nil
	}
	if p.wake == nil {
		p.wake = make(chan struct{})
	}
	busy.Wake = p.wake
	return busy
}

// known reports whether the key of the place, which was read as e, is still in that session.
// Requires Driver.mu.
func (p *place) known(e entry) bool {
	return p.in != nil && e.lease == p.in.id && len(p.unsure.moves) == 0
}

// busy refuses a place that waits for those before it. Requires Driver.mu.
func (p *place) busy(before []entry) *driver.Busy {
	busy := &driver.Busy{Retry: p.ttl() / 3, Holder: before[0].holder()}
	switch {
	case !p.d.watch.live:
		busy.Retry = retryDeaf
	case len(before) == 1:
		busy.Retry = min(busy.Retry, lookAgain)
	}
	return busy
}

// wakeUp closes Wake. Requires Driver.mu.
func (p *place) wakeUp() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

// isNext reports whether nothing is ahead, because the place holds already or the watch has said
// so. sure reports that the place's key need not be read.
//
// The watch also reports the place's own key, in order, so the key existed when the last one ahead
// left. From then on, while its session lives, it is deleted only by force. A keep-alive that was
// sent within the last moment has confirmed that the session lives for the TTL. A new leader may
// answer a keep-alive although the end of the lease is decided, so the TTL must not have passed
// since the key was found. Another process that tries for the same owner moves the key to a session
// of its own, which the watch does not report, so nobody else may know the owner. Requires
// Driver.mu.
func (p *place) isNext(ttl time.Duration, started boottime.Instant) (next, sure bool) {
	ahead := p.ahead()
	if ahead < 0 || ahead >= len(p.line.holders()) || p.line.limit.unknown && p.line.queue[ahead].mode() == driver.Shared {
		return p.phase == held, false
	}
	sure = p.claim.req.Fresh && p.known(p.line.queue[ahead]) &&
		p.fits(ttl) && p.in.covers(started) &&
		started < p.line.from.Add(p.in.ttl)
	return true, sure
}
