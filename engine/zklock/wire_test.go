package zklock

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
)

// frame is a body with its length before it, as the server sends it.
func frame(body ...any) []byte {
	var b []byte
	for _, v := range body {
		switch v := v.(type) {
		case string:
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
		case byte:
			b = append(b, v)
		case int32:
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		case int64:
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

var greeting = frame(int32(0), int32(3000), int64(77), "0123456789abcdef")

// testSession is a session on servers that do not exist.
func testSession(t *testing.T, timeout time.Duration) *session {
	t.Helper()
	d, err := New([]string{"h1", "h2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newSession(d, timeout, ttlOf(timeout))
}

// watching is a session that watches a node.
func watching(t *testing.T) *session {
	s := testSession(t, 3*time.Second)
	s.watches.client.set(opGetData, "/watched", 0)
	return s
}

// readFrame reads as go-zookeeper does: the length, then the body.
func readFrame(conn net.Conn) error {
	var length [4]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, binary.BigEndian.Uint32(length[:])))
	return err
}

// connected is a wire that has been greeted, and the server's end of it, of which all that
// is written is read.
func connected(t *testing.T, s *session) (w *wire, far net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	go io.Copy(io.Discard, far)
	w = newWire(near, s)
	write(t, w, frame(int32(0), int64(0), int32(3000), int64(0)))
	go far.Write(greeting)
	if err := readFrame(w); err != nil {
		t.Fatal(err)
	}
	return w, far
}

func write(t *testing.T, w *wire, b []byte) {
	t.Helper()
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
}

func TestWireReadsAlong(t *testing.T) {
	t.Parallel()
	s := testSession(t, 3*time.Second)
	w, far := connected(t, s)
	const path = "/leasehold/a/_c_0123-lock-0000000001"
	const another = "/leasehold/_c_0123-lock-0000000002" // of a resource, by its name
	for i, kind := range []int32{opCreate, 9, opCreate} {
		write(t, w, frame(int32(i+1), kind))
	}
	go func() {
		for _, c := range []byte(string(frame(int32(1), int64(4711), int32(0), path))) { // however it arrives
			far.Write([]byte{c})
		}
		far.Write(frame(int32(2), int64(4712), int32(0), another))                 // a sync
		far.Write(frame(int32(3), int64(4713), int32(-101)))                       // an error
		far.Write(frame(int32(-1), int64(-1), int32(0), int32(2), int32(3), path)) // an event
		far.Close()
	}()
	for {
		if err := readFrame(w); err != nil {
			break
		}
	}
	if got := s.life.id; got != 77 {
		t.Errorf("session %d, want 77", got)
	}
	if b, ok := birthAt(s, path); !ok || b != (birth{zxid: 4711, session: 77}) {
		t.Errorf("birth %+v, %v", b, ok)
	}
	if b, ok := birthAt(s, another); ok {
		t.Errorf("birth of what was not created: %+v", b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > 0 {
		t.Errorf("still to be answered: %+v", w.pending)
	}
}

// Whatever a server that is not ZooKeeper writes, the client neither makes room for it nor fails on it.
func TestWireRefusesOtherProtocols(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"HTTP":                     "HTTP/1.1 400 Bad Request\r\n\r\n",
		"short greeting":           string(frame(int32(0), int32(3000))),
		"greeting without timeout": string(frame(int32(0), int32(0), int64(77), "0123456789abcdef")),
	} {
		near, far := net.Pipe()
		s := testSession(t, 3*time.Second)
		go far.Write([]byte(answer))
		w := newWire(near, s)
		var length [4]byte
		_, err := io.ReadFull(w, length[:])
		if n := binary.BigEndian.Uint32(length[:]); err == nil && n <= maxGreeting {
			_, err = io.ReadFull(w, make([]byte, n))
		}
		if !errors.Is(err, errForeign) || s.conn.failed != 1 {
			t.Errorf("%s: %v, %d failed attempts; want one, for the protocol", name, err, s.conn.failed)
		}
		far.Close()
	}
	w, far := connected(t, testSession(t, 3*time.Second))
	go far.Write(frame(int32(-1), int64(-1)))
	if err := readFrame(w); !errors.Is(err, errForeign) {
		t.Errorf("a body without a whole header: %v", err)
	}
}

func TestWireRefusesAnotherTimeout(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	s := testSession(t, time.Second)
	go far.Write(greeting)
	if err := readFrame(newWire(near, s)); err != nil {
		t.Fatal(err)
	}
	if s.conn.state != refused || !errors.Is(s.conn.cause, ErrSessionTimeout) || !strings.Contains(s.conn.cause.Error(), "3s") {
		t.Errorf("state %v, %v", s.conn.state, s.conn.cause)
	}
}

// Servers that hang cost a third of the session between them until each was tried, then each a third, and when all
// have failed calls do.
func TestWireBoundsTheGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSession(t, 3*time.Second)
		for i, bound := range []time.Duration{500 * time.Millisecond, 500 * time.Millisecond, time.Second} {
			near, far := net.Pipe()
			start := time.Now()
			w := newWire(near, s)
			if err := w.SetReadDeadline(time.Time{}); err != nil { // as go-zookeeper does
				t.Fatal(err)
			}
			if err := readFrame(w); err == nil {
				t.Fatal("a greeting from nobody")
			}
			if took := time.Since(start); took != bound {
				t.Errorf("gave up after %v, want %v", took, bound)
			}
			if failed := s.conn.state == down; failed != (i >= 1) {
				t.Errorf("state %v after %d failures", s.conn.state, i+1)
			}
			far.Close()
		}
		if !errors.Is(s.conn.cause, ErrNoQuorum) {
			t.Errorf("cause: %v", s.conn.cause)
		}
	})
}

// Replies wait until the client has asked for its watches again, and calls until they are
// there.
func TestWireHoldsRepliesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watching(t)
		w, far := connected(t, s)
		s.begin()
		go func() {
			far.Write(frame(int32(1), int64(0), int32(0)))  // of the user's introduction
			far.Write(frame(int32(2), int64(12), int32(0))) // of a request
			far.Write(frame(int32(4), int64(12), int32(0))) // of the watches
		}()
		if err := readFrame(w); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		const late = 500 * time.Millisecond
		go func() {
			time.Sleep(late)
			w.Write(frame(int32(3), int32(1)))
			w.Write(frame(int32(4), int32(opSetWatches)))
		}()
		if err := readFrame(w); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != late {
			t.Errorf("a reply came through after %v", took)
		}
		if s.conn.state == up {
			t.Error("calls are let through before the watches are there")
		}
		if err := readFrame(w); err != nil {
			t.Fatal(err)
		}
		if s.conn.state != up {
			t.Errorf("state %v with all watches", s.conn.state)
		}
	})
}

