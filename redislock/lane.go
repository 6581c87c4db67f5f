package redislock

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A lane is a connection of the driver's own. It carries one call at a time, in the
// caller's goroutine: another one for each call costs as much as the call. go-redis does
// not end a call with its context; a lane closes what is connected under it, and is of no
// more use then: go-redis may hand out such a connection once more.
type lane struct {
	client  *redis.Client
	dialing context.Context // ends with cut
	hangUp  context.CancelFunc

	mu    sync.Mutex
	now   *call      // guarded by mu; the call on its way
	isCut bool       // guarded by mu; for good
	conns []net.Conn // guarded by mu; the last ones made: those that live are among them
}

// maxConns is how many connections a lane remembers. One lives, and a few more while
// go-redis renews it by itself.
const maxConns = 16

// lanesTo returns what makes lanes to server; nil where go-redis would call the caller's
// code in the middle of a call: that cannot be ended from here.
func lanesTo(server *redis.Options) func() *lane {
	if server.CredentialsProvider != nil || server.CredentialsProviderContext != nil ||
		server.StreamingCredentialsProvider != nil || server.OnConnect != nil ||
		server.Limiter != nil || server.PushNotificationProcessor != nil {
		return nil
	}
	dial := dialerOf(server)
	return func() *lane {
		n := &lane{}
		n.dialing, n.hangUp = context.WithCancel(context.Background())
		o := *server
		o.Dialer = n.through(dial)
		o.ContextTimeoutEnabled = false // its own deadline would come first
		o.PoolSize, o.MaxActiveConns, o.MaxConcurrentDials, o.MinIdleConns = 0, 0, 0, 0
		o.PipelinePoolSize = -1
		n.client = redis.NewClient(&o)
		return n
	}
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// dialerOf is what go-redis has for server, except that its handshake of TLS ends with ctx.
func dialerOf(server *redis.Options) dialer {
	if server.Dialer != nil {
		return server.Dialer
	}
	const likeGoRedis = 5 * time.Minute
	plain := &net.Dialer{Timeout: server.DialTimeout, KeepAlive: likeGoRedis} // ctx has the default timeout
	if server.TLSConfig == nil {
		return plain.DialContext
	}
	return (&tls.Dialer{NetDialer: plain, Config: server.TLSConfig}).DialContext
}

// through is dial that remembers the connections it makes, and ends with the lane.
func (n *lane) through(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(n.dialing, cancel)()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.isCut {
			closeNow(conn)
			return nil, net.ErrClosed
		}
		n.conns = append(n.conns[max(0, len(n.conns)-maxConns+1):], conn)
		return conn, nil
	}
}

// carry makes c, and returns when it is answered or its context ends. It reports whether
// the lane can carry another.
func (n *lane) carry(c *call) bool {
	n.mu.Lock()
	n.now = c
	n.mu.Unlock()
	stop := context.AfterFunc(c.ctx, func() { n.cut(c) })
	c.makeOn(n.client)
	stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = nil
	switch {
	case c.err == nil || isReply(c.err):
	case c.ctx.Err() != nil:
		c.err = context.Cause(c.ctx)
	case n.isCut: // by close
		c.err = redis.ErrClosed
	}
	return !n.isCut
}

// cut ends c, whose outcome is unknown then, and the lane, unless c has ended.
func (n *lane) cut(c *call) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == c {
		n.disconnect()
	}
}

// disconnect requires n.mu.
func (n *lane) disconnect() {
	n.isCut = true
	n.hangUp()
	for _, conn := range n.conns {
		closeNow(conn)
	}
	n.conns = nil
}

// close ends the lane, with the call on its way.
func (n *lane) close() {
	n.mu.Lock()
	n.disconnect()
	n.mu.Unlock()
	_ = n.client.Close() // says at most that connections are closed
}

// closeNow closes conn without the farewell of TLS, which may block.
func closeNow(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close() // nothing more comes from it either way
}
