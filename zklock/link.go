package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
)

// A link is a driver's one session, with the connection that carries it at present.
// go-zookeeper connects again by itself, and begins a new session when one has expired.
type link struct {
	servers []string
	timeout time.Duration // of the session
	user    []byte        // name and password for digest; nil: none
	dial    zk.Dialer
	// heard is told of every event of a node, ended when a session is over. They are called
	// by the client's own goroutine and must not block. shortened is told of a session that
	// goes on, but may end before what hangs on it.
	heard     func(zk.Event)
	ended     func()
	shortened func(cause error)
	watching  func() bool // whether nodes are being watched

	mu      sync.Mutex
	conn    *zk.Conn      // guarded by mu; nil until first used
	state   state         // guarded by mu
	changed chan struct{} // guarded by mu; closed, and replaced, when state changes
	cause   error         // guarded by mu; of state refused and down
	session int64         // guarded by mu; the id, 0: none yet
	failed  int           // guarded by mu; attempts to connect since the last that succeeded
	known   bool          // guarded by mu; the ensemble knows the user

	greetings  int  // guarded by mu; of this connection and those before
	rewatching bool // guarded by mu; the watches of the connection before are not there yet

	proven   time.Time // guarded by mu; when we last asked what the leader answered, in this session
	lasts    time.Time // guarded by mu; the leader does not end the session before
	contacts []contact // guarded by mu; of this connection, oldest first

	dialed time.Time // of the client's own goroutine
	births sync.Map  // of birth, by path; of nodes whose creation was answered just now
	behind sync.Map  // of func(), by path; to be called when the creation of a node is asked for
}

// A birth is the creation of a claim's node.
type birth struct {
	zxid    uint64 // the node's czxid
	session int64  // that the node hangs on
}

func (l *link) born(path string, b birth) { l.births.Store(path, b) }

// asking is called when the creation of a node is asked for. What is called for then asks
// later than that.
func (l *link) asking(path string) {
	if ask, ok := l.behind.LoadAndDelete(path); ok {
		go ask.(func())()
	}
}

// birth returns what is known of the node that was just created at path.
func (l *link) birth(path string) (b birth, ok bool) {
	v, ok := l.births.LoadAndDelete(path)
	if ok {
		b = v.(birth)
	}
	return b, ok
}

// A state says what a call has to do.
type state int

const (
	connecting state = iota // wait
	up                      // go ahead
	down                    // fail: each server was tried
	refused                 // fail: the ensemble will not change its mind soon
	closed
)

// ready returns the connection as soon as it carries a session, or why it does not.
func (l *link) ready(ctx context.Context) (*zk.Conn, error) {
	for {
		conn, state, changed, err := l.look()
		switch {
		case err != nil:
			return nil, err
		case state == up:
			return conn, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("zklock: no session yet: %w", context.Cause(ctx))
		}
	}
}

