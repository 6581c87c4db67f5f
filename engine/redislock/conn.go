package redislock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
)

// A conn is a connection that many calls share. Those who call write: the first to come for all who
// have come since. One goroutine reads, and hands out the replies in the order of the calls. A
// call that is left by its caller keeps its place there, and its reply goes to nobody.
type conn struct {
	net      net.Conn
	replicas int         // that are asked for what was sent, together
	left     func(*conn) // is called when it is of no use for others
	ended    func()      // is called once

	mu      sync.Mutex
	err     error     // guarded by mu; why it has ended
	out     outbox    // guarded by mu
	sent    queue     // guarded by mu; without a reply, in order
	waits   waits     // guarded by mu
	room    chan bool // guarded by mu; closed when others may send; nil: they may
	silence silence   // guarded by mu
}

// An outbox is what has gathered to be written.
type outbox struct {
	buffer  []byte // goes with the next write
	spare   []byte // the buffer after that
	calls   int    // of sent, the last, which are in buffer
	writing bool   // somebody writes
}

// waits is what replicas are asked for.
type waits struct {
	told []*call // with a reply, which replicas must acknowledge
	asks bool    // a WAIT is on its way
}

// silence is for how long the server has not answered.
type silence struct {
	limit   time.Duration // that has others leave
	heard   time.Time     // when an answer last came, or was sent for with nothing before it
	came    time.Time     // when anything last came
	watch   *time.Timer   // has look called
	armed   bool          // watch will
	leaving bool          // others have left: it ends when nothing is on its way any more
}

const (
	// A caller writes by itself while this much is on its way, which any socket has room for:
	// so it never waits for a server that does not read.
	ownWrite = 16 << 10
	// maxSent is how many calls may be on their way, and maxBytes what they may have; others wait.
	// keptBuffer is how much of a buffer is kept for the next.
	maxSent, maxBytes, keptBuffer = 4096, 4 << 20, 64 << 10
)

var (
	errEnded   = errors.New("redislock: the connection has ended")
	errSilent  = errors.New("the server does not answer")
	errLeft    = errors.New("another connection is in use")
	errUnasked = fmt.Errorf("%w: an answer that nobody has asked for", errProtocol)
)

// live reports whether calls can be sent.
func (n *conn) live() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err == nil
}

// newConn shares a connection, which took so long to make.
func newConn(c net.Conn, took time.Duration, replicas int, left func(*conn), ended func()) *conn {
	n := &conn{net: c, replicas: replicas, left: left, ended: ended}
	n.silence.limit = min(max(leaveAfter, took), leaveFarAfter)
	n.silence.watch = time.AfterFunc(time.Hour, n.look)
	n.silence.watch.Stop()
	go n.read()
	return n
}

// send puts c on its way. errEnded: it was not, nor when ctx has ended before.
func (n *conn) send(ctx context.Context, c *call) error {
	n.mu.Lock()
	for n.err == nil && !n.silence.leaving && n.full() {
		if n.room == nil {
			n.room = make(chan bool)
		}
		room := n.room
		n.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
		n.mu.Lock()
	}
	if n.err != nil || n.full() {
		n.mu.Unlock()
		return errEnded
	}
	n.push(c)
	first := !n.out.writing && !n.waits.asks
	n.out.writing = n.out.writing || first
	n.mu.Unlock()
	if first {
		n.write()
	}
	return nil
}

// full reports whether others must wait. Requires n.mu.
func (n *conn) full() bool { return n.sent.len() >= maxSent || n.sent.size >= maxBytes }

// push appends c to what is to be written. Requires n.mu.
func (n *conn) push(c *call) {
	start := len(n.out.buffer)
	n.out.buffer = c.appendTo(n.out.buffer)
	if n.waiting() == 0 {
		n.silence.heard = time.Now()
	}
	if !n.silence.armed {
		n.silence.armed = true
		n.silence.watch.Reset(n.mayBeSilent())
	}
	if c.asking {
		n.sent.push(sent{})
		n.out.calls++
	}
	n.sent.push(sent{call: c, size: len(n.out.buffer) - start})
	n.out.calls++
}

// write writes what has gathered, once, if that cannot hold its caller up; what comes meanwhile is not
// its caller's business. Requires that n.out.writing was set for it.
func (n *conn) write() {
	n.mu.Lock()
	if n.mayWrite() && n.sent.size < ownWrite { // it may have ended, and its calls know that they have not left
		n.writeGathered()
	}
	more := n.mayWrite()
	n.out.writing = more
	n.mu.Unlock()
	if more {
		go n.writeAll()
	}
}

// writeAll writes until nothing has gathered.
func (n *conn) writeAll() {
	runtime.Gosched() // others may come
	n.mu.Lock()
	for n.mayWrite() {
		n.writeGathered()
	}
	n.out.writing = false
	n.mu.Unlock()
}

// mayWrite requires n.mu.
func (n *conn) mayWrite() bool { return n.err == nil && n.out.calls > 0 && !n.waits.asks }

// writeGathered requires n.mu, which it gives up meanwhile.
func (n *conn) writeGathered() {
	if n.replicas > 0 {
		n.waits.asks = true
		n.out.buffer = appendText(appendSize(n.out.buffer, '*', 3), "WAIT")
		n.out.buffer = appendNumber(appendNumber(n.out.buffer, int64(n.replicas)), replicaWait.Milliseconds())
		n.sent.push(sent{asks: true})
	}
	b := n.out.buffer
	n.out.buffer, n.out.spare, n.out.calls = n.out.spare[:0], nil, 0
	n.mu.Unlock()
	_, err := n.net.Write(b)
	if err != nil {
		n.end(err)
	}
	n.mu.Lock()
	if cap(b) <= keptBuffer {
		n.out.spare = b[:0]
	}
}

