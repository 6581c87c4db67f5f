package leasehold

import (
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/waiting"
)

// abandonWait is how long a failed call waits for its clean-up, which then goes on in the
// background. It is short because callers rely on their time limits.
const abandonWait = 50 * time.Millisecond

// calls tracks the calls that Close waits for, and the clean-ups that outlive them.
type calls struct {
	closing chan struct{} // closed by close, with mu held; no call may begin then

	mu       sync.Mutex
	drained  bool           // guarded by mu; wait no longer waits for calls: none is running
	running  sync.WaitGroup // Acquire, TryAcquire, AcquireAll and Resume, also inside Do and Lead; added to under mu
	cleaning sync.WaitGroup // clean-ups that outlive their call; added to under mu
}

// begin counts a call that wait waits for. It reports false after close.
func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosing() {
		return false
	}
	c.running.Add(1)
	return true
}

// end ends a call.
func (c *calls) end() { c.running.Done() }

// close refuses further calls and ends those that wait.
func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosing() {
		close(c.closing)
	}
}

// wait waits, after close, for the calls and then for the clean-ups that have begun by then.
func (c *calls) wait() {
	c.running.Wait()
	c.mu.Lock()
	c.drained = true
	c.mu.Unlock()
	c.cleaning.Wait()
}

// isClosing reports whether close was called.
func (c *calls) isClosing() bool { return waiting.Closed(c.closing) }

// cleanUp runs a clean-up and waits for it, at most for abandonWait. If the engine is out of reach,
// the clean-up continues in the background.
func (c *calls) cleanUp(clean func()) {
	timer := time.NewTimer(abandonWait)
	defer timer.Stop()
	select {
	case <-c.startCleanUp(clean):
	case <-timer.C:
	}
}

// startCleanUp runs a clean-up in a goroutine that wait waits for. If wait has already begun to
// wait for clean-ups, startCleanUp runs the clean-up before it returns.
func (c *calls) startCleanUp(up func()) (through <-chan struct{}) {
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
