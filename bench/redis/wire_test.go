package redis_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A wire counts the commands that go out through its connections. The server's own count
// has those within scripts in it.
type wire struct{ commands atomic.Int64 }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return &countingConn{Conn: conn, wire: w, tail: [2]byte{'\r', '\n'}}, nil
}

type countingConn struct {
	net.Conn
	wire *wire
	tail [2]byte // what was written last
}

// SyscallConn implements [syscall.Conn]: clients look at the socket before they use it again.
func (c *countingConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}

// Write counts the heads of commands. No argument here has a line end in it.
func (c *countingConn) Write(p []byte) (int, error) {
	head := []byte("\r\n*")
	seam := append(c.tail[:], p[:min(2, len(p))]...)
	c.wire.commands.Add(int64(bytes.Count(p, head) + bytes.Count(seam, head)))
	for _, last := range p[max(0, len(p)-2):] {
		c.tail = [2]byte{c.tail[1], last}
	}
	return c.Conn.Write(p)
}

func TestWireCountsCommands(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() { _, _ = io.Copy(io.Discard, there) }() // ends with here
	w := &wire{}
	conn := &countingConn{Conn: here, wire: w, tail: [2]byte{'\r', '\n'}}
	for _, part := range []string{"*1\r\n$4\r\nPING\r\n", "*1\r\n$4\r\nPING\r", "\n*1\r\n$4\r\nPI", "NG\r\n", "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n"} {
		if _, err := conn.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.commands.Load(); n != 5 {
		t.Errorf("%d commands were counted, want 5", n)
	}
}
