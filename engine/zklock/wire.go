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

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A wire is a connection to one server. It reads along, because go-zookeeper does not say which
// timeout the ensemble grants, the zxid of a creation, or when the last answer came. It also bounds
// the greeting, for which go-zookeeper waits for several session timeouts.
//
// It relies only on fixed parts of ZooKeeper's protocol. A frame is its length in 4 bytes and a
// body. The first body that the server sends begins with the protocol's version and the timeout in
// 4 bytes each, and the session in 8. Each later body begins with a request's number in 4 bytes,
// the zxid in 8 and an error in 4. A request begins with its number and its kind.
type wire struct {
	net.Conn
	s  *session
	in *bufio.Reader // gets all that has arrived with one system call

	until time.Time        // by when the greeting must arrive
	asked boottime.Instant // when the greeting was requested
	body  bool             // the client reads a body next
	hello *hello           // the greeting; nil: not here yet

	closed  chan struct{}
	closing sync.Once

	mu      sync.Mutex
	pending []request   // guarded by mu; requests without an answer, in the order of writing
	last    *time.Timer // guarded by mu; fires if the client asks for no more watches
}

// A hello is a greeting.
type hello struct {
	number  int
	session int64

	// rewatching is closed when the client has asked for the watches of the former connection; nil:
	// it had none.
	rewatching chan struct{}
	rewatched  sync.Once
}

// A request is a request that the client has written.
type request struct {
	number, kind int32
	at           boottime.Instant // not later than it was written
	size         int              // the size of the frame
	watches      string           // the path of the node that it sets a watch on; "": none
}

// Kinds of requests.
const (
	opCreate       = 1
	opExists       = 3
	opGetData      = 4
	opPing         = 11
	opGetChildren2 = 12
	opAuth         = 100
	opSetWatches   = 101 // sets watches again on a new connection
)

// Errors of the ensemble: a node does not exist, or its ACL refuses the call.
const (
	noNode = -101
	noAuth = -102
)

// pingsPerSession is how often we ping per session timeout; the client pings three times. So what
// is known of the session stays fresh enough for whole grants: the time before the leader knows of
// a contact (carriedAfter) and the time between two contacts are together less than the third by
// which the session outlasts the TTL.
const pingsPerSession = 32

// mostBetweenPings is the longest time between two pings, so that a server's silence is noticed
// with long sessions too.
const mostBetweenPings = 500 * time.Millisecond

// silent is how long a server may leave all requests, pings included, unanswered. Then the next
// server is tried, or the same one over another connection. So a caller of a service waits for at
// most 4 s, and a lease of the default TTL is renewed in time.
const silent = 2500 * time.Millisecond

func (w *wire) pingEvery() time.Duration { return min(w.s.timeout/pingsPerSession, mostBetweenPings) }

// pingNumber is the number of all pings.
const pingNumber = -2

// eventNumber is the number of all events.
const eventNumber = -1

// pingFrame is a ping as the client writes it: the length, the number -2 and the kind.
var pingFrame = []byte{0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, opPing}

// closeFrame ends the session: the length, a number and the kind, which is -11.
var closeFrame = []byte{0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5}

// greetWithin is the least time that a server has for the greeting.
const greetWithin = 500 * time.Millisecond

// askAgainAfter is when to close a connection on which the ensemble has granted another timeout
// than requested. The next connection requests it again.
const askAgainAfter = 5 * time.Second

// fullWatches is slightly less than the bytes that the client puts into one request for watches
// (128 KiB). After a smaller request, no other follows.
const fullWatches = 120 << 10

// nextWatchesWithin is how soon after the answer to a full request the next one must come.
const nextWatchesWithin = time.Second

// header is the length of the shortest body: of what precedes the passwords in a greeting, and of
// what each later body begins with.
const header = 16

// maxGreeting is well above the length of a greeting, which is about 40 bytes. maxBody is well
// above that of any list of children. Servers that do not speak the protocol announce more.
const maxGreeting, maxBody = 1 << 10, 256 << 20

var errForeign = errors.New("zklock: the server does not speak ZooKeeper's protocol")

var errNoWatches = errors.New("zklock: the client has not asked for its watches again")

func newWire(conn net.Conn, s *session) *wire {
	until := time.Now().Add(s.greetBound())
	return &wire{Conn: conn, s: s, in: bufio.NewReader(conn), until: until, closed: make(chan struct{})}
}

// Read implements net.Conn. The client asks for the length of a frame, then for its body,
// and this returns all of what it asks for.
func (w *wire) Read(b []byte) (int, error) {
	n, err := io.ReadFull(w.in, b)
	isBody, isGreeting := w.body, w.hello == nil
	switch {
	case err != nil:
	case !isBody:
		err = w.fits(b)
	case isGreeting:
		err = w.greet(b)
	default:
		err = w.reply(b)
	}
	if err != nil && isGreeting {
		w.s.failedTo(fmt.Errorf("%w: %w", ErrNoQuorum, err))
	}
	if err != nil {
		return 0, err
	}
	w.body = !w.body
	return n, nil
}

// fits refuses a length that the client must not use: it makes room for whatever it reads, and
// fails on a body that is shorter than its header.
func (w *wire) fits(length []byte) error {
	most := uint32(maxBody)
	if w.hello == nil {
		most = maxGreeting
	}
	if n := binary.BigEndian.Uint32(length); n < header || n > most {
		return errForeign
	}
	return nil
}