// The answer to a ping is not held back: one that the client waits for may be behind it.
func TestWireLetsPingsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watching(t)
		w, far := connected(t, s)
		go func() {
			far.Write(frame(int32(pingNumber), int64(12), int32(0)))
			far.Write(frame(int32(1), int64(0), int32(0))) // of the user's introduction
		}()
		start := time.Now()
		for range 2 {
			if err := readFrame(w); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("held back for %v", took)
		}
	})
}

// A connection on which the client does not ask for them is given up.
func TestWireWithoutItsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, far := connected(t, watching(t))
		go far.Write(frame(int32(2), int64(12), int32(0)))
		if err := readFrame(w); !errors.Is(err, errNoWatches) {
			t.Errorf("%v, want errNoWatches", err)
		}
	})
}

// Replies are held back on the next connection if the client sets watches again, also those that no claim waits for
// any more, and only then: it would not ask for them.
func TestWireKnowsTheClientsWatches(t *testing.T) {
	t.Parallel()
	const path, yes, no = "/a", byte(1), byte(0)
	event := func(kind int32) []byte { return frame(int32(-1), int64(-1), int32(0), kind, int32(3), path) }
	answer := func(code int32) []byte { return frame(int32(1), int64(12), code) }
	for name, c := range map[string]struct {
		kind  int32
		watch byte
		then  [][]byte
		want  bool
	}{
		"no watch":            {opGetData, no, [][]byte{answer(0)}, false},
		"no answer":           {opGetData, yes, nil, false},
		"data":                {opGetData, yes, [][]byte{answer(0)}, true},
		"no node":             {opGetData, yes, [][]byte{answer(noNode)}, false},
		"data changed":        {opGetData, yes, [][]byte{answer(0), event(3)}, false},
		"data, children":      {opGetData, yes, [][]byte{answer(0), event(4)}, true},
		"deleted":             {opGetData, yes, [][]byte{answer(0), event(2)}, false},
		"to come":             {opExists, yes, [][]byte{answer(noNode)}, true},
		"refused":             {opExists, yes, [][]byte{answer(noAuth)}, false},
		"come":                {opExists, yes, [][]byte{answer(noNode), event(1)}, false},
		"there":               {opExists, yes, [][]byte{answer(0)}, true},
		"there, changed":      {opExists, yes, [][]byte{answer(0), event(3)}, false},
		"children":            {opGetChildren2, yes, [][]byte{answer(0)}, true},
		"children, data":      {opGetChildren2, yes, [][]byte{answer(0), event(3)}, true},
		"children changed":    {opGetChildren2, yes, [][]byte{answer(0), event(4)}, false},
		"children, deleted":   {opGetChildren2, yes, [][]byte{answer(0), event(2)}, false},
		"another kind (sync)": {9, yes, [][]byte{answer(0)}, false},
	} {
		s := testSession(t, 3*time.Second)
		w, far := connected(t, s)
		write(t, w, frame(int32(1), c.kind, path, c.watch))
		for _, b := range c.then {
			go far.Write(b)
			if err := readFrame(w); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if next, _ := connected(t, s); (next.hello.rewatching != nil) != c.want {
			t.Errorf("%s: held back: %v, want %v", name, !c.want, c.want)
		}
		s.event(zk.Event{Type: zk.EventSession, State: zk.StateExpired})
		if next, _ := connected(t, s); next.hello.rewatching != nil {
			t.Errorf("%s: held back for the watches of a session that has expired", name)
		}
	}
}

// Requests for watches that do not fit into one follow each other.
func TestWireAwaitsAllWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watching(t)
		w, far := connected(t, s)
		s.begin()
		for i, paths := range []string{strings.Repeat("x", fullWatches), strings.Repeat("x", fullWatches), "x"} {
			if s.conn.state == up {
				t.Errorf("calls are let through after %d of 3", i)
			}
			write(t, w, frame(int32(i+1), int32(opSetWatches), paths))
			go far.Write(frame(int32(i+1), int64(12), int32(0)))
			if err := readFrame(w); err != nil {
				t.Fatal(err)
			}
			time.Sleep(nextWatchesWithin / 2)
		}
		if s.conn.state != up {
			t.Errorf("state %v with all watches", s.conn.state)
		}
	})
}

