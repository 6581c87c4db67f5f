package redislock

import (
	"context"
	"sync"
	"time"
)

// ctxPollAfter is how long a call waits before it asks its context for Done. Most calls have
// their answer by then, and a context of the core is only made when it is asked. A timer that is
// due within one kernel tick reprograms the clock, so the wait is longer than that.
const ctxPollAfter = 20 * time.Millisecond

// A patience signals calls when ctxPollAfter has passed. It has one timer for all calls in
// flight, which stops when there are none.
type patience struct {
	mu        sync.Mutex
	now, next chan struct{} // guarded by mu; closed at the next tick, and at the one after; nil: the timer is stopped
	asked     bool          // guarded by mu; a call waits for next
}

// answered waits for done for a while, and reports whether it was closed. If ctx ends soon, it
// does not wait.
func (p *patience) answered(ctx context.Context, done <-chan struct{}) bool {
	if end, ends := ctx.Deadline(); ends && time.Until(end) < 2*ctxPollAfter {
		return false
	}
	select {
	case <-done:
		return true
	case <-p.soon():
		return false
	}
}

// soon returns a channel that is closed after ctxPollAfter, and before twice that.
func (p *patience) soon() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.now, p.next = make(chan struct{}), make(chan struct{})
		time.AfterFunc(ctxPollAfter, p.tick)
	}
	p.asked = true
	return p.next
}

func (p *patience) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.now)
	p.now, p.next = p.next, nil
	if p.asked {
		p.next, p.asked = make(chan struct{}), false
		time.AfterFunc(ctxPollAfter, p.tick)
	}
}
