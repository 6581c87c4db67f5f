package leasehold

import (
	"sync"
	"time"
)

// abandonWait is how long a call that failed waits for its clean-up, which goes on without it.
// It is short because callers count on their bounds.
const abandonWait = 50 * time.Millisecond

// calls are the calls of a Locker that its Close waits for, and the clean-ups that outlive them.
type calls struct {
	closing chan struct{} // closed by close

	mu       sync.Mutex
	closed   bool           // guarded by mu; no call may begin
	drained  bool           // guarded by mu; no call is running
	running  sync.WaitGroup // Acquire, TryAcquire, Do and Resume; added to under mu
	cleaning sync.WaitGroup // clean-ups that outlive their call; added to under mu
}

// begin begins a call that wait waits for; false after close.
func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// end ends a call.
func (c *calls) end() { c.running.Done() }

// close lets no call begin, and has those that wait end.
func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.closing)
	}
}

// wait waits, after close, for the calls and then for the clean-ups.
func (c *calls) wait() {
	c.running.Wait()
	c.mu.Lock()
	c.drained = true
	c.mu.Unlock()
	c.cleaning.Wait()
}

// isClosing reports whether close was called.
func (c *calls) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// tidy runs a clean-up and waits for it, but not for long: with the engine out of reach
// it goes on in the background.
func (c *calls) tidy(clean func()) {
	timer := time.NewTimer(abandonWait)
	defer timer.Stop()
	select {
	case <-c.clean(clean):
	case <-timer.C:
	}
}

// clean runs a clean-up in a goroutine that wait waits for, and tells when it is through; once wait does so no more, it
// runs it at once.
func (c *calls) clean(up func()) (through <-chan struct{}) {
	finished := make(chan struct{})
	clean := func() {
		up()
		close(finished)
	}
	c.mu.Lock()
	if c.drained {
		c.mu.Unlock()
		clean()
		return finished
	}
	c.cleaning.Go(clean)
	c.mu.Unlock()
	return finished
}
