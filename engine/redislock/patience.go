package redislock

import (
	"context"
	"sync"
	"time"
)

// askSoon is how long a call is waited for before its context is asked for its end: most have their
// answer by then, and a context of the core's is only made when it is asked. It is longer than the time between
// two ticks of a machine's clock: a timer that is due before has the clock set, twice for each wait.
const askSoon = 20 * time.Millisecond

// A patience tells calls that askSoon has passed: by one timer for all that are under way, which stands when there are
// none.
type patience struct {
	mu        sync.Mutex
	now, next chan struct{} // guarded by mu; closed at the next tick, and at the one after; nil: the timer stands
	asked     bool          // guarded by mu; somebody waits for next
}

// answered waits for done for a while, or not at all where ctx ends sooner, and reports whether it came.
func (p *patience) answered(ctx context.Context, done <-chan struct{}) bool {
	if end, ends := ctx.Deadline(); ends && time.Until(end) < 2*askSoon {
		return false
	}
	select {
	case <-done:
		return true
	case <-p.soon():
		return false
	}
}

// soon returns what is closed after askSoon, and before twice that.
func (p *patience) soon() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.now, p.next = make(chan struct{}), make(chan struct{})
		time.AfterFunc(askSoon, p.tick)
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
		time.AfterFunc(askSoon, p.tick)
	}
}
