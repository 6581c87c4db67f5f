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
)

// frame is a body with its length before it, as the server sends it.
func frame(body ...any) []byte {
	var b []byte
	for _, v := range body {
		switch v := v.(type) {
		case string:
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
		case int32:
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		case int64:
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

var greeting = frame(int32(0), int32(3000), int64(77), "0123456789abcdef")

// newLink is a link on servers that do not exist.
func newLink(t *testing.T, watching bool) *link {
	t.Helper()
	d, err := New([]string{"h1", "h2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.link.timeout = 3 * time.Second
	d.link.watching = func() bool { return watching }
	return d.link
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
func connected(t *testing.T, l *link) (w *wire, far net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	go io.Copy(io.Discard, far)
	w = newWire(near, l)
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
	l := newLink(t, false)
	w, far := connected(t, l)
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
	if got := l.current(); got != 77 {
		t.Errorf("session %d, want 77", got)
	}
	if b, ok := l.birth(path); !ok || b != (birth{zxid: 4711, session: 77}) {
		t.Errorf("birth %+v, %v", b, ok)
	}
	if b, ok := l.birth(another); ok {
		t.Errorf("birth of what was not created: %+v", b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > 0 {
		t.Errorf("still to be answered: %+v", w.pending)
	}
}

// What is to be asked behind a creation is asked once that is on its way, and once.
func TestWireAsksBehindACreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const path = "/leasehold/a/_c_0123-lock-"
		l := newLink(t, false)
		w, far := connected(t, l)
		var asked int
		l.behind.Store(path, func() { asked++ })
		for i, c := range []struct {
			kind int32
			path string
			want int
		}{{opCreate, "/leasehold/b", 0}, {9, path, 0}, {opCreate, path, 1}, {opCreate, path, 1}} {
			write(t, w, frame(int32(i+1), c.kind, c.path, int32(-1)))
			synctest.Wait()
			if asked != c.want {
				t.Errorf("asked %d times after request %d, want %d", asked, i+1, c.want)
			}
		}
		far.Close()
		w.Close()
	})
}

func TestWireRefusesAnotherTimeout(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	l := newLink(t, false)
	l.timeout = time.Second
	go far.Write(greeting)
	if err := readFrame(newWire(near, l)); err != nil {
		t.Fatal(err)
	}
	if l.state != refused || !errors.Is(l.cause, ErrSessionTimeout) || !strings.Contains(l.cause.Error(), "3s") {
		t.Errorf("state %v, %v", l.state, l.cause)
	}
}

// A server that hangs costs a third of the session, and when all have failed calls do.
func TestWireBoundsTheGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, false)
		for i := range 2 {
			near, far := net.Pipe()
			start := time.Now()
			w := newWire(near, l)
			if err := w.SetReadDeadline(time.Time{}); err != nil { // as go-zookeeper does
				t.Fatal(err)
			}
			if err := readFrame(w); err == nil {
				t.Fatal("a greeting from nobody")
			}
			if took := time.Since(start); took != time.Second {
				t.Errorf("gave up after %v", took)
			}
			if failed := l.state == down; failed != (i == 1) {
				t.Errorf("state %v after %d failures", l.state, i+1)
			}
			far.Close()
		}
		if !errors.Is(l.cause, ErrNoQuorum) {
			t.Errorf("cause: %v", l.cause)
		}
	})
}

// Replies wait until the client has asked for its watches again, and calls until they are
// there.
func TestWireHoldsRepliesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, true)
		w, far := connected(t, l)
		l.begin()
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
		if l.state == up {
			t.Error("calls are let through before the watches are there")
		}
		if err := readFrame(w); err != nil {
			t.Fatal(err)
		}
		if l.state != up {
			t.Errorf("state %v with all watches", l.state)
		}
	})
}

// The answer to a ping is not held back: one that the client waits for may be behind it.
func TestWireLetsPingsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, true)
		w, far := connected(t, l)
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
		w, far := connected(t, newLink(t, true))
		go far.Write(frame(int32(2), int64(12), int32(0)))
		if err := readFrame(w); !errors.Is(err, errNoWatches) {
			t.Errorf("%v, want errNoWatches", err)
		}
	})
}

// Requests for watches that do not fit into one follow each other.
func TestWireAwaitsAllWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, true)
		w, far := connected(t, l)
		l.begin()
		for i, paths := range []string{strings.Repeat("x", fullWatches), strings.Repeat("x", fullWatches), "x"} {
			if l.state == up {
				t.Errorf("calls are let through after %d of 3", i)
			}
			write(t, w, frame(int32(i+1), int32(opSetWatches), paths))
			go far.Write(frame(int32(i+1), int64(12), int32(0)))
			if err := readFrame(w); err != nil {
				t.Fatal(err)
			}
			time.Sleep(nextWatchesWithin / 2)
		}
		if l.state != up {
			t.Errorf("state %v with all watches", l.state)
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
