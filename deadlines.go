package leasehold

import (
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/schedule"
)

// A deadline is until when a hold may be acted on. The hold's mutex guards it, but for entry.
type deadline struct {
	at      boottime.Instant // nobody acts on the hold after it
	span    time.Duration    // of the last grant or renewal, may be less than was asked for
	slept   time.Duration    // what the clock had slept when it was set
	watched bool             // comeUp will be called, at the deadline or before
	entry   entry            // guarded by deadlines.mu
}

// setDeadline moves the deadline. Moved away, it needs no watch: the hold comes up at the
// former one, and is watched anew. Requires h.mu.
func (h *hold) setDeadline(at, now boottime.Instant) {
	sooner := at < h.deadline.at
	h.deadline.at, h.deadline.slept = at, h.locker.clock.Slept()
	if sooner || !h.deadline.watched {
		h.deadline.watched = true
		h.locker.deadlines.watch(h, now)
	}
}

// comeUp is called by deadlines at a deadline that the hold had, or a little earlier, for one
// hold after the other: nothing that may hang is done with h.mu.
func (h *hold) comeUp(now boottime.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline.watched = false
	switch {
	case h.over():
	case now < h.deadline.at:
		h.setDeadline(h.deadline.at, now)
	default:
		go h.expire() // it runs hooks of traces
	}
}

// expire ends the hold if its deadline has passed.
func (h *hold) expire() {
	now, cause := h.locker.clock.Now(), errDeadline
	h.mu.Lock()
	slept := h.locker.clock.Slept() - h.deadline.slept
	if late := now.Sub(h.deadline.at); late < 0 {
		h.mu.Unlock()
		return
	} else if late < slept {
		cause = fmt.Errorf("%w, while the machine slept for %v", errDeadline, slept.Round(time.Millisecond))
	}
	h.mu.Unlock()
	h.loseIf(func() bool { return h.deadline.at <= now }, cause)
}

var errDeadline = fmt.Errorf("%w: %w", ErrLost, ErrExpired)

// deadlines ends the holds of a Locker that nobody renewed in time. It waits for nothing
// that could hang, and for no worker of the keeper.
//
// Renewals, which move a deadline away, do not touch it. A hold comes up at a deadline that
// it had, or a little earlier together with others, and is watched anew if it has one that
// is later. Deadlines count the time that the machine sleeps, and its clock calls fire when it wakes up.
type deadlines struct {
	clock  *boottime.Clock
	mu     sync.Mutex
	due    schedule.Schedule[*hold] // guarded by mu
	closed bool                     // guarded by mu
}

// watch has h come up by its deadline. Requires h.mu.
func (d *deadlines) watch(h *hold, now boottime.Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := h.deadline.at
	early := at.Sub(now) / 30
	d.due.Add(&h.deadline.entry, at.Add(-early), at, at)
	d.due.Arm()
}

// remove forgets h.
func (d *deadlines) remove(h *hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due.Remove(&h.deadline.entry)
	d.rest()
}

// close says that no hold comes any more. Those that are left are watched on.
func (d *deadlines) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.rest()
}

// rest stops the timer of a closed Locker that has no hold left: it would keep the Locker
// in memory. Requires d.mu.
func (d *deadlines) rest() {
	if d.closed && d.due.Empty() {
		d.due.Disarm()
	}
}

// fire looks at all holds that have come up.
func (d *deadlines) fire() {
	d.mu.Lock()
	d.due.Fired()
	d.mu.Unlock()
	now := d.clock.Now()
	for due := d.next(now); due != nil; due = d.next(now) {
		for _, e := range due {
			e.Value.comeUp(now)
		}
	}
}

// next takes a group that is due. When there is none it arms the timer for the next.
func (d *deadlines) next(now boottime.Instant) []*entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := d.due.Take(now)
	if due == nil {
		d.due.Arm()
	}
	return due
}
