package memcached

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A late holds single commands back, as a link does that lost a packet: the server gets
// them when their sender has closed the connection long since. Or it holds an answer.
type late struct {
	mu    sync.Mutex
	verb  string        // guarded by mu; the next command that begins so is held back
	reply bool          // guarded by mu; not the command but its answer
	hold  chan struct{} // guarded by mu; until this is closed
	sent  chan struct{} // told when it was held back
}

func (l *late) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &lateConn{Conn: conn, late: l}, nil
}

// next holds back the next command of that verb, or the answer to it, until letGo is called.
func (l *late) next(verb string, reply bool) (letGo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hold := make(chan struct{})
	l.verb, l.reply, l.hold = verb, reply, hold
	return sync.OnceFunc(func() { close(hold) })
}

// holds returns until when p is held back, or the answer to it.
func (l *late) holds(p []byte) (command, reply chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.verb == "" || !bytes.HasPrefix(p, []byte(l.verb+" ")) {
		return nil, nil
	}
	l.verb = ""
	if l.reply {
		return nil, l.hold
	}
	return l.hold, nil
}

type lateConn struct {
	net.Conn
	late    *late
	reply   chan struct{} // holds the next answer back until it is closed
	pending chan struct{} // closed when what was held back has been sent
}

func (c *lateConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.reply != nil {
		c.late.sent <- struct{}{}
		<-c.reply
		c.reply = nil
	}
	return n, err
}

func (c *lateConn) Write(p []byte) (int, error) {
	hold, reply := c.late.holds(p)
	c.reply = reply
	if hold == nil {
		return c.Conn.Write(p)
	}
	held := bytes.Clone(p)
	c.pending = make(chan struct{})
	go func() {
		defer close(c.pending)
		<-hold
		_ = c.Conn.SetWriteDeadline(time.Time{}) // the call's own has passed
		_, _ = c.Conn.Write(held)                // its failure shows as a command that never arrives
	}()
	c.late.sent <- struct{}{}
	return len(p), nil
}

// Close waits for nothing: what is on its way arrives all the same.
func (c *lateConn) Close() error {
	if c.pending == nil {
		return c.Conn.Close()
	}
	go func() {
		<-c.pending
		c.Conn.Close()
	}()
	return nil
}

func openLate(t testing.TB, m *servers.Memcached) (driver.Driver, *late) {
	t.Helper()
	l := &late{sent: make(chan struct{}, 1)}
	d := openDriver(t, &memcachelock.Options{Dial: l.dial}, m.Addr())
	c := claimOf(t, d, "first", "first", time.Minute) // asks what the server can
	claimtest.Granted(t, c)
	return d, l
}

// unheard makes a call whose command is held back, and returns when the caller has given up.
func (l *late) unheard(t testing.TB, verb string, call func(ctx context.Context) error) (letGo func()) {
	t.Helper()
	letGo = l.next(verb, false)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a call that hangs: %v", err)
	}
	<-l.sent
	return letGo
}

// settled waits until the server has had every command that was let go: its connections
// are closed then.
func settled(t testing.TB, m *servers.Memcached, before string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); m.Stat(t, "cmd_set") == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the late command never arrived")
		}
	}
}

func claimOf(t testing.TB, d driver.Driver, name, owner string, ttl time.Duration) driver.Claim {
	t.Helper()
	return claimtest.New(t, d, driver.Request{Resource: name, Owner: owner, TTL: ttl})
}

func tryOf(c driver.Claim) func(context.Context) error {
	return func(ctx context.Context) error { _, err := c.Try(ctx); return err }
}

