package zklock

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A wire is a connection to one server. It reads along, because go-zookeeper does not tell
// which timeout the ensemble grants, nor the zxid of what it has created, nor when it was
// heard; and it bounds the greeting, for which go-zookeeper waits for several timeouts of a
// session.
//
// All are fixed parts of ZooKeeper's protocol: a frame is its length in 4 bytes and a body.
// The first body that the server sends has the protocol's version and the timeout in 4 bytes
// each and the session in 8; each later one begins with 4 bytes of a request's number, 8 of
// the zxid and 4 of an error. A request begins with its number and its kind.
type wire struct {
	net.Conn
	s  *session
	in *bufio.Reader // one call to the system for all that has arrived

	until time.Time        // by when the greeting must be here
	asked boottime.Instant // when it was asked for
	body  bool             // what the client reads next is a body
	hello *hello           // what the greeting said; nil: it is not here

	closed  chan struct{}
	closing sync.Once

	mu      sync.Mutex
	pending []request   // guarded by mu; that have no answer yet, in the order of writing
	last    *time.Timer // guarded by mu; fires when no more watches are asked for
}

// A hello is a greeting.
type hello struct {
	number  int
	session int64

	// rewatching is closed when the client has asked for the watches of the connection
	// before, nil if there were none.
	rewatching chan struct{}
	rewatched  sync.Once
}

// A request is what the client has written.
type request struct {
	number, kind int32
	at           boottime.Instant // not after it was written
	size         int              // of the frame
}

// Kinds of requests.
const (
	opCreate     = 1
	opPing       = 11
	opAuth       = 100
	opSetWatches = 101 // brings watches to a new connection
)

// noAuth is the error of a call that the ACL of a node does not let through.
const noAuth = -102

// pingsPerSession is how often we ping in the time that a session lasts; the client does so
// three times. It keeps what is known of the session fresh enough for whole grants: carriedAfter
// and the time between two contacts are less than the third by which it outlasts the TTL.
const pingsPerSession = 32

// mostBetweenPings is the most that we wait from one to the next, so that a server's silence is noticed in
// sessions of any length.
const mostBetweenPings = 500 * time.Millisecond

// silent is how long a server may answer nothing, pings included, before the next one is asked, or the same over
// another connection: a caller of a service waits for no more than 4 s then, and a lease of the default TTL is
// renewed.
const silent = 2500 * time.Millisecond

func (w *wire) pingEvery() time.Duration { return min(w.s.timeout/pingsPerSession, mostBetweenPings) }

// pingNumber is that of all pings.
const pingNumber = -2

// pingFrame is a ping as the client writes it: the length, the number -2 and the kind.
var pingFrame = []byte{0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, opPing}

// closeFrame ends the session: the length, a number and the kind, which is -11.
var closeFrame = []byte{0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5}

// greetWithin is how long a server may take for the greeting, at least.
const greetWithin = 500 * time.Millisecond

// askAgainAfter is when a connection on which the ensemble grants another timeout than was
// asked for is closed, so that the next one asks again.
const askAgainAfter = 5 * time.Second

// fullWatches is a little less than how many bytes the client puts into one request for
// watches (128 KiB); after a smaller one none follows.
const fullWatches = 120 << 10

// nextWatchesWithin is how long after the answer to a full one the next may take.
const nextWatchesWithin = time.Second

var errNoWatches = errors.New("zklock: the client has not asked for its watches again")

func newWire(conn net.Conn, s *session) *wire {
	until := time.Now().Add(s.greetBound())
	return &wire{Conn: conn, s: s, in: bufio.NewReader(conn), until: until, closed: make(chan struct{})}
}

// Read implements net.Conn. The client asks for the length of a frame, then for its body,
// and this returns all of what it asks for.
func (w *wire) Read(b []byte) (int, error) {
	n, err := io.ReadFull(w.in, b)
	switch {
	case err != nil && w.hello == nil:
		w.s.failedTo(fmt.Errorf("%w: %w", ErrNoQuorum, err))
	case err != nil || !w.body:
	case w.hello != nil:
		if err := w.reply(b); err != nil {
			return 0, err
		}
	default:
		w.greet(b)
	}
	w.body = !w.body
	return n, err
}

func (w *wire) greet(b []byte) {
	if len(b) < 16 {
		return // the client will not understand it either
	}
	timeout := time.Duration(binary.BigEndian.Uint32(b[4:])) * time.Millisecond
	h := &hello{session: int64(binary.BigEndian.Uint64(b[8:]))}
	if w.s.mustHaveExpired(h.session) {
		w.end()
		h.session = 0
		clear(b[8:16]) // the client is told that it has expired
	}
	watching := w.s.watches.any()
	if watching {
		h.rewatching = make(chan struct{})
	}
	h.number = w.s.greeted(timeout, h.session, w.asked, watching)
	w.hello = h
	if h.session == 0 {
		return
	}
	time.AfterFunc(w.pingEvery(), w.ping)
	if timeout != w.s.timeout {
		time.AfterFunc(askAgainAfter, func() { w.Close() })
	}
}

// end ends the session of this connection, as far as the server answers in time; else it ends by itself.
func (w *wire) end() {
	if _, err := w.Conn.Write(closeFrame); err == nil {
		_, _ = io.Copy(io.Discard, w.in) // the server answers, and closes the connection
	}
}

