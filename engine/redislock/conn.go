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

// A conn is a connection that many calls share. Their callers write: the first one writes for all
// that have called since. One goroutine reads, and delivers the replies in the order of the calls.
// A call that its caller has abandoned keeps its position, and its reply is dropped.
type conn struct {
	net      net.Conn
	replicas int         // number of replicas to wait for after each write
	left     func(*conn) // called when others should use another connection
	ended    func()      // called once

	mu      sync.Mutex
	err     error     // guarded by mu; why the connection has ended
	out     outbox    // guarded by mu
	sent    queue     // guarded by mu; calls without a reply, in order
	waits   waits     // guarded by mu
	room    chan bool // guarded by mu; closed when there is room to send; nil: nobody waits
	silence silence   // guarded by mu
}

// An outbox is the output that is not written yet.
type outbox struct {
	buffer  []byte // goes out with the next write
	spare   []byte // the buffer after the next write
	calls   int    // how many of the last calls in sent are in buffer
	writing bool   // a goroutine writes
}

// waits are calls that wait for replicas.
type waits struct {
	answered []*call // calls with a reply that replicas must acknowledge
	asks     bool    // a WAIT is in flight
}

// silence measures how long the server has not answered.
type silence struct {
	limit      time.Duration // the longest silence before others use another connection
	lastAnswer time.Time     // when the last answer came, or the first unanswered call was sent
	lastRead   time.Time     // when the last bytes came
	watch      *time.Timer   // calls checkSilence
	armed      bool          // whether watch is running
	leaving    bool          // others use another connection; this one ends when nothing is in flight
}

const (
	// A caller writes itself while less than this is in flight. Any socket buffers that much, so
	// the caller never blocks on a server that does not read.
	ownWrite = 16 << 10
	// maxSent and maxBytes limit the calls in flight and their bytes; further calls wait.
	// keptBuffer is the largest buffer that is reused.
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

// newConn shares the connection c. took is how long it took to connect.
func newConn(c net.Conn, took time.Duration, replicas int, left func(*conn), ended func()) *conn {
	n := &conn{net: c, replicas: replicas, left: left, ended: ended}
	n.silence.limit = min(max(leaveAfter, took), leaveFarAfter)
	n.silence.watch = time.AfterFunc(time.Hour, n.checkSilence)
	n.silence.watch.Stop()
	go n.read()
	return n
}

// send queues c for writing. If it returns errEnded or the context's error, c was not sent.
func (n *conn) send(ctx context.Context, c *call) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.err == nil && !n.silence.leaving && n.full() {
		if n.room == nil {
			n.room = make(chan bool)
		}
		room := n.room
		n.mu.Unlock()
		select {
		case <-room:
			n.mu.Lock()
		case <-ctx.Done():
			n.mu.Lock()
			return ctx.Err()
		}
	}
	if n.err != nil || n.silence.leaving {
		return errEnded
	}
	n.push(c)
	n.write()
	return nil
}

// hold queues c for the next write, which send or flush makes. It returns false, and does not queue
// c, if c would have to wait for room.
func (n *conn) hold(c *call) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil || n.silence.leaving || n.sent.size >= ownWrite {
		return false
	}
	n.push(c)
	return true
}

// flush writes the output, unless another goroutine does.
func (n *conn) flush() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.write()
}

// full reports whether further calls must wait. Requires n.mu.
func (n *conn) full() bool { return n.sent.len() >= maxSent || n.sent.size >= maxBytes }

// push appends c to the output. Requires n.mu.
func (n *conn) push(c *call) {
	start := len(n.out.buffer)
	n.out.buffer = c.appendTo(n.out.buffer)
	if n.waiting() == 0 {
		n.silence.lastAnswer = time.Now()
	}
	if !n.silence.armed {
		n.silence.armed = true
		n.silence.watch.Reset(n.silenceLimit())
	}
	if c.asking {
		n.sent.push(sent{})
		n.out.calls++
	}
	n.sent.push(sent{call: c, size: len(n.out.buffer) - start})
	n.out.calls++
}

// write writes the output once, if nobody else writes and that cannot block. It leaves later output
// to another goroutine. It requires n.mu, which it releases during the write.
func (n *conn) write() {
	if n.out.writing || !n.mayWrite() {
		return
	}
	n.out.writing = true
	if n.sent.size < ownWrite {
		n.writeGathered()
	}
	n.out.writing = n.mayWrite()
	if n.out.writing {
		go n.writeAll()
	}
}

// writeAll writes until there is no output.
func (n *conn) writeAll() {
	runtime.Gosched() // let others add to the output
	n.mu.Lock()
	for n.mayWrite() {
		n.writeGathered()
	}
	n.out.writing = false
	n.mu.Unlock()
}

// mayWrite reports whether output may be written now. Requires n.mu.
func (n *conn) mayWrite() bool { return n.err == nil && n.out.calls > 0 && !n.waits.asks }

// writeGathered writes the output. It requires n.mu, which it releases during the write.
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

