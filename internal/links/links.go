// Package links keeps an engine's client off connections on which nobody answers any more.
//
// A firewall that loses its table drops what comes over the connections that it has let through, says nothing to
// either end, and lets new ones pass. So a call that has no answer for a while condemns all connections
// that were open when it began and have delivered nothing since. They are closed, and the next attempt goes over a
// connection made since.
package links

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// ErrSilent is why a call has ended that condemned connections. It may have been served.
var ErrSilent = errors.New("no answer over this connection")

// Links are the connections of one client. The zero value has none. The methods of a nil *Links do nothing, for
// a client whose connections are not ours.
type Links struct {
	// Condemn, if not nil, is called in place of closing connections, by the client that knows which of them carry a
	// call: those that carry none are of no use any more, and were silent since then or longer.
	Condemn func(since time.Time)

	patience Patience

	mu        sync.Mutex
	open      map[*conn]bool // guarded by mu
	condemned time.Time      // guarded by mu; when connections were last
}

// A DialFunc makes a connection.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a DialFunc whose connections are l's; nil stands for a net.Dialer's.
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

// Add returns c, which is new, as one of l's connections.
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

// A Call waits for an answer.
type Call struct {
	links  *Links
	began  time.Time
	parent context.Context
	cancel context.CancelCauseFunc
	late   bool // see BeginLate

	mu     sync.Mutex
	since  time.Time     // guarded by mu; a connection that has delivered nothing since is condemned
	moment time.Duration // guarded by mu; what the second look waits for yet; 0: the next look is the first
	timer  *time.Timer   // guarded by mu
	over   bool          // guarded by mu
}

// Begin returns the context of one attempt. It ends, by [ErrSilent], when connections were condemned
// for want of the attempt's answer. End follows.
func (l *Links) Begin(ctx context.Context) (context.Context, *Call) {
	return l.begin(ctx, false)
}

// BeginLate is Begin of an attempt after which another does not tell what became of it: it waits for half of its
// caller's time, and for an answer where that is not bounded.
func (l *Links) BeginLate(ctx context.Context) (context.Context, *Call) {
	if _, bounded := ctx.Deadline(); !bounded {
		return ctx, nil
	}
	return l.begin(ctx, true)
}

func (l *Links) begin(ctx context.Context, late bool) (context.Context, *Call) {
	if l == nil {
		return ctx, nil
	}
	now := time.Now()
	c := &Call{links: l, began: now, since: now, parent: ctx, late: late}
	ctx, c.cancel = context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(c.firstLook(), c.look)
	return ctx, c
}

// firstLook is when to look first. Requires c.mu.
func (c *Call) firstLook() time.Duration {
	d := c.patience()
	c.moment = d / 4
	return d - c.moment
}

// Again reports whether to make a call again that came to err: nobody answered over the connections that there were.
// It must be a call that may be served twice. The former attempt may have been served, or may be served later.
func Again(ctx context.Context, err error) bool {
	return errors.Is(err, ErrSilent) && ctx.Err() == nil
}

// patience is how long to wait for a sign from now on.
func (c *Call) patience() time.Duration {
	if d, bounded := c.links.patience.ForLate(c.parent); c.late && bounded {
		return d
	}
	return c.links.patience.For(c.parent)
}

// look condemns at the second look, a moment after the first: if this process stood still, the answer may be here
// already, and was read meanwhile.
func (c *Call) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if moment := c.moment; moment > 0 {
		c.moment = 0
		c.timer.Reset(moment)
		return
	}
	if c.links.condemn(c.since) {
		c.cancel(ErrSilent)
		return
	}
	c.since = time.Now()
	c.timer.Reset(c.firstLook())
}

// End ends the attempt, which came to err. An error that matches [ErrSilent] says that another attempt goes over
// other connections.
func (c *Call) End(err error) error {
	if c == nil {
		return err
	}
	c.mu.Lock()
	c.over = true
	c.timer.Stop()
	c.mu.Unlock()
	silent := c.silent()
	c.cancel(nil)
	switch {
	case err == nil:
		c.links.patience.Answered(c.began)
	case silent && c.parent.Err() == nil && !errors.Is(err, ErrSilent):
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// silent reports whether connections that the attempt may have used were condemned.
func (c *Call) silent() bool {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	return !c.links.condemned.Before(c.began)
}

// Hung is for a call that began then, was bounded by its caller, and had no answer.
func (l *Links) Hung(began time.Time) {
	if l == nil {
		return
	}
	if time.Since(began) >= l.patience.For(context.Background()) {
		l.condemn(began)
	}
}

// Answered is for a call that began then.
func (l *Links) Answered(began time.Time) {
	if l != nil {
		l.patience.Answered(began)
	}
}

// condemn closes the connections that have delivered nothing since then, and reports whether any was condemned since.
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

// A conn knows when it last delivered something.
type conn struct {
	net.Conn
	links *Links

	mu    sync.Mutex
	heard time.Time // guarded by mu; at first, when it was made
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

// NetConn is the connection below, as that of a tls.Conn.
func (c *conn) NetConn() net.Conn { return c.Conn }

func (c *conn) silentSince(then time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.heard.After(then)
}

// abort closes the connection without its farewell. What was written and has not left is thrown away: the kernel
// would go on sending it for minutes, and it would be served when nobody knows of it any more.
func (c *conn) abort() {
	below := c.Conn
	for {
		layer, ok := below.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		below = layer.NetConn()
	}
	if tcp, ok := below.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails where it is closed already
	}
	_ = below.Close()
}
