package zklock

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
)

// A doorman is a server that knows no node and refuses to change any. It notes how users introduce
// themselves, by connection.
type doorman struct {
	mu      sync.Mutex
	heard   [][]string // guarded by mu
	conn    net.Conn   // guarded by mu; the last one
	hangsUp bool       // guarded by mu; at the next introduction
}

func (d *doorman) dial(string, string, time.Duration) (net.Conn, error) {
	near, far := net.Pipe()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard, d.conn = append(d.heard, nil), far
	go d.serve(far, len(d.heard)-1)
	return near, nil
}

// on returns the passwords that were told on the nth connection.
func (d *doorman) on(n int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n >= len(d.heard) {
		return nil
	}
	return slices.Clone(d.heard[n])
}

// hangUp ends the last connection.
func (d *doorman) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn.Close()
}

func (d *doorman) serve(conn net.Conn, number int) {
	defer conn.Close()
	if _, err := readRequest(conn); err != nil {
		return
	}
	conn.Write(greeting)
	for {
		b, err := readRequest(conn)
		if err != nil {
			return
		}
		id, code := int32(binary.BigEndian.Uint32(b)), int32(0)
		switch kind := int32(binary.BigEndian.Uint32(b[4:])); kind {
		case opAuth:
			const before = 4 + 4 + 4 + 4 + len("digest") + 4
			if !d.hears(number, string(b[before:])) {
				return
			}
		case 2: // delete
			code = noAuth
		case 3: // exists
			code = -101
		}
		conn.Write(frame(id, int64(0), code))
	}
}

// hears notes an introduction, unless it hangs up.
func (d *doorman) hears(number int, who string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hangsUp {
		d.hangsUp = false
		return false
	}
	d.heard[number] = append(d.heard[number], who)
	return true
}

// readRequest reads a frame.
func readRequest(conn net.Conn) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(conn, b)
	return b, err
}

// The ensemble is told a changed password, though the new connection has watches to set again, and though an earlier
// attempt to tell it failed.
func TestChangedPasswordIsToldBesideWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var door doorman
		var password atomic.Value
		password.Store("first")
		d, err := New([]string{"h"}, &Options{User: "u", Password: "first", Dial: door.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.password = func() string { return password.Load().(string) }
		s := newSession(d, 3*time.Second, 2*time.Second)
		defer s.close()
		ready := func() *zk.Conn {
			t.Helper()
			client, err := s.ready(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return client
		}
		if _, err := s.watches.exists(ready(), "/watched", &alarm{ring: func(bool) {}}); err != nil {
			t.Fatal(err)
		}

		password.Store("second")
		door.hangUp()
		synctest.Wait()
		ready()
		if got, want := door.on(1), []string{"u:first", "u:second"}; !slices.Equal(got, want) {
			t.Errorf("calls are let through when the second connection was told %q, want %q", got, want)
		}

		password.Store("third")
		door.mu.Lock()
		door.hangsUp = true
		door.mu.Unlock()
		_ = ready().Delete("/n", 0) // refused, so the password is told, and the server hangs up
		synctest.Wait()
		for range 3 {
			_ = ready().Delete("/n", 0) // refused
		}
		synctest.Wait()
		if got := door.on(2); len(got) == 0 || got[len(got)-1] != "u:third" {
			t.Errorf("the third connection was told %q, not u:third", got)
		}

		s.mu.Lock()
		s.conn.known = false // as after an introduction that failed late
		s.mu.Unlock()
		before := len(door.on(2))
		s.denied()
		s.denied()
		synctest.Wait()
		if got := door.on(2)[before:]; len(got) != 1 {
			t.Errorf("two refused calls tell %q, want the password once", got)
		}
	})
}
