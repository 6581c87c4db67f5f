package explored

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A conn is the end of a connection that a driver has, in the bubble. What is written goes to
// wrote, which must not block, and what is to be read waits until it is.
type conn struct {
	wrote  func([]byte)
	closed func()

	mu       sync.Mutex
	unread   bytes.Buffer  // guarded by mu
	err      error         // guarded by mu; of reads and writes, once it is not nil
	deadline time.Time     // guarded by mu; of reads
	changed  chan struct{} // guarded by mu; closed when any of these changes
}

func newConn(wrote func([]byte), closed func()) *conn {
	return &conn{wrote: wrote, closed: closed, changed: make(chan struct{})}
}

// change changes something that a read may wait for.
func (c *conn) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// receive brings what the other side sent.
func (c *conn) receive(b []byte) { c.change(func() { c.unread.Write(b) }) }

// fail breaks the connection.
func (c *conn) fail(err error) {
	c.change(func() {
		if c.err == nil {
			c.err = err
		}
	})
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		changed, left := c.changed, time.Until(c.deadline)
		forever := c.deadline.IsZero()
		switch {
		case c.unread.Len() > 0:
			defer c.mu.Unlock()
			return c.unread.Read(b)
		case c.err != nil:
			defer c.mu.Unlock()
			return 0, c.err
		case !forever && left <= 0:
			defer c.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		c.mu.Unlock()
		if forever {
			<-changed
			continue
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	c.wrote(b)
	return len(b), nil
}

func (c *conn) Close() error {
	c.fail(net.ErrClosed)
	c.closed()
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.change(func() { c.deadline = t })
	return nil
}

func (c *conn) SetDeadline(t time.Time) error  { return c.SetReadDeadline(t) }
func (*conn) SetWriteDeadline(time.Time) error { return nil }
func (*conn) LocalAddr() net.Addr              { return here{} }
func (*conn) RemoteAddr() net.Addr             { return here{} }

type here struct{}

func (here) Network() string { return "bubble" }
func (here) String() string  { return "bubble" }

var errBroken = io.ErrUnexpectedEOF