// outlast is ready for one who has time: until ctx ends it also waits for servers to come back.
func (l *link) outlast(ctx context.Context) (*zk.Conn, error) {
	for ctx.Err() == nil {
		_, state, changed, _ := l.look()
		if state != down {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return l.ready(ctx)
}

// look returns how things are. The first time it begins to connect.
func (l *link) look() (*zk.Conn, state, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil && l.state != closed {
		conn, _, err := zk.Connect(l.servers, l.timeout,
			zk.WithDialer(l.connect), zk.WithHostProvider(&hosts{}), zk.WithEventCallback(l.event),
			zk.WithLogger(quiet{}), zk.WithLogInfo(false))
		if err != nil {
			return nil, down, l.changed, err
		}
		l.conn = conn
	}
	return l.conn, l.state, l.changed, l.cause
}

type quiet struct{}

func (quiet) Printf(string, ...any) {} // what goes wrong comes as an error

// become changes the state. Requires l.mu.
func (l *link) become(s state, cause error) {
	if l.state == closed {
		return
	}
	old := l.state
	l.state, l.cause = s, cause
	if s == old { // nobody waits for another cause
		return
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// refusal is why the ensemble serves nothing, nil if it has not said so.
func (l *link) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == refused {
		return l.cause
	}
	return nil
}

// current is the id of the session that is live as far as we know.
func (l *link) current() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// greeted is told what the ensemble grants, before anything is sent on the connection, and
// returns the number of the greeting. The leader itself lets a session go on: it knows of
// this contact, and none of another connection is newer.
func (l *link) greeted(timeout time.Duration, session int64, asked time.Time, watching bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = 0
	l.greetings++
	l.rewatching = watching
	if session != l.session || timeout < l.timeout {
		l.proven, l.lasts = time.Time{}, time.Time{}
	}
	l.contacts = []contact{{sent: asked}}
	switch {
	case session == 0: // expired: event hears of that
	case timeout != l.timeout:
		cause := fmt.Errorf("%w: asked for %v, it offers %v", ErrSessionTimeout, l.timeout, timeout)
		l.become(refused, cause)
		if session == l.session && timeout < l.timeout {
			go l.shortened(cause)
		}
		l.session = session
	default:
		l.session = session
		if l.state == refused { // somebody has mended the ensemble
			l.become(connecting, nil)
		}
	}
	return l.greetings
}

// event is called by the client's own goroutines.
func (l *link) event(e zk.Event) {
	if e.Type != zk.EventSession {
		if e.Type != zk.EventNotWatching { // of a session that ended, which ended tells
			l.heard(e)
		}
		return
	}
	switch e.State {
	case zk.StateHasSession:
		l.begin()
	case zk.StateDisconnected:
		l.mu.Lock()
		l.rewatching = false
		if l.state == up {
			l.become(connecting, nil)
		}
		l.mu.Unlock()
	case zk.StateExpired:
		l.mu.Lock()
		l.session, l.proven, l.lasts = 0, time.Time{}, time.Time{}
		l.mu.Unlock()
		l.ended()
	}
}

// begin lets calls through, when the ensemble knows who we are and what we watch.
func (l *link) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == refused:
	case l.rewatching:
		l.become(connecting, nil)
	case l.user == nil || l.known: // go-zookeeper tells it again by itself
		l.become(up, nil)
	default:
		l.become(connecting, nil)
		go l.introduce(l.conn)
	}
}

// rewatched lets calls through on the connection of that greeting: all watches are there.
func (l *link) rewatched(greeting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if greeting != l.greetings || !l.rewatching {
		return
	}
	l.rewatching = false
	if l.state == connecting {
		l.become(up, nil)
	}
}

// introduce tells user and password. If that fails the next connection tries again.
func (l *link) introduce(conn *zk.Conn) {
	err := conn.AddAuth("digest", l.user)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && conn.State() == zk.StateHasSession:
		l.known = true
		l.become(up, nil)
	case err == nil:
		l.known = true
	case errors.Is(err, zk.ErrAuthFailed):
		l.become(refused, explain(err))
	}
}

// failedTo counts an attempt to connect. When each server has had one, calls fail.
func (l *link) failedTo(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed++
	if l.failed >= len(l.servers) && (l.state == connecting || l.state == down) {
		l.become(down, err)
	}
}

// dialEvery keeps a server that accepts sessions and closes them at once from being asked
// without end: go-zookeeper pauses only when nobody accepts.
const dialEvery = 50 * time.Millisecond

// connect is the client's dialer.
func (l *link) connect(network, address string, timeout time.Duration) (net.Conn, error) {
	time.Sleep(time.Until(l.dialed.Add(dialEvery)))
	l.dialed = time.Now()
	conn, err := l.dial(network, address, timeout)
	if err != nil {
		l.failedTo(fmt.Errorf("%w: %w", ErrUnreachable, err))
		return nil, err
	}
	return newWire(conn, l), nil
}

// close ends the session, and with it whatever hangs on it.
func (l *link) close() {
	l.mu.Lock()
	conn := l.conn
	if l.state != closed {
		l.become(closed, driver.ErrClosed)
	}
	l.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// hosts are the servers in turn. Unlike go-zookeeper's own provider it looks names up when
// it connects to them, and lets the first round after a loss begin at once.
type hosts struct {
	mu    sync.Mutex
	all   []string // guarded by mu
	next  int      // guarded by mu
	tried int      // guarded by mu; since the last success
}

// Init is called by the client, with the servers in random order.
func (h *hosts) Init(servers []string) error {
	h.all = servers
	return nil
}

// Len is called by the client.
func (h *hosts) Len() int { return len(h.all) }

// Next is called by the client, which pauses for a second when retryStart is true.
func (h *hosts) Next() (server string, retryStart bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.all[h.next%len(h.all)]
	h.next++
	retryStart = h.tried > 0 && h.tried%len(h.all) == 0
	h.tried++
	return server, retryStart
}

// Connected is called by the client.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 0
}
