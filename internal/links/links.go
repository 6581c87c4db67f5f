// Package links keeps an engine's client from using connections that no longer answer.
//
// A firewall that loses its table drops all packets of earlier connections without notice to
// either end, but lets new ones pass. So a call without an answer for a while condemns all
// connections that were open when it began and have delivered nothing since. They are closed,
// and the next attempt uses a connection made later.
package links

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// ErrSilent is the error of a call that condemned connections. The call may have been served.
var ErrSilent = errors.New("no answer over this connection")

// Links are the connections of one client. The zero value has none. The methods of a nil *Links
// do nothing, for clients whose connections are not ours.
type Links struct {
	// Condemn, if not nil, is called instead of closing connections, by a client that knows
	// which of them carry a call. Those without a call are useless, and have been silent since
	// the given time or longer.
	Condemn func(since time.Time)

	// Ask, if not nil, asks for an answer over a new connection. It is for engines whose calls
	// wait for each other, for example for a locked row. There a call without an answer condemns
	// connections only if Answers had none since, and Ask gets one.
	Ask func(ctx context.Context) error
	// Answers records the answers of all calls, for Ask.
	Answers Answers

	patience Patience
	spare    sync.Pool // Calls that are over, with stopped timers

	mu        sync.Mutex
	open      map[*conn]bool // guarded by mu
	condemned time.Time      // guarded by mu; when connections were last condemned
}

// A DialFunc makes a connection.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a DialFunc that adds its connections to l; nil stands for a net.Dialer's.
func (l *Links) Dialer(dial DialFunc) DialFunc {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return l.Add(c), nil
	}
}

// Add adds the new connection c and returns it.
func (l *Links) Add(c net.Conn) net.Conn {
	added := &conn{Conn: c, links: l, heard: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[*conn]bool)
	}
	l.open[added] = true
	return added
}

// Patience returns how long a call without a deadline waits for an answer.
func (l *Links) Patience() time.Duration { return l.patience.For(context.Background()) }

// Hung records a call that began then, had a deadline, and got no answer.
func (l *Links) Hung(began time.Time) {
	if l == nil {
		return
	}
	since := began
	if l.Ask != nil {
		if l.condemnedSince(began) { // the call condemned them itself
			return
		}
		if last := l.Answers.Last(); last.After(began) {
			since = last
		}
	}
	if time.Since(since) >= l.Patience() {
		l.condemn(began)
	}
}

// Answered records a call that began then and was answered.
func (l *Links) Answered(began time.Time) {
	if l != nil {
		l.patience.Answered(began)
	}
}

// condemn closes the connections that have delivered nothing since then. It reports whether any
// have been condemned since.
func (l *Links) condemn(since time.Time) bool {
	l.mu.Lock()
	var silent []*conn
	for c := range l.open {
		if c.silentSince(since) {
			silent = append(silent, c)
			delete(l.open, c)
		}
	}
	if len(silent) > 0 || l.Condemn != nil {
		l.condemned = time.Now()
		l.patience.RanOut()
	}
	any := !l.condemned.Before(since)
	l.mu.Unlock()
	for _, c := range silent {
		c.abort()
	}
	if l.Condemn != nil {
		l.Condemn(since)
	}
	return any
}

// Note records what a client found on a connection that it condemned itself.
func (l *Links) Note() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.condemned = time.Now()
}

// condemnedSince reports whether connections were condemned then or later.
func (l *Links) condemnedSince(then time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.condemned.Before(then)
}

// A conn knows when it last delivered something.
type conn struct {
	net.Conn
	links *Links

	mu    sync.Mutex
	heard time.Time // guarded by mu; when it last delivered something; at first, when it was made
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); n > 0 {
		c.mu.Lock()
		c.heard = time.Now()
		c.mu.Unlock()
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.links.mu.Lock()
	delete(c.links.open, c)
	c.links.mu.Unlock()
	return c.Conn.Close()
}

// NetConn returns the underlying connection, like the method of tls.Conn.
func (c *conn) NetConn() net.Conn { return c.Conn }

func (c *conn) silentSince(then time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.heard.After(then)
}

// abort closes the connection at once and discards unsent data.
func (c *conn) abort() { _ = Discard(c.Conn).Close() }

// Discard makes the kernel drop unsent data when c is closed. Otherwise it would go on sending
// for minutes, and the data could be served when nobody expects it any more. Discard returns the
// connection below all layers of c.
func Discard(c net.Conn) (below net.Conn) {
	below = c
	for {
		layer, ok := below.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		below = layer.NetConn()
	}
	if tcp, ok := below.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it fails if the connection is already closed
	}
	return below
}
