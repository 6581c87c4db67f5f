package zklock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A session is one session at the ensemble, with everything that depends on it. go-zookeeper
// reconnects by itself, and begins a new session when one has expired.
type session struct {
	d       *Driver
	timeout time.Duration
	ttl     time.Duration // the TTL of its leases
	watches watches
	recalls recalls
	limits  limits

	births   sync.Map     // births of nodes whose creation was just answered, by path
	creating sync.RWMutex // held while containers and TTL nodes are created; see settle
	dialed   time.Time    // when it last dialed; used by the client's own goroutine alone

	mu   sync.Mutex
	conn connection      // guarded by mu
	life life            // guarded by mu
	held map[*claim]bool // guarded by mu; the holders, notified when the session ends; nil: it was closed

	views     map[string]*view // guarded by mu; by the node of the resource
	viewsMost int              // guarded by mu; at this number, old ones are dropped
}

func newSession(d *Driver, timeout, ttl time.Duration) *session {
	s := &session{
		d: d, timeout: timeout, ttl: ttl, watches: watches{of: make(map[string]*watch)},
		conn: connection{changed: make(chan struct{})}, held: make(map[*claim]bool), views: make(map[string]*view),
	}
	s.recalls = recalls{s: s, of: make(map[string]*lookout)}
	s.limits.s = s
	return s
}

// A connection is the connection that carries a session at present.
type connection struct {
	client     *zk.Conn // nil until first used
	state      state
	cause      error         // why its state is refused or down
	changed    chan struct{} // closed, and replaced, when state changes
	failed     int           // attempts to connect since the last that succeeded
	known      bool          // the ensemble knows the user
	password   string        // the password by which the ensemble knows the user
	telling    int           // number of introductions in flight
	greeting   int           // number of greetings so far, on this and earlier connections
	rewatching bool          // the watches of the former connection are not set again yet
}

// A state says what a call must do.
type state int

const (
	connecting state = iota // wait
	up                      // go ahead
	down                    // fail: each server was tried
	refused                 // fail: the ensemble refuses, and another attempt would not help soon
	closed
)

// ready returns the connection as soon as it carries a session, or else the reason why it does not.
func (s *session) ready(ctx context.Context) (*zk.Conn, error) {
	for {
		client, state, changed, err := s.look()
		switch {
		case err != nil:
			return nil, err
		case state == up:
			return client, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("zklock: no session yet: %w", ctx.Err())
		}
	}
}

// reach is ready for calls that only end something. An ensemble that refuses the session's timeout
// still serves them, and keeps the session while the connection lasts.
func (s *session) reach(ctx context.Context) (*zk.Conn, error) {
	client, err := s.ready(ctx)
	if errors.Is(err, ErrSessionTimeout) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.conn.client, nil
	}
	return client, err
}