func (w *wire) greet(b []byte) error {
	timeout := time.Duration(int32(binary.BigEndian.Uint32(b[4:]))) * time.Millisecond
	h := &hello{session: int64(binary.BigEndian.Uint64(b[8:]))}
	if timeout <= 0 && h.session != 0 { // the client fails on it
		return errForeign
	}
	if w.s.mustHaveExpired(h.session) {
		w.end()
		h.session = 0
		clear(b[8:16]) // a session of 0 tells the client that it has expired
	}
	watching := w.s.watches.client.any()
	if watching {
		h.rewatching = make(chan struct{})
	}
	h.number = w.s.greeted(timeout, h.session, w.asked, watching)
	w.hello = h
	switch {
	case h.session == 0:
	case timeout != w.s.timeout: // the client's own pings, by what was granted, keep the session
		time.AfterFunc(askAgainAfter, func() { w.Close() })
	default:
		time.AfterFunc(w.pingEvery(), w.ping)
	}
	return nil
}

// end ends the session of this connection. If the server does not answer in time, the session ends
// by its timeout.
func (w *wire) end() {
	if _, err := w.Conn.Write(closeFrame); err == nil {
		_, _ = io.Copy(io.Discard, w.in) // the server answers and closes the connection
	}
}

// ping sends pings until the connection is closed. It closes the connection if they are not
// answered, because the client itself would wait for as long as a lease lasts. The client takes the
// answers for answers to its own pings. Silence is counted in pings, so the time for which this
// process was stopped does not count.
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
	r.watches = r.watched(b[12:])
	w.mu.Lock()
	w.pending = append(w.pending, r)
	w.mu.Unlock()
	n, err := w.Conn.Write(b)
	if h := w.hello; h.rewatching != nil && r.kind == opSetWatches {
		h.rewatched.Do(func() { close(h.rewatching) })
	}
	return n, err
}

// watched returns the path of the node that a request sets a watch on, or "". After its number and
// kind, such a request has a path, which is its length in 4 bytes and its bytes, and a byte that
// says whether a watch is wanted.
func (r request) watched(b []byte) string {
	switch r.kind {
	case opExists, opGetData, opGetChildren2:
		if end := len(b) - 1; end > 4 && b[end] == 1 && int(binary.BigEndian.Uint32(b)) == end-4 {
			return string(b[4:end])
		}
	}
	return ""
}

// asks returns the client's first frame with the timeout that is wanted, because the client
// requests what it was last granted. The timeout follows the length and the protocol's version, in
// 4 bytes each, and a zxid in 8.
func (w *wire) asks(b []byte) []byte {
	const at = 16
	if len(b) < at+4 {
		return b
	}
	b = slices.Clone(b) // b belongs to the client
	binary.BigEndian.PutUint32(b[at:], uint32(w.s.timeout.Milliseconds()))
	return b
}

// unanswered returns the number of pings without an answer.
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

// answered removes and returns the request of that number. All pings share a number and are
// answered in order.
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

// holdBack waits until the client has asked for its watches again. The client asks for events since
// the last zxid that it saw, and go-zookeeper reads that zxid while replies change it. So an
// earlier reply would hide events, and is a data race. Answers to pings change nothing, and the
// client may wait for a reply behind them before it asks.
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

// reply learns from an answer: that the ensemble knows we live, that all watches are set again, or
// when a node was created.
func (w *wire) reply(b []byte) error {
	number := int32(binary.BigEndian.Uint32(b))
	if number != pingNumber && int64(binary.BigEndian.Uint64(b[4:])) > 0 {
		if err := w.holdBack(); err != nil {
			return err
		}
	}
	if number == eventNumber {
		w.event(b[header:])
		return nil
	}
	r, ok := w.answered(number)
	if !ok {
		return nil
	}
	if r.kind != opAuth { // answered without looking at the session
		w.s.heard(w.hello.session, r.at)
	}
	code := int32(binary.BigEndian.Uint32(b[12:]))
	if r.watches != "" {
		w.s.watches.client.set(r.kind, r.watches, code)
	}
	switch {
	case code == noAuth:
		w.s.denied()
	case code != 0: // any other error
	case r.kind == opCreate:
		w.created(binary.BigEndian.Uint64(b[4:]), b[header:])
	case r.kind == opSetWatches:
		w.watchesAgain(r)
	}
	return nil
}

// event learns which watches the client no longer has. An event is its type and a state in 4 bytes
// each, and a path.
func (w *wire) event(b []byte) {
	if len(b) >= 12 && int(binary.BigEndian.Uint32(b[8:])) == len(b)-12 {
		w.s.watches.client.fire(zk.EventType(int32(binary.BigEndian.Uint32(b))), string(b[12:]))
	}
}

// A birth is the creation of a claim's node.
type birth struct {
	zxid    uint64 // the node's czxid
	session int64  // the session of the node
}

// created stores the birth of a claim's node for its claim.
func (w *wire) created(zxid uint64, body []byte) {
	if len(body) < 4 || int(binary.BigEndian.Uint32(body)) != len(body)-4 {
		return
	}
	path := body[4:]
	if i := bytes.LastIndexByte(path, '/'); i >= 0 && bytes.HasPrefix(path[i+1:], []byte(protected)) {
		w.s.births.Store(string(path), birth{zxid: zxid, session: w.hello.session})
	}
}

// watchesAgain is called when the watches of request r are set again, and the client has received
// their earlier events. If there are many, the client requests the rest now.
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
