package leasehold

import (
	"errors"
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
	watched boottime.Instant // comeUp will be called by then; 0: it will not
	entry   entry            // guarded by deadlines.mu
}

// setDeadline moves the deadline. Moved away, it needs no watch: the hold comes up at the
// former one, and is watched anew. Requires h.mu.
func (h *hold) setDeadline(at, now boottime.Instant) {
	h.deadline.at, h.deadline.slept = at, h.locker.clock.Slept()
	h.watch(now)
}

// ends returns when the hold ends without another renewal: at its deadline, or when a lease has been held for its
// MaxHold, which is capped then. Requires h.mu.
func (h *hold) ends() (at boottime.Instant, capped *Lease) {
	at = h.deadline.at
	for _, le := range h.holders.leases {
		if most := le.since.Add(le.maxHold); le.maxHold > 0 && most < at {
			at, capped = most, le
		}
	}
	return at, capped
}

// watch schedules a look at the hold for when it ends. Requires h.mu.
func (h *hold) watch(now boottime.Instant) {
	if at, _ := h.ends(); h.deadline.watched == 0 || at < h.deadline.watched {
		h.deadline.watched = at
		h.locker.deadlines.watch(h, at, now)
	}
}

// comeUp is called by deadlines at an end that the hold had, or a little earlier, for one
// hold after the other: nothing that may hang is done with h.mu.
func (h *hold) comeUp(now boottime.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline.watched = 0
	at, _ := h.ends()
	switch {
	case h.over():
	case now < at:
		h.watch(now)
	default:
		go h.expire() // it runs hooks of traces
	}
}

// expire ends the hold if its deadline has passed, or a lease was held for its MaxHold.
func (h *hold) expire() {
	now, cause := h.locker.clock.Now(), errDeadline
	h.mu.Lock()
	slept := h.locker.clock.Slept() - h.deadline.slept
	at, capped := h.ends()
	h.mu.Unlock()
	switch late := now.Sub(at); {
	case late < 0:
		return
	case capped != nil:
		cause = fmt.Errorf("%w: %w of %v", ErrLost, errMaxHold, capped.maxHold)
	case late < slept:
		cause = fmt.Errorf("%w, while the machine slept for %v", errDeadline, slept.Round(time.Millisecond))
	}
	h.loseIf(func() bool { return h.hasEnded(now) }, cause)
}

// hasEnded reports whether the hold has ended by now. If not, it schedules another look: the lease whose MaxHold
// set this one may have been released meanwhile. Requires h.mu.
func (h *hold) hasEnded(now boottime.Instant) bool {
	at, _ := h.ends()
	if now < at && !h.over() {
		h.watch(now)
	}
	return at <= now
}

var (
	errDeadline = fmt.Errorf("%w: %w", ErrLost, ErrExpired)
	errMaxHold  = errors.New("held for MaxHold")
)

// deadlines ends the holds of a Locker that nobody renewed in time, or that a lease had for its MaxHold. It waits for nothing
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

// watch has h come up by at. Requires h.mu.
func (d *deadlines) watch(h *hold, at, now boottime.Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
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
