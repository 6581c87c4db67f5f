package leasehold

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A gate is the queue inside this process for one resource: one contender at a time has
// the turn to ask the engine, the others wait in order. An exclusive lease keeps the turn
// until it ends, so that it can be handed to the next waiter without the engine. The
// Locker has a gate for each resource whose turn is taken.
type gate struct {
	hold  *hold // the exclusive lease that has the turn; nil while a contender asks the engine
	first *turnWaiter
	last  *turnWaiter
}

// A turnWaiter waits for the turn, or for a lease that is handed over to it.
type turnWaiter struct {
	turn       chan *hold // capacity 1; nil: the turn alone
	ttl        time.Duration
	takes      bool // a lease may be handed over to it
	queued     bool // guarded by Locker.mu
	prev, next *turnWaiter
}

func (g *gate) push(w *turnWaiter) {
	w.queued, w.prev = true, g.last
	if g.last == nil {
		g.first = w
	} else {
		g.last.next = w
	}
	g.last = w
}

func (g *gate) remove(w *turnWaiter) {
	if w.prev == nil {
		g.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		g.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.queued, w.prev, w.next = false, nil, nil
}

// takeTurn takes the turn of a resource if nobody has it. Otherwise it returns the
// exclusive lease that has it, or nil while a contender has it.
func (l *Locker) takeTurn(name string) (taken bool, by *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gates[name]; g != nil {
		return false, g.hold
	}
	l.openGate(name)
	return true, nil
}

// openGate gives the caller the turn of a resource that has no gate. Requires l.mu.
func (l *Locker) openGate(name string) {
	g := l.spareGate
	if g == nil {
		g = &gate{}
	}
	l.gates[name], l.spareGate = g, nil
}

// waitTurn waits until it has the turn. It returns a lease when one was handed over with
// it. On error it has left nothing behind.
func (l *Locker) waitTurn(ctx context.Context, name string, r *request) (*hold, error) {
	l.mu.Lock()
	g := l.gates[name]
	if g == nil {
		l.openGate(name)
		l.mu.Unlock()
		return nil, nil
	}
	w := &turnWaiter{
		turn: make(chan *hold, 1), ttl: r.ttl,
		takes: r.mode == driver.Exclusive && !r.noRenew && r.atLeast == 0,
	}
	g.push(w)
	l.mu.Unlock()
	l.traceQueued(name)

	var err error
	select {
	case h := <-w.turn:
		if !l.isClosing() {
			return h, nil
		}
		w.turn <- h
		err = ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-l.closing:
		err = ErrClosed
	}
	l.leaveQueue(g, w, name)
	return nil, err
}

// leaveQueue gives up the place of w, or the turn if that came meanwhile.
func (l *Locker) leaveQueue(g *gate, w *turnWaiter, name string) {
	l.mu.Lock()
	queued := w.queued
	if queued {
		g.remove(w)
	}
	l.mu.Unlock()
	if queued {
		return
	}
	if h := <-w.turn; h != nil {
		h.discard()
	} else {
		l.passTurn(name)
	}
}

// passTurn gives the turn to the next waiter, who will ask the engine.
func (l *Locker) passTurn(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[name]
	g.hold = nil
	w := g.first
	if w == nil {
		delete(l.gates, name)
		l.spareGate = g
		return
	}
	g.remove(w)
	w.turn <- nil
}

// busyHere is the refusal of somebody who did not get the turn.
func (l *Locker) busyHere(name string) *BusyError {
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := &BusyError{Resource: name}
	if g := l.gates[name]; g != nil && g.hold != nil {
		busy.Holder = g.hold.describe()
	}
	return busy
}

// keepTurn lets an exclusive lease keep the turn that its contender had, unless it was
// lost already and the turn went on.
func (l *Locker) keepTurn(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hasTurn {
		l.gates[h.req.Resource].hold = h
	}
}

// contendAgain gives the turn of a lease that was lost while it was handed over to the
// contender it was meant for.
func (l *Locker) contendAgain(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gates[name].hold = nil
}

// passTurnIf passes the turn on for a contender that had it.
func (l *Locker) passTurnIf(had bool, name string) {
	if had {
		l.passTurn(name)
	}
}

// handOver gives h, with the turn, to the next waiter if that one can take it.
func (l *Locker) handOver(h *hold, ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[h.req.Resource]
	w := g.first
	if w == nil || !w.takes || w.ttl != ttl {
		return false
	}
	g.remove(w)
	w.turn <- h
	return true
}
