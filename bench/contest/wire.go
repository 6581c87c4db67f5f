package contest

import (
	"context"
	"net"
	"sync/atomic"
)

// A Wire dials, and counts the writes to its connections. A client that writes each command at once
// makes one write per command.
type Wire struct{ Writes atomic.Int64 }

// Dial is like net.Dialer.DialContext.
func (w *Wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countingConn{conn, w}, nil
}

// A countingConn counts the writes to a connection.
type countingConn struct {
	net.Conn
	wire *Wire
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.wire.Writes.Add(1)
	return c.Conn.Write(p)
}