// read delivers replies until the connection ends.
func (n *conn) read() {
	from := bufio.NewReaderSize(noting{n}, maxLine)
	for {
		r, err := readReply(from)
		if err == nil {
			err = n.handle(r)
		}
		if err != nil {
			n.end(err)
			return
		}
	}
}

// noting reads from the connection and records the time.
type noting struct{ *conn }

// Read implements io.Reader.
func (n noting) Read(b []byte) (int, error) {
	some, err := n.net.Read(b)
	n.mu.Lock()
	n.silence.lastRead = time.Now()
	n.mu.Unlock()
	return some, err
}

// handle delivers one reply.
func (n *conn) handle(r any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil || n.sent.len() <= n.out.calls {
		return errUnasked
	}
	s := n.sent.pop()
	n.silence.lastAnswer = n.silence.lastRead
	if n.sent.len() < maxSent/2 && n.sent.size < maxBytes/2 {
		n.wakeSenders()
	}
	switch c := s.call; {
	case s.asks:
		n.acknowledged(r)
	case c == nil: // the reply to ASKING
	default:
		c.answer.reply = r
		if _, refused := r.(refusal); n.replicas > 0 && !refused {
			n.waits.answered = append(n.waits.answered, c)
		} else {
			c.done <- struct{}{}
		}
	}
	if n.silence.leaving && n.waiting() == 0 {
		return errLeft
	}
	return nil
}

// wakeSenders wakes the calls that wait for room. Requires n.mu.
func (n *conn) wakeSenders() {
	if n.room != nil {
		close(n.room)
		n.room = nil
	}
}

// waiting returns the number of calls in flight. Requires n.mu.
func (n *conn) waiting() int { return n.sent.len() + len(n.waits.answered) }

// acknowledged delivers the replies that replicas have acknowledged. Requires n.mu.
func (n *conn) acknowledged(r any) {
	refused, _ := r.(error)
	for _, c := range n.waits.answered {
		c.answer.acknowledged, c.err = int(number(r)), refused
		c.done <- struct{}{}
	}
	n.waits = waits{}
	if !n.out.writing && n.mayWrite() {
		n.out.writing = true
		go n.writeAll()
	}
}

// end closes the connection. The outcome of calls in flight is unknown, except for those that
// were not written.
func (n *conn) end(cause error) {
	n.mu.Lock()
	if n.err != nil {
		n.mu.Unlock()
		return
	}
	n.err = cause
	n.wakeSenders()
	n.silence.watch.Stop()
	err := fmt.Errorf("redislock: the connection ended before the answer: %w", cause)
	for _, c := range n.waits.answered {
		c.err = err
		c.done <- struct{}{}
	}
	for i, s := range n.sent.waiting() {
		if c := s.call; c != nil {
			c.err, c.unsent = err, i >= n.sent.len()-n.out.calls
			c.done <- struct{}{}
		}
	}
	n.waits.answered, n.sent = nil, queue{}
	n.mu.Unlock()
	closeNow(n.net)
	n.left(n)
	n.ended()
}

// silenceLimit returns how long the server may be silent. Requires n.mu.
func (n *conn) silenceLimit() time.Duration {
	limit := n.silence.limit
	if n.silence.leaving {
		limit = endAfter
	}
	if n.replicas > 0 {
		limit += replicaWait
	}
	return limit
}

// silentFor returns how long the server has been silent. Once others have left, a part of an
// answer counts as an answer. Requires n.mu.
func (n *conn) silentFor() time.Duration {
	if n.silence.leaving && n.silence.lastRead.After(n.silence.lastAnswer) {
		return time.Since(n.silence.lastRead)
	}
	return time.Since(n.silence.lastAnswer)
}

// checkSilence reserves a silent connection for the calls in flight, and ends one that is silent
// for too long.
func (n *conn) checkSilence() {
	n.mu.Lock()
	n.silence.armed = n.err == nil && n.waiting() > 0
	left := n.silenceLimit() - n.silentFor()
	leave := n.silence.armed && left <= 0 && !n.silence.leaving
	end := n.silence.armed && left <= 0 && n.silence.leaving
	if leave {
		n.silence.leaving = true
		n.wakeSenders()
		// If this process was stopped, the answers may be here already.
		left = max(n.silenceLimit()-n.silentFor(), leaveAfter)
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

// leave makes others use another connection, and ends this one when nothing is in flight.
func (n *conn) leave() {
	n.mu.Lock()
	n.silence.leaving = true
	n.wakeSenders()
	idle := n.waiting() == 0
	n.mu.Unlock()
	n.left(n)
	if idle {
		n.end(errLeft)
	}
}

// A sent is a call or command whose answer is expected.
type sent struct {
	call *call // nil: the answer is dropped
	size int   // in bytes
	asks bool  // WAIT
}

// A queue holds what has no answer yet, in the order of sending.
type queue struct {
	all  []sent
	head int // index of the first in all
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

// waiting returns what has no answer.
func (q *queue) waiting() []sent { return q.all[q.head:] }
