package main

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A console is standard error for goroutines that must not wait for its reader. Leases are renewed
// even if a pager has stopped.
type console struct {
	file *os.File

	mu      sync.Mutex
	pending []byte        // guarded by mu; what the writing goroutine has not taken yet
	dropped int           // guarded by mu; number of texts that were dropped for lack of room
	idle    chan struct{} // guarded by mu; closed when nothing is pending; nil: nothing is
	status  status        // guarded by mu
}

const (
	// consoleRoom is how many bytes the reader may be behind.
	consoleRoom = 1 << 20
	// consoleBound limits how long the end of the program waits for the reader.
	consoleBound = 5 * time.Second
)

func newConsole(file *os.File) *console { return &console{file: file} }

// Write never waits. Text that is not read in time may be lost.
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

// write writes what is pending until nothing is left. It runs in a goroutine of its own.
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

// flush waits until everything is written, or for bound.
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

// draw makes text the status line. It draws nothing if over is true, if other text is being
// written, or if the terminal does not accept it at once.
func (c *console) draw(text string, over *atomic.Bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle == nil && !over.Load() {
		c.status.draw(text)
	}
}

// clear erases the status line. The caller must have set over, so that the line is not drawn again.
func (c *console) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.erase()
}

func (a *app) flush(bound time.Duration) {
	if c, ok := a.stderr.(*console); ok {
		c.flush(bound)
	}
}
