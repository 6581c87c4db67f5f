package leasehold

import (
	"context"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/schedule"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// maxWorkers bounds the renewals in flight, and with them the goroutines of a Locker, regardless
// of the number of leases.
const maxWorkers = 16

// maxBatch is the largest number of leases that a driver.BatchRenewer renews in one call. Redis
// runs 500 renewals in about a millisecond, and other clients wait for that long.
const maxBatch = 500

// maxGroup is the largest number of leases that are due at once if each is renewed by a call of its
// own. It is small, so that the calls are spread over time.
const maxGroup = 4 * maxWorkers

// An entry is a hold on a schedule.
type entry = schedule.Entry[*hold]

// A keeper renews all leases of a Locker. If the driver is a driver.BatchRenewer, it renews each
// group of its schedule in one call. It has no goroutine while nothing is due.
type keeper struct {
	clock    *boottime.Clock
	driver   driver.BatchRenewer // nil: each lease is renewed by a call of its own
	renewing context.Context     // ends with close
	stop     context.CancelFunc  // ends renewing

	mu      sync.Mutex
	due     schedule.Schedule[*hold] // guarded by mu
	workers int                      // guarded by mu
	running sync.WaitGroup
	apart   chan struct{} // has an element for each call in flight outside of the workers
}

// open prepares the keeper for leases of d.
func (k *keeper) open(clock *boottime.Clock, d driver.Driver) {
	k.clock = clock
	k.renewing, k.stop = context.WithCancel(context.Background())
	k.apart = make(chan struct{}, maxSeparate)
	room, most := maxGroup, 1
	if all, ok := d.(driver.BatchRenewer); ok {
		k.driver, room, most = all, maxBatch, maxBatch
	}
	k.due = schedule.New[*hold](clock, room, most, k.fire)
}

// add schedules the renewal of h for some time between from and to. It replaces an earlier
// schedule.
func (k *keeper) add(h *hold, from, to boottime.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.renewing.Err() != nil { // closed
		return
	}
	// A random time, so that groups that were renewed together do not stay together.
	k.due.Add(&h.renewals.entry, from, to.Add(-waiting.Jitter(to.Sub(from))), to)
	if k.workers < maxWorkers {
		k.due.Arm()
	}
}

// remove unschedules h. It does not stop a renewal in flight.
func (k *keeper) remove(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due.Remove(&h.renewals.entry)
}

// close unschedules all holds, cancels the renewals in flight and waits for them.
func (k *keeper) close() {
	k.stop()
	k.mu.Lock()
	k.due.Clear()
	k.mu.Unlock()
	k.running.Wait()
}

// fire is called when the first group is due. It runs as a worker.
func (k *keeper) fire() {
	k.mu.Lock()
	k.due.Fired()
	works := k.startWorker()
	k.mu.Unlock()
	if works {
		k.work()
	}
}

// startWorker counts one more worker, which the caller must run, if a group is due. If none is, it
// arms the timer and reports false. Requires k.mu.
func (k *keeper) startWorker() bool {
	switch {
	case k.workers == maxWorkers: // a running worker continues with the group
		return false
	case k.due.IsDue(k.clock.Now()):
		k.workers++
		k.running.Add(1)
		return true
	}
	k.due.Arm()
	return false
}

// work renews what is due until nothing is left.
func (k *keeper) work() {
	defer k.running.Done()
	for due := k.next(); due != nil; due = k.next() {
		k.renew(due)
	}
}

// next returns a group that is due, or a part of it, and starts one more worker for the rest. If
// nothing is due, the caller no longer counts as a worker, and next returns nil.
func (k *keeper) next() []*entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	due := k.due.Take(k.clock.Now())
	if due == nil {
		k.workers--
	}
	if k.startWorker() {
		go k.work()
	}
	return due
}