// What arrives late must not undo what was granted or extended since, nor leave a lock
// that nobody knows of.
func TestMemcachedLateCommandsDoNoHarm(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	d, link := openLate(t, m)
	stored := func() string { return m.Stat(t, "cmd_set") }
	item := func(name string) string { return m.Must(t, "gets lock:"+name) }

	t.Run("add after the release", func(t *testing.T) {
		c := claimOf(t, d, "phantom", "aaa", time.Hour)
		letGo := link.unheard(t, "add", tryOf(c))
		if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of what the server has not seen: %v, want ErrLost", err)
		}
		before := stored()
		letGo()
		settled(t, m, before)
		if got := item("phantom"); strings.Contains(got, "aaa") {
			t.Errorf("a lock for an hour that nobody knows of: %q", got)
		}
		next := claimOf(t, d, "phantom", "bbb", time.Minute)
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			_, err := next.Try(t.Context())
			if err == nil {
				break
			}
			if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
				t.Fatalf("the name is not free soon after: %v", err)
			}
		}
	})
	t.Run("add after the next try", func(t *testing.T) {
		c := claimOf(t, d, "twice", "aaa", time.Minute)
		letGo := link.unheard(t, "add", tryOf(c))
		claimtest.Granted(t, c)
		if _, err := c.Renew(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		was, before := item("twice"), stored()
		letGo()
		settled(t, m, before)
		if now := item("twice"); now != was {
			t.Errorf("a late add changed %q to %q", was, now)
		}
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
	t.Run("add after the release of the next grant", func(t *testing.T) {
		c := claimOf(t, d, "between", "aaa", time.Hour)
		letGo := link.unheard(t, "add", tryOf(c))
		claimtest.Granted(t, c)
		before := stored()
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("Release: %v", err)
		}
		letGo()
		settled(t, m, before)
		if got := item("between"); strings.Contains(got, "aaa") {
			t.Errorf("a lock for an hour that nobody knows of: %q", got)
		}
	})
	t.Run("add within a second of the release", func(t *testing.T) {
		rounds := 0
		for tries := 0; rounds < 3 && tries < 20; tries++ {
			name := fmt.Sprint("bar-", tries)
			c := claimOf(t, d, name, "aaa", time.Hour)
			letGo := link.unheard(t, "add", tryOf(c))
			start := time.Now()
			if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release of what the server has not seen: %v, want ErrLost", err)
			}
			time.Sleep(900*time.Millisecond - time.Since(start))
			before := stored()
			letGo()
			settled(t, m, before)
			if time.Since(start) >= time.Second {
				continue // it came too late to tell
			}
			rounds++
			if got := item(name); strings.Contains(got, "aaa") {
				t.Errorf("a lock for an hour that nobody knows of: %q", got)
			}
		}
		if rounds == 0 {
			t.Skip("no command came through within 100 ms")
		}
	})
	t.Run("add that has arrived", func(t *testing.T) {
		c := claimOf(t, d, "arrived", "aaa", time.Minute)
		before := stored()
		link.unheard(t, "add", tryOf(c))()
		settled(t, m, before)
		claimtest.Granted(t, c)
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("Release: %v", err)
		}
		claimtest.Granted(t, claimOf(t, d, "arrived", "bbb", time.Minute))
	})
	t.Run("release after the next try", func(t *testing.T) {
		c := claimOf(t, d, "release", "aaa", time.Minute)
		claimtest.Granted(t, c)
		letGo := link.unheard(t, "cas", claimtest.Release(c))
		claimtest.Granted(t, c)
		before := stored()
		letGo()
		settled(t, m, before)
		if got := item("release"); !strings.Contains(got, "aaa") {
			t.Errorf("a late release ended a later grant: %q", got)
		}
	})
	t.Run("renewal after the next one", func(t *testing.T) {
		c := claimOf(t, d, "renewal", "aaa", time.Hour)
		claimtest.Granted(t, c)
		letGo := link.unheard(t, "cas", func(ctx context.Context) error { _, err := c.Renew(ctx, 2*time.Second); return err })
		if _, err := c.Renew(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		was, before := item("renewal"), stored()
		letGo()
		settled(t, m, before)
		if now := item("renewal"); now != was {
			t.Errorf("a late renewal shortened a lease: %q became %q", was, now)
		}
	})
	t.Run("renewal after the release", func(t *testing.T) {
		c := claimOf(t, d, "over", "aaa", time.Hour)
		claimtest.Granted(t, c)
		letGo := link.unheard(t, "cas", func(ctx context.Context) error { _, err := c.Renew(ctx, time.Hour); return err })
		claimtest.Released(t, c)
		before := stored()
		letGo()
		settled(t, m, before)
		claimtest.Granted(t, claimOf(t, d, "over", "bbb", time.Minute))
	})
}

// The server restarts between the two halves of a release, and counts its versions anew:
// somebody else's lease has the very version that was read. It must stay.
func TestMemcachedRestartBetweenReadAndSwap(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	d, link := openLate(t, m)
	c := claimOf(t, d, "swapped", "aaa", time.Hour)
	claimtest.Granted(t, c)
	was := version(t, m, "lock:swapped")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	letGo := link.next("gets", true)
	released := make(chan error, 1)
	go func() { released <- c.Release(ctx, driver.End{}) }()
	<-link.sent // it has read, and is about to swap
	m.Kill()
	m.Start(t)
	other := openDriver(t, nil, m.Addr())
	successor := claimOf(t, other, "swapped", "bbb", time.Hour)
	claimtest.Granted(t, successor)
	for version(t, m, "lock:swapped") < was {
		claimtest.Granted(t, successor) // each is a new version
	}
	if now := version(t, m, "lock:swapped"); now != was {
		t.Fatalf("version %d, want %d", now, was)
	}
	letGo()
	if err := <-released; err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Release across a restart: %v, want an unknown outcome", err)
	}
	if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("the Release again: %v, want ErrLost", err)
	}
	if _, err := successor.Renew(t.Context(), time.Hour); err != nil {
		t.Errorf("the successor's lease: %v", err)
	}
}
