package leasehold

import (
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/schedule"
)

// deadlines ends the holds of a Locker that nobody renewed in time. It waits for nothing
// that could hang, and for no worker of the keeper.
//
// Renewals, which move a deadline away, do not touch it. A hold comes up at a deadline that
// it had, or a little earlier together with others, and is watched anew if it has one that
// is later.
type deadlines struct {
	mu     sync.Mutex
	due    schedule.Schedule[*hold] // guarded by mu
	closed bool                     // guarded by mu
}

// watch has h come up by its deadline. Requires h.mu.
func (d *deadlines) watch(h *hold, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	early := h.deadline.Sub(now) / 30
	d.due.Add(&h.watch, h.deadline.Add(-early), h.deadline, h.deadline)
	d.due.Arm()
}

// remove forgets h.
func (d *deadlines) remove(h *hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due.Remove(&h.watch)
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
	now := time.Now()
	for due := d.next(now); due != nil; due = d.next(now) {
		for _, e := range due {
			e.Value.comeUp(now)
		}
	}
}

// next takes a group that is due. When there is none it arms the timer for the next.
func (d *deadlines) next(now time.Time) []*entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := d.due.Take(now)
	if due == nil {
		d.due.Arm()
	}
	return due
}
