package contest

import (
	"context"
	"net"
	"sync/atomic"
)

// A Wire dials, and counts how often its connections are written to: once for a command,
// where a client writes each of them at once.
type Wire struct{ Writes atomic.Int64 }

// Dial is net.Dialer.DialContext.
func (w *Wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countingConn{conn, w}, nil
}

type countingConn struct {
	net.Conn
	wire *Wire
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.wire.Writes.Add(1)
	return c.Conn.Write(p)
}
