package main

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A console is standard error for goroutines that must not wait for whoever reads it: leases
// are renewed although a pager stands still.
type console struct {
	file *os.File

	mu      sync.Mutex
	pending []byte        // guarded by mu: not yet taken by the goroutine that writes
	dropped int           // guarded by mu: texts that there was no room for
	idle    chan struct{} // guarded by mu: closed when nothing is pending; nil: nothing is
	status  status        // guarded by mu
}

const (
	// consoleRoom is how much a reader may be behind.
	consoleRoom = 1 << 20
	// consoleBound is how long a reader who is behind is waited for at the end.
	consoleBound = 5 * time.Second
)

func newConsole(file *os.File) *console { return &console{file: file} }

// Write never waits. What a reader who is gone misses is nobody's.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending)+len(p) > consoleRoom {
		c.dropped++
		return len(p), nil
	}
	c.status.erase()
	c.pending = append(c.pending, p...)
	if c.idle == nil {
		c.idle = make(chan struct{})
		go c.write()
	}
	return len(p), nil
}

// write writes what is pending, until nothing is.
func (c *console) write() {
	for p := c.take(); p != nil; p = c.take() {
		c.file.Write(p)
	}
}

func (c *console) take() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending
	c.pending = nil
	if p == nil {
		close(c.idle)
		c.idle = nil
		return nil
	}
	if c.dropped > 0 {
		p = fmt.Appendf(p, "leasehold: %d messages are missing here, as nobody has read them\n", c.dropped)
		c.dropped = 0
	}
	return p
}

// flush waits until all is written, or for bound.
func (c *console) flush(bound time.Duration) {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(bound):
	}
}

// draw makes text the status line, unless what it tells of is over, while something is being
// written, and if the terminal takes it.
func (c *console) draw(text string, over *atomic.Bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle == nil && !over.Load() {
		c.status.draw(text)
	}
}

// clear erases the status line. The caller must have set over, so that it is not drawn again.
func (c *console) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.erase()
}

// flush waits for the reader of what was written, for a while.
func (a *app) flush(bound time.Duration) {
	if c, ok := a.stderr.(*console); ok {
		c.flush(bound)
	}
}
