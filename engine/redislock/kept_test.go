package redislock

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// onServer is a driver on a real server, connected, with its connection.
func onServer(t *testing.T, r *servers.Redis) (*Driver, *conn) {
	t.Helper()
	d, err := Open(&redis.Options{Addr: r.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	p, err := d.pipelines.of(t.Context(), "", false)
	if err != nil {
		t.Fatal(err)
	}
	n, err := p.connection(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d, n
}

// A caller writes for those who have come since only what any socket has room for: it must not be held up by
// a server that does not read.
func TestWhoWritesIsNotHeldUp(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, n := onServer(t, r)
	defer r.Pause()()
	n.mu.Lock()
	for range 1000 { // those who come before a flush
		n.push(d.pipelines.newCall(nil, "ECHO", strings.Repeat("x", 16<<10)))
	}
	n.mu.Unlock()
	wrote := make(chan bool)
	go func() {
		n.flush()
		close(wrote)
	}()
	select {
	case <-wrote:
	case <-time.After(endAfter - time.Second):
		t.Error("a caller is held up until the connection is given up")
	}
	n.end(errGone)
	<-wrote
}

// A process that was stopped takes the answers that have come meanwhile, before it gives up the connection.
func TestAnswersOfAPauseCount(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, n := onServer(t, r)
	resume := r.Pause()
	defer resume()
	answered := make(chan error, 1)
	c := d.pipelines.newCall(nil, "PING")
	if err := n.send(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	go func() {
		<-c.done
		answered <- c.err
	}()
	n.mu.Lock()
	n.silence.lastAnswer = n.silence.lastAnswer.Add(-time.Minute) // as if this process had stood still
	n.silence.lastRead = n.silence.lastAnswer
	n.mu.Unlock()
	n.checkSilence()
	resume()
	if err := <-answered; err != nil {
		t.Errorf("an answer that came is lost: %v", err)
	}
}

// An answer to what was not sent is none, and ends the connection. What was not sent may go on another.
func TestNoAnswerComesBeforeItsCall(t *testing.T) {
	t.Parallel()
	mine, theirs := net.Pipe()
	ended := make(chan bool)
	n := newConn(mine, 0, 0, func(*conn) {}, func() { close(ended) })
	c := new(pipelines).newCall(nil, "PING")
	n.mu.Lock()
	n.push(c)
	n.out.writing = true // nobody writes
	n.mu.Unlock()
	if _, err := theirs.Write([]byte("+PONG\r\n")); err != nil {
		t.Fatal(err)
	}
	<-c.done
	if !errors.Is(c.err, errUnasked) || !c.unsent {
		t.Errorf("%v, unsent: %v", c.err, c.unsent)
	}
	<-ended
}

// A call that waits for room on a connection that others have left takes another.
func TestNobodyWaitsForRoomOnALeftConnection(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, n := onServer(t, r)
	resume := r.Pause()
	defer resume()
	n.mu.Lock()
	for range maxSent {
		n.push(d.pipelines.newCall(nil, "PING"))
	}
	n.mu.Unlock()
	sent := make(chan error, 1)
	go func() { sent <- n.send(t.Context(), d.pipelines.newCall(nil, "PING")) }()
	select {
	case err := <-sent:
		if !errors.Is(err, errEnded) {
			t.Errorf("send: %v", err)
		}
	case <-time.After(endAfter - time.Second):
		t.Error("it waits until the connection is given up")
	}
	n.end(errGone)
}

// A connection takes no more than some megabytes of calls, however large each is.
func TestRoomIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, n := onServer(t, r)
	defer r.Pause()()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errGone)
	defer cancel()
	sent := 0
	for ; sent < maxSent; sent++ {
		if err := n.send(ctx, d.pipelines.newCall(nil, "ECHO", strings.Repeat("x", driver.MaxNote))); err != nil {
			break
		}
	}
	n.mu.Lock()
	held := cap(n.out.buffer) + cap(n.out.spare)
	n.mu.Unlock()
	if sent == maxSent {
		t.Errorf("%d calls of %d bytes are on their way, and %d bytes are held", sent, driver.MaxNote, held)
	}
	n.end(errGone)
}
