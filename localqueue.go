package leasehold

import (
	"context"
	"sync"
	"time"
)

// A localQueue is the queue inside this process: of those who want one resource, one at a time
// has the turn to ask the engine, the others wait in order. An exclusive lease keeps the turn
// until it ends, so that it can be handed to the next waiter without the engine. It calls no
// engine and no Locker, and waits for nothing with its mutex.
type localQueue struct {
	mu    sync.Mutex
	turns map[string]*turn // guarded by mu; by resource, those that somebody has
	spare *turn            // guarded by mu; the last one that nobody wanted, for the next
}

// A turn is that of one resource: who has it, and who waits for it.
type turn struct {
	hold    *hold // the exclusive lease that has it; nil while a contender asks the engine
	refused bool  // the engine has refused a contender: others hold the resource
	first   *turnWaiter
	last    *turnWaiter
}

// A turnWaiter waits for the turn, or for a lease that is handed over to it.
type turnWaiter struct {
	turn       chan *hold // capacity 1; nil: the turn alone
	ttl        time.Duration
	who        *description
	takes      bool // a lease may be handed over to it
	queued     bool // guarded by localQueue.mu
	prev, next *turnWaiter
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

// take takes the turn of a resource if nobody has it. Otherwise it returns the exclusive lease
// that has it, or nil while a contender has it.
func (q *localQueue) take(name string) (taken bool, by *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.turns[name]; t != nil {
		return false, t.hold
	}
	q.begin(name)
	return true, nil
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

// enter takes the turn, if nobody has it, or makes a place for one who takes a lease with ttl
// that is handed over, if takes says so. who is what that lease would say.
func (q *localQueue) enter(name string, ttl time.Duration, who *description, takes bool) *turnWaiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	if t == nil {
		q.begin(name)
		return nil
	}
	w := &turnWaiter{turn: make(chan *hold, 1), ttl: ttl, who: who, takes: takes}
	t.push(w)
	return w
}

// wait waits until w, which has a place, has the turn. It returns a lease when one was handed
// over with it. After an error, w has the turn only if it came meanwhile.
func (q *localQueue) wait(ctx context.Context, closing <-chan struct{}, name string, w *turnWaiter) (h *hold, has bool, err error) {
	select {
	case h = <-w.turn:
		select {
		case <-closing:
			return h, true, ErrClosed
		default:
			return h, true, nil
		}
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

// leave gives up the place of w, if it has it still.
func (q *localQueue) leave(name string, w *turnWaiter) (had bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if had = w.queued; had {
		q.turns[name].remove(w)
	}
	return had
}

// pass gives the turn to the next waiter, who will ask the engine.
func (q *localQueue) pass(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	t.hold = nil
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

// passIf passes the turn on for a contender that had it.
func (q *localQueue) passIf(had bool, name string) {
	if had {
		q.pass(name)
	}
}

// holder is the exclusive lease that has the turn; nil: none has. taken: the resource is known to be, by that or by others.
func (q *localQueue) holder(name string) (h *hold, taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.turns[name]; t != nil {
		return t.hold, t.hold != nil || t.refused
	}
	return nil, true // it was, a moment ago
}

// refuse notes that the engine has refused a contender.
func (q *localQueue) refuse(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.turns[name]; t != nil {
		t.refused = true
	}
}

// keep lets an exclusive lease keep the turn that its contender has.
func (q *localQueue) keep(name string, h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[name].hold, q.turns[name].refused = h, false
}

// contendAgain gives the turn of a lease that was lost while it was handed over to the
// contender it was meant for.
func (q *localQueue) contendAgain(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[name].hold = nil
}

// next removes and returns the first waiter if that one takes a lease with ttl, which says what fixed does if that is
// not nil; it must be given one by take, and the turn with it.
func (q *localQueue) next(name string, ttl time.Duration, fixed *description) *turnWaiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns[name]
	w := t.first
	if w == nil || !w.takes || w.ttl != ttl || fixed != nil && !fixed.same(w.who) {
		return nil
	}
	t.remove(w)
	return w
}

// take gives h to w, if there is a w.
func (w *turnWaiter) take(h *hold) {
	if w != nil {
		w.turn <- h
	}
}
