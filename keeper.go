package leasehold

import (
	"container/heap"
	"sync"
	"time"
)

// maxWorkers bounds the renewals in flight, and with them the goroutines of a Locker,
// however many leases it holds.
const maxWorkers = 16

// maxBatch is how many leases a driver.BatchRenewer renews in one call. Redis runs 500
// renewals in about a millisecond, during which others wait.
const maxBatch = 500

// A keeper renews all leases of a Locker: a heap of due times and one timer. It has no
// goroutine while nothing is due.
type keeper struct {
	renew func([]*hold) // renews holds that are due, and adds them again
	batch int           // most holds that renew takes at once

	mu      sync.Mutex
	due     dueHeap     // guarded by mu
	timer   *time.Timer // guarded by mu; nil until first used
	armed   time.Time   // guarded by mu; when timer fires, zero: it does not
	workers int         // guarded by mu
	closed  bool        // guarded by mu
	running sync.WaitGroup
}

// add plans the renewal of h, or plans it anew.
func (k *keeper) add(h *hold, due time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	h.due = due
	if h.index >= 0 {
		heap.Fix(&k.due, h.index)
	} else {
		heap.Push(&k.due, h)
	}
	k.arm()
}

// remove forgets h. A renewal in flight goes on.
func (k *keeper) remove(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.index >= 0 {
		heap.Remove(&k.due, h.index)
	}
}

// close forgets everything and waits for the renewals in flight.
func (k *keeper) close() {
	k.mu.Lock()
	k.closed = true
	for len(k.due) > 0 {
		heap.Pop(&k.due)
	}
	if k.timer != nil {
		k.timer.Stop()
	}
	k.mu.Unlock()
	k.running.Wait()
}

// arm sets the timer for the first due time unless it fires by then. A timer that fires
// early, because its hold is gone, costs less than stopping it each time. Requires k.mu.
func (k *keeper) arm() {
	if len(k.due) == 0 || k.closed || k.workers == maxWorkers {
		return
	}
	first := k.due[0].due
	if !k.armed.IsZero() && !first.Before(k.armed) {
		return
	}
	k.armed = first
	if k.timer == nil {
		k.timer = time.AfterFunc(time.Until(first), k.fire)
	} else {
		k.timer.Reset(time.Until(first))
	}
}

// fire starts a worker when the first renewal is due.
func (k *keeper) fire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = time.Time{}
	k.startWorker()
	k.arm()
}

// startWorker starts one worker if something is due and there is room. Requires k.mu.
func (k *keeper) startWorker() {
	if k.closed || k.workers == maxWorkers || len(k.due) == 0 || time.Until(k.due[0].due) > 0 {
		return
	}
	k.workers++
	k.running.Go(k.work)
}

// work renews what is due until nothing is.
func (k *keeper) work() {
	for holds := k.next(); holds != nil; holds = k.next() {
		k.renew(holds)
	}
}

// next takes what is due, up to a batch, starting one more worker if there is more. When
// there is nothing it counts the caller out.
func (k *keeper) next() []*hold {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || len(k.due) == 0 || time.Until(k.due[0].due) > 0 {
		k.workers--
		k.arm()
		return nil
	}
	holds := []*hold{heap.Pop(&k.due).(*hold)}
	for len(holds) < k.batch && len(k.due) > 0 && k.due[0].nearlyDue() {
		holds = append(holds, heap.Pop(&k.due).(*hold))
	}
	k.startWorker()
	return holds
}

// nearlyDue lets a batch take what would be due soon, so that leases whose renewals are
// spread over time still share calls. A thirtieth of the TTL is a tenth of the pause
// between its renewals. Requires k.mu.
func (h *hold) nearlyDue() bool { return time.Until(h.due) <= h.req.TTL/30 }

// dueHeap orders holds by due time, for container/heap.
type dueHeap []*hold

func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d dueHeap) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

// Push is called by package heap.
func (d *dueHeap) Push(x any) {
	h := x.(*hold)
	h.index = len(*d)
	*d = append(*d, h)
}

// Pop is called by package heap.
func (d *dueHeap) Pop() any {
	last := len(*d) - 1
	h := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	h.index = -1
	return h
}