// outlast is ready for a caller with time. It also waits for servers to come back, until ctx ends.
func (s *session) outlast(ctx context.Context) (*zk.Conn, error) {
	for ctx.Err() == nil {
		_, state, changed, _ := s.look()
		if state != down {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return s.ready(ctx)
}

// look returns the current state. The first call begins to connect.
func (s *session) look() (*zk.Conn, state, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn.client == nil && s.conn.state != closed {
		client, _, err := zk.Connect(s.d.servers, s.timeout,
			zk.WithDialer(s.dial), zk.WithHostProvider(&hosts{}), zk.WithEventCallback(s.event),
			zk.WithLogger(log.New(io.Discard, "", 0)), zk.WithLogInfo(false)) // failures are returned as errors
		if err != nil {
			return nil, down, s.conn.changed, err
		}
		s.conn.client = client
	}
	return s.conn.client, s.conn.state, s.conn.changed, s.conn.cause
}

// become changes the state.
func (c *connection) become(s state, cause error) {
	if c.state == closed {
		return
	}
	old := c.state
	c.state, c.cause = s, cause
	if s != old { // nobody waits for a new cause
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// refusal returns why the ensemble serves nothing, or nil if it has not said so.
func (s *session) refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn.state == refused {
		return s.conn.cause
	}
	return nil
}

// current returns the id of the last known session, and the number of its connection's greeting.
// isUp reports whether that connection is up.
func (s *session) current() (id int64, greeting int, isUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life.id, s.conn.greeting, s.conn.state == up
}

// carries reports whether id belongs to the live session.
func (s *session) carries(id int64) bool {
	now, _, _ := s.current()
	return id == now
}

// greeted records what the ensemble grants, before anything is sent on the connection. It returns
// the number of the greeting.
func (s *session) greeted(timeout time.Duration, id int64, asked boottime.Instant, watching bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.failed = 0
	s.conn.greeting++
	s.conn.rewatching = watching
	shorter := id == s.life.id && timeout < s.timeout
	s.life.greeted(id, asked, shorter)
	switch {
	case id == 0: // it has expired, which event reports
	case timeout != s.timeout:
		cause := fmt.Errorf("%w: asked for %v, it offers %v", ErrSessionTimeout, s.timeout, timeout)
		s.conn.become(refused, cause)
		if shorter { // the session may end before its leases
			go s.lose(fmt.Errorf("%w: %w", driver.ErrLost, cause))
		}
	case s.conn.state == refused: // the ensemble's settings were corrected
		s.conn.become(connecting, nil)
	}
	return s.conn.greeting
}

// event is called by the client's own goroutines, and must not block.
func (s *session) event(e zk.Event) {
	if e.Type != zk.EventSession {
		if e.Type != zk.EventNotWatching { // it belongs to a session that has ended, which StateExpired reports
			s.watches.event(e)
		}
		return
	}
	switch e.State {
	case zk.StateHasSession:
		s.begin()
	case zk.StateDisconnected:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conn.rewatching = false
		if s.conn.state == up {
			s.conn.become(connecting, nil)
		}
	case zk.StateExpired:
		s.mu.Lock()
		s.life = life{}
		s.mu.Unlock()
		s.lose(errExpired)
		s.watches.end()
	}
}

var errExpired = lostFor("the session has expired")

// begin lets calls through once the watches are set and the ensemble knows the user.
func (s *session) begin() {
	password := s.d.password()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn.state != refused {
		s.conn.become(connecting, nil)
		s.admit(password)
	}
}

// admit lets calls through, or introduces the user, if the connection waits for nothing else.
// Requires mu.
func (s *session) admit(password string) {
	switch {
	case s.conn.state != connecting || s.conn.rewatching:
	case s.d.opts.User == "" || s.conn.known && s.conn.password == password: // go-zookeeper sends the password again by itself
		s.conn.become(up, nil)
	default:
		s.introduce(password)
	}
}

// denied is called when a node's ACL has refused a call, because the password may have changed. The
// ensemble also keeps the former password for as long as the connection lasts.
func (s *session) denied() {
	if s.d.opts.User == "" {
		return
	}
	password := s.d.password()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn.telling == 0 && (!s.conn.known || s.conn.password != password) {
		s.introduce(password)
	}
}

// rewatched continues begin on the connection of that greeting, because all watches are set again.
func (s *session) rewatched(greeting int) {
	password := s.d.password()
	s.mu.Lock()
	defer s.mu.Unlock()
	if greeting == s.conn.greeting && s.conn.rewatching {
		s.conn.rewatching = false
		s.admit(password)
	}
}

// introduce starts to send user and password. If that fails, the next connection, or the next call
// that is refused, tries again. Requires mu.
func (s *session) introduce(password string) {
	s.conn.telling++
	client := s.conn.client
	go func() {
		err := client.AddAuth("digest", []byte(s.d.opts.User+":"+password))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conn.telling--
		if errors.Is(err, zk.ErrAuthFailed) {
			s.conn.become(refused, explain(err))
		}
		if err != nil {
			s.conn.known = false
			return
		}
		s.conn.known, s.conn.password = true, password
		if client.State() == zk.StateHasSession {
			s.admit(password)
		}
	}()
}

// failedTo counts an attempt to connect. After one attempt at each server, calls fail.
func (s *session) failedTo(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.failed++
	if s.conn.failed >= len(s.d.servers) && (s.conn.state == connecting || s.conn.state == down) {
		s.conn.become(down, err)
	}
}

// greetBound is how long a server may take for the greeting. A third of the session's timeout
// leaves time for another server. Until each server was tried they share that time, and none has
// more than silent, so that a server that hangs costs a call with a deadline little.
func (s *session) greetBound() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := s.timeout / 3
	if s.conn.failed < len(s.d.servers) {
		bound = min(bound/time.Duration(len(s.d.servers)), silent)
	}
	return max(bound, greetWithin)
}

// dialEvery limits attempts at a server that accepts sessions and closes them at once, because
// go-zookeeper pauses only when nobody accepts.
const dialEvery = 50 * time.Millisecond

// dial dials for the client.
func (s *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	time.Sleep(time.Until(s.dialed.Add(dialEvery)))
	s.dialed = time.Now()
	conn, err := s.d.opts.Dial(network, address, timeout)
	if err != nil {
		s.failedTo(fmt.Errorf("%w: %w", ErrUnreachable, err))
		return nil, err
	}
	return newWire(conn, s), nil
}

// keep notifies c when the session ends. It reports false, and c must not be granted, if the driver
// was closed.
func (s *session) keep(c *claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		return false
	}
	s.held[c] = true
	return true
}

func (s *session) drop(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, c)
}

// lose notifies all holders that their leases have ended. It does not wait for the notifications.
func (s *session) lose(cause error) {
	for _, c := range s.holders(false) {
		go c.lose(cause)()
	}
}

// holders returns the holders. With last, none can be added afterwards.
func (s *session) holders(last bool) []*claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Keys(s.held))
	if last {
		s.held = nil
	}
	return all
}

// close ends the session and everything that depends on it. It notifies its holders first.
func (s *session) close() {
	for _, c := range s.holders(true) {
		c.lose(lostFor("its driver was closed"))()
	}
	s.mu.Lock()
	client := s.conn.client
	s.conn.become(closed, driver.ErrClosed)
	s.mu.Unlock()
	s.settle()
	if client != nil {
		client.Close()
	}
}

// creates creates a container or a TTL node, unless the session was closed. If go-zookeeper were
// closed meanwhile, it would read the answer while it writes it.
func (s *session) creates(node func() (path string, err error)) error {
	s.creating.RLock()
	defer s.creating.RUnlock()
	if _, state, _, err := s.look(); state == closed {
		return err
	}
	_, err := node()
	return err
}

// settle waits briefly until no creation is in progress. Later creations find the session closed.
func (s *session) settle() {
	abandon.Within(time.Second, func() {
		s.creating.Lock()
		s.creating.Unlock() //lint:ignore SA2001 it only waits
	})
}
