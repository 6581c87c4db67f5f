package memcachelock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	// grace is how much longer than its context a call may wait for an answer that is on
	// its way: an outcome that is known leaves nothing behind.
	grace = 20 * time.Millisecond
	// checkIdle is after how long without use a connection is looked at before it is used:
	// the server may have ended it, and then nothing of the call gets there.
	checkIdle = time.Second
	// A command that took slow may have waited for a server that stood still, as one does
	// whose machine is moved. Its clock stood too, and goes on a moment later than the
	// commands: what was stored in between lasts less by as long as the server stood, which
	// may be nothing.
	slow, tick = 100 * time.Millisecond, 20 * time.Millisecond
)

// A line is one connection to a server, opened when it is needed, with a client of its
// own. One call uses it at a time.
//
// Versions of items begin anew when a server restarts, so that a swap which follows its
// read on another connection could hit somebody else's item with the same version. Here
// it cannot: the client keeps the connection of the read for the swap, as nobody else
// uses it and there is room for one, and does not open another when that one is broken.
type line struct {
	server *server
	client *memcache.Client
	ctx    context.Context // of the call
	sent   bool            // something of the call may have gone to the server
	failed bool            // the connection broke by itself
	stale  bool            // the last command was slow
	redone bool            // the call has stored once more because of that
	opened time.Time
	used   time.Time

	mu   sync.Mutex
	conn *conn // guarded by mu; nil: not open
}

func newLine(s *server) *line {
	l := &line{server: s}
	l.client = memcache.NewFromSelector(only(s.address))
	l.client.DialContext = l.dial
	l.client.MaxIdleConns = 1
	l.client.Timeout = 24 * time.Hour // the call's context decides instead
	return l
}

// only selects the one server there is.
type only string

func (a only) PickServer(string) (net.Addr, error) { return a, nil }
func (a only) Each(f func(net.Addr) error) error   { return f(a) }
func (only) Network() string                       { return "tcp" }
func (a only) String() string                      { return string(a) }

// begin has the line serve a call until end is called.
func (l *line) begin(ctx context.Context) (end func()) {
	l.ctx, l.sent, l.failed, l.redone = ctx, false, false, false
	l.limit()
	if time.Since(l.used) > checkIdle {
		l.dropDead()
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		l.limit()
		close(ended)
	})
	return func() {
		if !stop() {
			<-ended
		}
		l.used = time.Now()
	}
}

// limit sets how long the call may wait.
func (l *line) limit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.ctx.Deadline()
	if l.ctx.Err() != nil {
		until, ok = time.Now(), true
	}
	if ok {
		until = until.Add(grace)
	}
	if l.conn != nil {
		_ = l.conn.Conn.SetDeadline(until) // a connection that is closed waits for nothing
	}
}

// timed makes one command. It returns when the server's clock goes again.
func (l *line) timed(command func() error) error {
	start := time.Now()
	err := command()
	if l.stale = time.Since(start) > slow; l.stale {
		time.Sleep(tick)
	}
	return l.failure(err)
}

// again reports whether what was stored must be stored once more, to last for its time.
func (l *line) again() bool {
	again := l.stale && !l.redone
	l.redone = l.redone || again
	return again
}

// dial is the client's way to a connection.
func (l *line) dial(_ context.Context, network, address string) (net.Conn, error) {
	nc, err := l.server.dial(l.ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.opened = time.Now()
	c := &conn{Conn: nc, line: l}
	l.mu.Lock()
	l.conn = c
	l.mu.Unlock()
	l.limit()
	return c, nil
}

// dropDead closes the connection if the server has ended it.
func (l *line) dropDead() {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c == nil {
		return
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(100 * time.Microsecond)) // its failure shows in the read
	_, err := c.Conn.Read(make([]byte, 1))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		l.client.Close()
		return
	}
	l.limit()
}

// add stores an item if there is none. refused: there is one.
func (l *line) add(item *memcache.Item) error {
	return l.timed(func() error { return l.client.Add(item) })
}

// get reads an item; nil: there is none.
func (l *line) get(key string) (*memcache.Item, error) {
	var item *memcache.Item
	err := l.timed(func() (err error) {
		item, err = l.client.Get(key)
		return err
	})
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return nil, nil
	case err != nil:
		return nil, err
	case item.CasID == 0:
		return nil, ErrNoCAS
	}
	return item, nil
}

// swap stores an item in place of the one that was read, on the same connection. refused:
// that one is gone or was changed.
func (l *line) swap(item *memcache.Item) error {
	return l.timed(func() error { return l.client.CompareAndSwap(item) })
}

// failure tells an error of the connection, and whether the server may have got the call.
func (l *line) failure(err error) error {
	if err == nil || refused(err) {
		return err
	}
	if !l.sent {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		l.failed = true
	}
	return err
}

// A conn is a connection whose limits are the call's and not the client's.
type conn struct {
	net.Conn
	line *line
}

// SetDeadline does nothing.
func (*conn) SetDeadline(time.Time) error { return nil }

func (c *conn) Write(p []byte) (int, error) {
	c.line.sent = true
	return c.Conn.Write(p)
}

// Close discards what has not got to the server: the kernel would go on sending it for
// minutes, longer than a bar lasts.
func (c *conn) Close() error {
	c.line.mu.Lock()
	c.line.conn = nil
	c.line.mu.Unlock()
	below := c.Conn
	if secure, ok := below.(interface{ NetConn() net.Conn }); ok {
		below = secure.NetConn()
	}
	if tcp, ok := below.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails where it is closed already
	}
	return c.Conn.Close()
}
