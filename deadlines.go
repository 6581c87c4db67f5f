package leasehold

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/schedule"
)

// A deadline is the instant until which a hold may be acted on. All fields but entry are guarded
// by the hold's mutex.
type deadline struct {
	at      boottime.Instant // nobody may act on the hold after it
	span    time.Duration    // TTL that at was counted with, maybe less than requested
	slept   time.Duration    // how long the machine had slept when the deadline was set
	watched boottime.Instant // when onDeadline will be called at the latest; 0: it will not
	entry   entry            // guarded by deadlines.mu
}

// setDeadline moves the deadline. A later deadline needs no new timer: onDeadline runs at the
// former one, and schedules another check. Requires h.mu.
func (h *hold) setDeadline(at, now boottime.Instant) {
	h.deadline.at, h.deadline.slept = at, h.locker.clock.Slept()
	h.watch(now)
}

// ends returns when the hold ends without another renewal. That is its deadline, or the end of a
// lease's MaxHold, in which case capped is that lease. Requires h.mu.
func (h *hold) ends() (at boottime.Instant, capped *Lease) {
	at = h.deadline.at
	for _, le := range h.holders.leases {
		if most := le.since.Add(le.maxHold); le.maxHold > 0 && most < at {
			at, capped = most, le
		}
	}
	return at, capped
}

// watch schedules onDeadline for when the hold ends. Requires h.mu.
func (h *hold) watch(now boottime.Instant) {
	if at, _ := h.ends(); h.deadline.watched == 0 || at < h.deadline.watched {
		h.deadline.watched = at
		h.locker.deadlines.watch(h, at, now)
	}
}

// onDeadline is called by deadlines at a deadline that the hold had, or a little earlier. The holds
// are handled one after another, so it must do nothing that may hang.
func (h *hold) onDeadline(now boottime.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline.watched = 0
	at, _ := h.ends()
	switch {
	case h.over():
	case now < at:
		h.watch(now)
	default:
		go h.expire() // in a goroutine, because it calls the Trace
	}
}

// expire ends the hold if its deadline has passed, or a lease was held for its MaxHold.
func (h *hold) expire() { h.loseIf(h.overdue) }

// overdue returns why the hold has ended by now. If it has not, overdue returns nil and schedules
// another check: the lease whose MaxHold led to this one may have been released meanwhile. Requires
// h.mu.
func (h *hold) overdue() error {
	if h.over() {
		return nil
	}
	now := h.locker.clock.Now()
	at, capped := h.ends()
	late, slept := now.Sub(at), h.locker.clock.Slept()-h.deadline.slept
	switch {
	case late < 0:
		h.watch(now)
		return nil
	case capped != nil:
		return fmt.Errorf("%w: %w of %v", ErrLost, errMaxHold, capped.maxHold)
	case late < slept:
		return fmt.Errorf("%w, while the machine slept for %v", errDeadline, slept.Round(time.Millisecond))
	}
	return errDeadline
}

var (
	errDeadline = fmt.Errorf("%w: %w", ErrLost, ErrExpired)
	errMaxHold  = errors.New("held for MaxHold")
)

// deadlines ends the holds of a Locker whose deadline or MaxHold has passed. It waits for nothing
// that could hang, and for no worker of the keeper.
//
// Renewals do not move a hold within the schedule. The hold becomes due at a deadline that it had,
// or a little earlier in a group. If its deadline is later now, it is scheduled again. Deadlines
// count the time that the machine sleeps, and the clock calls fire when the machine wakes up.
type deadlines struct {
	clock  *boottime.Clock
	mu     sync.Mutex
	due    schedule.Schedule[*hold] // guarded by mu
	closed bool                     // guarded by mu
}

// watch schedules h for at, or a little earlier. Requires h.mu.
func (d *deadlines) watch(h *hold, at, now boottime.Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	early := at.Sub(now) / 30
	d.due.Add(&h.deadline.entry, at.Add(-early), at, at)
	d.due.Arm()
}

// remove unschedules h.
func (d *deadlines) remove(h *hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due.Remove(&h.deadline.entry)
	d.stopIfIdle()
}

// close announces that no more holds will be added. Holds that are left are still watched.
func (d *deadlines) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.stopIfIdle()
}

// stopIfIdle stops the timer of a closed Locker without holds, because the timer would keep the
// Locker in memory. Requires d.mu.
func (d *deadlines) stopIfIdle() {
	if d.closed && d.due.Empty() {
		d.due.Disarm()
	}
}

// fire handles all holds that are due.
func (d *deadlines) fire() {
	d.mu.Lock()
	d.due.Fired()
	d.mu.Unlock()
	now := d.clock.Now()
	for due := d.next(now); due != nil; due = d.next(now) {
		for _, e := range due {
			e.Value.onDeadline(now)
		}
	}
}

// next returns a group that is due. If there is none, it arms the timer for the next group and
// returns nil.
func (d *deadlines) next(now boottime.Instant) []*entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := d.due.Take(now)
	if due == nil {
		d.due.Arm()
	}
	return due
}
