package zklock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// The ensemble is asked for the timeout that is wanted, whatever the client was granted last.
func TestWireAsksForTheWantedTimeout(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	asked := make(chan uint32, 1)
	go func() {
		b := make([]byte, 64)
		far.Read(b)
		asked <- binary.BigEndian.Uint32(b[16:])
	}()
	b := frame(int32(0), int64(12), int32(400), int64(77))
	write(t, newWire(near, testSession(t, 3*time.Second)), b)
	if got := <-asked; got != 3000 {
		t.Errorf("asked for %d ms, want 3000", got)
	}
	if got := binary.BigEndian.Uint32(b[16:]); got != 400 {
		t.Errorf("the client's own frame now asks for %d ms", got)
	}
}

// A connection on which the ensemble grants another timeout ends by itself, so that the
// client connects again; until the answer to that calls are refused. However short the session that was asked for, such a
// connection is not pinged.
func TestWireRefusedAsksAgain(t *testing.T) {
	for _, timeout := range []time.Duration{2 * time.Millisecond, 20 * time.Second} { // of the second no part is over before
		synctest.Test(t, func(t *testing.T) {
			s := testSession(t, timeout)
			near, far := net.Pipe()
			w := newWire(near, s)
			go far.Write(greeting)
			start := time.Now()
			if err := readFrame(w); err != nil {
				t.Fatal(err)
			}
			var pings atomic.Int64
			go func() {
				for ping := make([]byte, len(pingFrame)); ; pings.Add(1) {
					if _, err := io.ReadFull(far, ping); err != nil {
						return
					}
					_, _ = far.Write(frame(int32(pingNumber), int64(1), int32(0)))
				}
			}()
			time.AfterFunc(time.Minute, func() { far.Close() })
			var err error
			for err == nil {
				err = readFrame(w)
			}
			if time.Since(start) != askAgainAfter || pings.Load() > 0 {
				t.Errorf("it ended after %v and %d pings, want %v and none", time.Since(start), pings.Load(), askAgainAfter)
			}
			if !errors.Is(s.refusal(), ErrSessionTimeout) {
				t.Errorf("then calls get %v", s.refusal())
			}
			s.greeted(s.timeout, 77, boottime.Now(), false)
			s.begin()
			if s.conn.state != up {
				t.Errorf("state %v when it grants what was asked for", s.conn.state)
			}
		})
	}
}

// Leases end when the ensemble goes on with their session for a shorter time than they count
// on, and not when that is longer, nor when the session is another.
func TestOnlyAShorterSessionEndsItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			what    string
			timeout time.Duration
			session int64
			want    int
		}{
			{"shorter", time.Second, 77, 1}, {"longer", 4 * time.Second, 77, 0},
			{"the same", 3 * time.Second, 77, 0}, {"another session", time.Second, 78, 0},
		} {
			s := testSession(t, 3*time.Second)
			told := make(chan error, 1)
			holder := newClaim(s, driver.Request{TTL: s.ttl, Lost: func(cause error) { told <- cause }})
			holder.become(&held{expires: boottime.Now().Add(time.Minute)})
			s.keep(holder)
			s.greeted(s.timeout, 77, boottime.Now(), false)
			s.begin()
			s.prove(77, boottime.Now())
			s.greeted(c.timeout, c.session, boottime.Now(), false)
			synctest.Wait()
			if len(told) != c.want {
				t.Errorf("%s: told %d times, want %d", c.what, len(told), c.want)
			}
			if c.want == 1 && s.proof().lasts != 0 {
				t.Errorf("%s: leases may still count on %v", c.what, s.proof().lasts)
			}
			holder.become(idle{})
		}
	})
}

// No lease is granted on what was known before the ensemble shortened the session.
func TestNoGrantOnceRefused(t *testing.T) {
	t.Parallel()
	c, w := nextInQueue(t)
	lasts := c.s.proof().lasts
	c.s.greeted(time.Second, 77, boottime.Now(), false)
	if g, err := c.granted(w.asked, lasts, nil, 0); !errors.Is(err, ErrSessionTimeout) {
		t.Errorf("granted %+v, %v; want ErrSessionTimeout", g, err)
	}
}

// A server that answers no pings is left in time, one that has not answered while this process stood still is not.
func TestSilentServerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSession(t, DefaultSessionTimeout)
		near, far := net.Pipe()
		go io.Copy(io.Discard, far) // the pings
		w := newWire(near, s)
		w.hello = &hello{}
		w.pending = []request{{kind: opCreate, at: boottime.Now().Add(-s.timeout)}} // whose answer has not been read yet
		start := time.Now()
		w.ping()
		select {
		case <-w.closed:
		case <-time.After(s.timeout):
			w.Close()
		}
		if took := time.Since(start); took < silent || took > silent+s.timeout/8 {
			t.Errorf("left after %v, want %v or a little more", took, silent)
		}
	})
}

// A server without a quorum that only lets read says so, and has done nothing.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("unknown error: %v", zk.ErrCode(-119)) // as go-zookeeper says of a code that it has no name for
	if !errors.Is(explain(err), driver.ErrReadOnly) || !answered(explain(err)) {
		t.Errorf("%v: %v", err, explain(err))
	}
	if err := explain(fmt.Errorf("unknown error: %v", zk.ErrCode(-1190))); errors.Is(err, driver.ErrReadOnly) {
		t.Error(err)
	}
}