// read hands out replies until the connection ends.
func (n *conn) read() {
	from := bufio.NewReaderSize(noting{n}, 8<<10)
	for {
		r, err := readReply(from)
		if err == nil {
			err = n.took(r)
		}
		if err != nil {
			n.end(err)
			return
		}
	}
}

// noting is the connection as it is read.
type noting struct{ *conn }

// Read notes that something came.
func (n noting) Read(b []byte) (int, error) {
	some, err := n.net.Read(b)
	n.mu.Lock()
	n.silence.came = time.Now()
	n.mu.Unlock()
	return some, err
}

// took hands out one reply.
func (n *conn) took(r any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil || n.sent.len() <= n.out.calls {
		return errUnasked
	}
	s := n.sent.pop()
	n.silence.heard = n.silence.came
	if n.sent.len() < maxSent/2 && n.sent.size < maxBytes/2 {
		n.makeRoom()
	}
	switch c := s.call; {
	case s.asks:
		n.acknowledged(r)
	case c == nil: // to ASKING
	default:
		c.answer.reply = r
		if _, refused := r.(refusal); n.replicas > 0 && !refused {
			n.waits.told = append(n.waits.told, c)
		} else {
			c.done <- struct{}{}
		}
	}
	if n.silence.leaving && n.waiting() == 0 {
		return errLeft
	}
	return nil
}

// makeRoom has those who wait for room look again. Requires n.mu.
func (n *conn) makeRoom() {
	if n.room != nil {
		close(n.room)
		n.room = nil
	}
}

// waiting is how much is on its way. Requires n.mu.
func (n *conn) waiting() int { return n.sent.len() + len(n.waits.told) }

// acknowledged hands out what the replicas have. Requires n.mu.
func (n *conn) acknowledged(r any) {
	refused, _ := r.(error)
	for _, c := range n.waits.told {
		c.answer.acknowledged, c.err = int(number(r)), refused
		c.done <- struct{}{}
	}
	n.waits = waits{}
	if !n.out.writing && n.mayWrite() {
		n.out.writing = true
		go n.writeAll()
	}
}

// end closes the connection. What was sent has an unknown outcome, unless it never left.
func (n *conn) end(cause error) {
	n.mu.Lock()
	if n.err != nil {
		n.mu.Unlock()
		return
	}
	n.err = cause
	n.makeRoom()
	n.silence.watch.Stop()
	err := fmt.Errorf("redislock: the connection ended before the answer: %w", cause)
	for _, c := range n.waits.told {
		c.err = err
		c.done <- struct{}{}
	}
	for i, s := range n.sent.waiting() {
		if c := s.call; c != nil {
			c.err, c.unsent = err, i >= n.sent.len()-n.out.calls
			c.done <- struct{}{}
		}
	}
	n.waits.told, n.sent = nil, queue{}
	n.mu.Unlock()
	closeNow(n.net)
	n.left(n)
	n.ended()
}

// mayBeSilent is for how long the server may be. Requires n.mu.
func (n *conn) mayBeSilent() time.Duration {
	limit := n.silence.limit
	if n.silence.leaving {
		limit = endAfter
	}
	if n.replicas > 0 {
		limit += replicaWait
	}
	return limit
}

// silent is for how long it has been. To whom others have been left, a part of an answer will do.
// Requires n.mu.
func (n *conn) silent() time.Duration {
	if n.silence.leaving && n.silence.came.After(n.silence.heard) {
		return time.Since(n.silence.came)
	}
	return time.Since(n.silence.heard)
}

// look leaves a connection that has not answered for a while to those who wait there already, and ends
// one that is silent for too long.
func (n *conn) look() {
	n.mu.Lock()
	n.silence.armed = n.err == nil && n.waiting() > 0
	left := n.mayBeSilent() - n.silent()
	leave := n.silence.armed && left <= 0 && !n.silence.leaving
	end := n.silence.armed && left <= 0 && n.silence.leaving
	if leave {
		n.silence.leaving = true
		n.makeRoom()
		// If this process stood still, the answers may be here already.
		left = max(n.mayBeSilent()-n.silent(), leaveAfter)
	}
	if n.silence.armed && !end {
		n.silence.watch.Reset(left)
	}
	n.mu.Unlock()
	if leave {
		n.left(n)
	}
	if end {
		n.end(errSilent)
	}
}

// leave has others use another connection, and ends this one when nothing is on its way any more.
func (n *conn) leave() {
	n.mu.Lock()
	n.silence.leaving = true
	n.makeRoom()
	idle := n.waiting() == 0
	n.mu.Unlock()
	n.left(n)
	if idle {
		n.end(errLeft)
	}
}

// sent is what an answer is for.
type sent struct {
	call *call // nil: the answer is for nobody
	size int   // in bytes
	asks bool  // WAIT
}

// A queue is what has no answer yet, in the order it was sent.
type queue struct {
	all  []sent
	head int // of all, the first
	size int // in bytes
}

func (q *queue) len() int { return len(q.all) - q.head }

func (q *queue) push(s sent) {
	if q.head > len(q.all)/2 && len(q.all) == cap(q.all) {
		n := copy(q.all, q.all[q.head:])
		clear(q.all[n:])
		q.all, q.head = q.all[:n], 0
	}
	q.all = append(q.all, s)
	q.size += s.size
}

func (q *queue) pop() sent {
	s := q.all[q.head]
	q.all[q.head] = sent{}
	q.head++
	if q.head == len(q.all) {
		q.all, q.head = q.all[:0], 0
	}
	q.size -= s.size
	return s
}

// waiting is what has no answer.
func (q *queue) waiting() []sent { return q.all[q.head:] }