func TestHostsInTurn(t *testing.T) {
	t.Parallel()
	h := &hosts{}
	if err := h.Init([]string{"a", "b", "c"}); err != nil {
		t.Fatal(err)
	}
	// The first round begins at once, each later one after a pause.
	want := []string{"a", "b", "c", "a!", "b", "c", "a!"}
	for i, w := range want {
		server, pause := h.Next()
		if pause {
			server += "!"
		}
		if server != w {
			t.Errorf("attempt %d: %s, want %s", i, server, w)
		}
	}
	h.Connected()
	if server, pause := h.Next(); server != "b" || pause {
		t.Errorf("after a success: %s, %v", server, pause)
	}
}

func birthAt(s *session, path string) (b birth, ok bool) {
	v, ok := s.births.LoadAndDelete(path)
	if ok {
		b = v.(birth)
	}
	return b, ok
}

// A server that accepts connections and is silent does not cost a share of a long session.
func TestGreetingIsShortUntilEachServerWasTried(t *testing.T) {
	t.Parallel()
	s := testSession(t, time.Hour)
	for range s.d.servers {
		if bound := s.greetBound(); bound > silent {
			t.Errorf("server %d has %v for its greeting, want at most %v", s.conn.failed+1, bound, silent)
		}
		s.failedTo(io.EOF)
	}
	if bound := s.greetBound(); bound != s.timeout/3 {
		t.Errorf("a server has %v for its greeting after all have failed, want %v", bound, s.timeout/3)
	}
}