// ping tells the server that the session lives, again and again until the connection is closed, which it is when
// no answer comes: the client itself would wait for as long as a lease lasts. It takes the answers for those to
// its own pings. Silence is counted in pings: a process that stood still has sent none.
func (w *wire) ping() {
	if time.Duration(w.unanswered())*w.pingEvery() > silent {
		w.Close()
		return
	}
	if _, err := w.Write(pingFrame); err != nil {
		w.Close()
		return
	}
	time.AfterFunc(w.pingEvery(), w.ping)
}

// Write implements net.Conn. The client writes whole frames.
func (w *wire) Write(b []byte) (int, error) {
	now := w.s.d.clock.Now()
	if w.hello == nil {
		w.asked = now
		return w.Conn.Write(w.asks(b))
	}
	if len(b) < 12 {
		return w.Conn.Write(b)
	}
	r := request{
		number: int32(binary.BigEndian.Uint32(b[4:])), kind: int32(binary.BigEndian.Uint32(b[8:])),
		at: now, size: len(b),
	}
	w.mu.Lock()
	w.pending = append(w.pending, r)
	w.mu.Unlock()
	n, err := w.Conn.Write(b)
	if h := w.hello; h.rewatching != nil && r.kind == opSetWatches {
		h.rewatched.Do(func() { close(h.rewatching) })
	}
	return n, err
}

// asks returns the client's first frame, asking for the timeout that is wanted: the client
// asks again for what it was granted last. It has a length and the protocol's version in 4
// bytes each and a zxid in 8 before it.
func (w *wire) asks(b []byte) []byte {
	const at = 16
	if len(b) < at+4 {
		return b
	}
	b = slices.Clone(b) // which is the client's
	binary.BigEndian.PutUint32(b[at:], uint32(w.s.timeout.Milliseconds()))
	return b
}

// unanswered counts the pings that have no answer.
func (w *wire) unanswered() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.pending {
		if r.kind == opPing {
			n++
		}
	}
	return n
}

// answered returns the request of that number. Pings share one, and are answered in order.
func (w *wire) answered(number int32) (r request, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.pending, func(r request) bool { return r.number == number })
	if i < 0 {
		return request{}, false
	}
	r = w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	return r, true
}

// holdBack waits until the client has asked for its watches again. It asks for what it has
// missed since the last zxid that it saw, and go-zookeeper reads that while replies
// change it: one that came first would hide changes, and is a data race. The answers to pings
// change nothing, and behind them may be what the client waits for before it asks.
func (w *wire) holdBack() error {
	if w.hello.rewatching == nil {
		return nil
	}
	select {
	case <-w.hello.rewatching:
		return nil
	case <-w.closed:
		return net.ErrClosed
	case <-time.After(w.s.timeout / 3):
		return errNoWatches
	}
}

// reply learns from an answer: that the ensemble has heard of us, that all watches are there
// again, and when a node was created.
func (w *wire) reply(b []byte) error {
	const header = 16
	if len(b) < header {
		return nil
	}
	number := int32(binary.BigEndian.Uint32(b))
	if number != pingNumber && int64(binary.BigEndian.Uint64(b[4:])) > 0 {
		if err := w.holdBack(); err != nil {
			return err
		}
	}
	r, ok := w.answered(number)
	if !ok { // an event
		return nil
	}
	if r.kind != opAuth { // which is answered without a look at the session
		w.s.heard(w.hello.session, r.at)
	}
	switch code := int32(binary.BigEndian.Uint32(b[12:])); {
	case code == noAuth:
		w.s.denied()
	case code != 0: // another error
	case r.kind == opCreate:
		w.created(binary.BigEndian.Uint64(b[4:]), b[header:])
	case r.kind == opSetWatches:
		w.watchesAgain(r)
	}
	return nil
}

// A birth is the creation of a claim's node.
type birth struct {
	zxid    uint64 // the node's czxid
	session int64  // that the node hangs on
}

// created keeps the birth of a claim's node for the one that asked for it.
func (w *wire) created(zxid uint64, body []byte) {
	if len(body) < 4 || int(binary.BigEndian.Uint32(body)) != len(body)-4 {
		return
	}
	path := body[4:]
	if i := bytes.LastIndexByte(path, '/'); i >= 0 && bytes.HasPrefix(path[i+1:], []byte(protected)) {
		w.s.births.Store(string(path), birth{zxid: zxid, session: w.hello.session})
	}
}

// watchesAgain is called when the watches of r are there again: the client has been told of
// what happened to their nodes before. When they are many it asks for the rest now.
func (w *wire) watchesAgain(r request) {
	if r.size < fullWatches {
		w.s.rewatched(w.hello.number)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last != nil {
		w.last.Stop()
	}
	w.last = time.AfterFunc(nextWatchesWithin, func() { w.s.rewatched(w.hello.number) })
}

// Close implements net.Conn.
func (w *wire) Close() error {
	w.closing.Do(func() { close(w.closed) })
	return w.Conn.Close()
}

// SetReadDeadline implements net.Conn. The client's own deadlines begin after the greeting.
func (w *wire) SetReadDeadline(t time.Time) error {
	if w.hello == nil {
		t = w.until
	}
	return w.Conn.SetReadDeadline(t)
}
