package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A lane is a connection of the driver's own. It carries one call at a time, in the
// caller's goroutine: another one for each call costs as much as the call. go-redis does
// not end a call with its context; a lane closes the connection under it.
type lane struct {
	client *redis.Client

	mu    sync.Mutex
	now   *call      // guarded by mu; the call on its way
	isCut bool       // guarded by mu; the connections of that call were closed
	conns []net.Conn // guarded by mu; the last ones made: that of now, and one that came late
}

var errCut = errors.New("the call was given up")

// newLane returns a lane to server; dial connects to it.
func newLane(server *redis.Options, dial dialer) *lane {
	n := &lane{}
	o := *server
	o.Dialer = n.through(dial)
	o.MinIdleConns, o.MaxIdleConns, o.PipelinePoolSize = 0, 1, -1
	o.ClientSideCache, o.ClientSideCacheConfig = nil, nil
	n.client = redis.NewClient(&o)
	return n
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// through is dial that remembers the connections it makes.
func (n *lane) through(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.isCut {
			closeNow(conn)
			return nil, errCut
		}
		n.conns = append(n.conns[max(0, len(n.conns)-1):], conn)
		return conn, nil
	}
}

// carry makes c, and returns when it is answered or its context ends.
func (n *lane) carry(c *call) {
	n.mu.Lock()
	n.now = c
	n.mu.Unlock()
	stop := context.AfterFunc(c.ctx, func() { n.cut(c) })
	c.carry(n.client)
	stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = nil
	n.isCut = false
	if c.err != nil && !isReply(c.err) && c.ctx.Err() != nil {
		c.err = context.Cause(c.ctx)
	}
}

// cut ends c, whose outcome is unknown then, unless it has ended.
func (n *lane) cut(c *call) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now != c {
		return
	}
	n.isCut = true
	for _, conn := range n.conns {
		closeNow(conn)
	}
	n.conns = nil
}

// closeNow closes conn without the farewell of TLS, which may block.
func closeNow(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close() // nothing more comes from it either way
}
