package leasehold

import (
	"context"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/schedule"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// maxWorkers bounds the renewals in flight, and with them the goroutines of a Locker,
// however many leases it holds.
const maxWorkers = 16

// maxBatch is how many leases a driver.BatchRenewer renews in one call. Redis runs 500
// renewals in about a millisecond, during which others wait.
const maxBatch = 500

// maxGroup is how many leases come up together where each is renewed by a call of its own:
// few, so that the calls are spread over time.
const maxGroup = 4 * maxWorkers

// An entry is the place of a hold on a schedule.
type entry = schedule.Entry[*hold]

// A keeper renews all leases of a Locker: where the driver can, those of one group of its
// schedule in one call. It has no goroutine while nothing is due.
type keeper struct {
	clock    *boottime.Clock
	driver   driver.BatchRenewer // nil: each lease by a call of its own
	renewing context.Context     // ends with close
	stop     context.CancelFunc  // ends renewing

	mu      sync.Mutex
	due     schedule.Schedule[*hold] // guarded by mu
	workers int                      // guarded by mu
	closed  bool                     // guarded by mu
	running sync.WaitGroup
	apart   chan struct{} // has an element for each renewal in flight beside the workers
}

// open readies the keeper for leases of d.
func (k *keeper) open(clock *boottime.Clock, d driver.Driver) {
	k.clock = clock
	k.renewing, k.stop = context.WithCancel(context.Background())
	k.apart = make(chan struct{}, maxApart)
	room, most := maxGroup, 1
	if all, ok := d.(driver.BatchRenewer); ok {
		k.driver, room, most = all, maxBatch, maxBatch
	}
	k.due = schedule.New[*hold](clock, room, most, k.fire)
}

// add plans the renewal of h, or plans it anew: for some time between from and to.
func (k *keeper) add(h *hold, from, to boottime.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	// At random, so that groups that were renewed together do not stay together.
	k.due.Add(&h.renewals.entry, from, to.Add(-waiting.Jitter(to.Sub(from))), to)
	if k.workers < maxWorkers {
		k.due.Arm()
	}
}

// remove forgets h. A renewal in flight goes on.
func (k *keeper) remove(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due.Remove(&h.renewals.entry)
}

// close forgets everything, and ends the renewals in flight and waits for them.
func (k *keeper) close() {
	k.stop()
	k.mu.Lock()
	k.closed = true
	k.due.Clear()
	k.mu.Unlock()
	k.running.Wait()
}

// fire is called when the first group is due, and works then.
func (k *keeper) fire() {
	k.mu.Lock()
	k.due.Fired()
	works := k.hire()
	k.mu.Unlock()
	if works {
		k.work()
	}
}

// hire counts one more worker, who must work, if a group is due. If none is, it sets the
// timer. Requires k.mu.
func (k *keeper) hire() bool {
	switch {
	case k.workers == maxWorkers: // who is through first goes on
		return false
	case k.due.IsDue(k.clock.Now()):
		k.workers++
		k.running.Add(1)
		return true
	}
	k.due.Arm()
	return false
}

// work renews what is due until nothing is.
func (k *keeper) work() {
	defer k.running.Done()
	for due := k.next(); due != nil; due = k.next() {
		if k.driver == nil {
			k.renewEach(due)
		} else {
			k.renewTogether(due)
		}
	}
}

// next takes what is due, or a part of it, and has one more worker see to the rest. When there is
// none it counts the caller out.
func (k *keeper) next() []*entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	due := k.due.Take(k.clock.Now())
	if due == nil {
		k.workers--
	}
	if k.hire() {
		go k.work()
	}
	return due
}
