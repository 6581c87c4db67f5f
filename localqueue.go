package leasehold

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/waiting"
)

// A localQueue queues the calls of this process. For each resource one call at a time has the
// turn to ask the engine, and the others wait in order. An exclusive lease keeps the turn until
// it ends, so that it can be handed to the next waiter without the engine. A localQueue calls
// neither the engine nor the Locker, and never blocks with its mutex held.
type localQueue struct {
	mu     sync.Mutex
	turns  map[string]*turn // guarded by mu; by resource, while somebody has the turn
	spare  *turn            // guarded by mu; the last unused one, to be reused
	closed bool             // guarded by mu; nothing may be kept any more
}

// A turn is the right to ask the engine for one resource, with the queue of those who wait for it.
type turn struct {
	hold    *hold         // the exclusive lease that has the turn; nil: a contender has it
	kept    bool          // hold has no lease, and the next call may take it
	refused bool          // the engine has refused a contender: others hold the resource
	gone    chan struct{} // closed once the engine has released the hold that has the turn; nil: it is not being released
	first   *turnWaiter   // of a linked list; container/list made BenchmarkHandOver 1.17 times as slow
	last    *turnWaiter
}

// A turnWaiter waits for the turn, or for a lease that is handed over to it.
type turnWaiter struct {
	turn            chan *hold // capacity 1; receives the hold that comes with the turn, or nil
	ttl             time.Duration
	who             *description
	yields          bool
	ranks           bool // it has a Preference, and needs each recall
	acceptsHandOver bool // it accepts a lease that is handed over
	queued          bool // guarded by localQueue.mu
	prev, next      *turnWaiter
}

func (t *turn) push(w *turnWaiter) {
	w.queued, w.prev = true, t.last
	if t.last == nil {
		t.first = w
	} else {
		t.last.next = w
	}
	t.last = w
}

func (t *turn) remove(w *turnWaiter) {
	if w.prev == nil {
		t.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		t.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.queued, w.prev, w.next = false, nil, nil
}

// take takes the turn of a resource if nobody has it or a kept hold has it, and returns the kept
// hold, if any. Otherwise it returns the exclusive lease that has the turn, or nil if a contender
// has it. If that is leaving the engine, gone closes when it has.
func (q *localQueue) take(name string) (taken bool, by *hold, gone <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.turns[name]; t != nil {
		taken, t.kept = t.kept, false
		return taken, t.hold, t.gone
	}
	q.begin(name)
	return true, nil, nil
}

// leaving records that a release of the hold that has the turn has begun. The record stays until the
// turn passes or clearHolder is called.
func (q *localQueue) leaving(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[name].gone = make(chan struct{})
}

// clear removes what had the turn.
func (t *turn) clear() {
	t.hold = nil
	if t.gone != nil {
		close(t.gone)
		t.gone = nil
	}
}

// begin gives the caller a turn that nobody has. Requires q.mu.
func (q *localQueue) begin(name string) {
	t := q.spare
	if t == nil {
		t = &turn{}
	}
	if q.turns == nil {
		q.turns = make(map[string]*turn)
	}
	q.turns[name], q.spare = t, nil
}

// enter takes the turn as take does, and then returns no waiter. If the turn is taken, enter queues
// a waiter like this one. It returns that waiter and the exclusive lease that has the turn, or nil
// if a contender has it.
func (q *localQueue) enter(name string, like turnWaiter) (w *turnWaiter, by *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	if t == nil {
		q.begin(name)
		return nil, nil
	}
	if t.kept {
		t.kept = false
		return nil, t.hold
	}
	w = new(turnWaiter)
	*w = like
	w.turn = make(chan *hold, 1)
	t.push(w)
	return w, t.hold
}

// isWaitedFor reports whether a call waits for the turn, which somebody has.
func (q *localQueue) isWaitedFor(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns[name].first != nil
}

// isOutranked reports whether a call of higher preference waits for the turn.
func (q *localQueue) isOutranked(name string, preference int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	if t == nil {
		return false
	}
	w := t.first
	for w != nil && w.who.said.Preference <= preference {
		w = w.next
	}
	return w != nil
}

// wait waits until w, which is queued, has the turn. If a lease was handed over with the turn,
// wait returns it. After an error, has reports whether w got the turn meanwhile.
func (q *localQueue) wait(ctx context.Context, closing <-chan struct{}, name string, w *turnWaiter) (h *hold, has bool, err error) {
	select {
	case h = <-w.turn:
		if waiting.Closed(closing) {
			err = ErrClosed
		}
		return h, true, err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-closing:
		err = ErrClosed
	}
	if q.leave(name, w) {
		return nil, false, err
	}
	return <-w.turn, true, err
}

// leave removes w from the queue, if it is still there.
func (q *localQueue) leave(name string, w *turnWaiter) (had bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if had = w.queued; had {
		q.turns[name].remove(w)
	}
	return had
}

// pass gives the turn to the next waiter, which will ask the engine.
func (q *localQueue) pass(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	t.clear()
	w := t.first
	if w == nil {
		delete(q.turns, name)
		t.refused = false
		q.spare = t
		return
	}
	t.remove(w)
	w.turn <- nil
}

// passIf passes the turn on if had is true.
func (q *localQueue) passIf(had bool, name string) {
	if had {
		q.pass(name)
	}
}

// holder returns the exclusive lease that has the turn, or nil. taken reports whether the resource
// is known to be held, by that lease, unless it is leaving, or by others.
func (q *localQueue) holder(name string) (h *hold, taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.turns[name]; t != nil {
		return t.hold, t.hold != nil && t.gone == nil || t.refused
	}
	return nil, true // it was held a moment ago
}

// refuse records that the engine has refused a contender.
func (q *localQueue) refuse(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.turns[name]; t != nil {
		t.refused = true
	}
}

// keep lets h, an exclusive lease, keep the turn that its contender has.
func (q *localQueue) keep(name string, h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[name].hold, q.turns[name].refused = h, false
}

// offer gives h, which has the turn, to the first waiter, or keeps it for the next call. It does
// neither if the queue is closed.
func (q *localQueue) offer(name string, h *hold) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	switch w := t.first; {
	case w != nil:
		t.remove(w)
		w.turn <- h
	case q.closed:
		return false
	default:
		t.kept = true
	}
	return true
}

// reclaim removes h, which is kept, from the queue. h still has the turn, and is leaving. reclaim
// reports false if h is not kept, or if a call has just taken it.
func (q *localQueue) reclaim(name string, h *hold) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	if t == nil || t.hold != h || !t.kept {
		return false
	}
	t.gone = make(chan struct{})
	t.kept = false
	return true
}

// close returns the kept holds. From then on, no hold can be kept.
func (q *localQueue) close() (all []*hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, t := range q.turns {
		if t.kept {
			all = append(all, t.hold)
		}
	}
	return all
}

// clearHolder records that the call that has the turn holds no lease. The lease that it was about to
// take was released.
func (q *localQueue) clearHolder(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[name].clear()
}

// next removes and returns the first waiter if suits accepts it. The caller must then pass the lease
// and the turn to it by calling its take.
func (q *localQueue) next(name string, suits func(w *turnWaiter) bool) *turnWaiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	w := t.first
	if w == nil || !suits(w) {
		return nil
	}
	t.remove(w)
	return w
}

// take passes h to w. It does nothing if w is nil.
func (w *turnWaiter) take(h *hold) {
	if w != nil {
		w.turn <- h
	}
}
