package nats

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A client that connects to a server which hangs answers nobody until it gives that up: calls end with
// their contexts all the same.
func TestCallsEndWhileTheClientConnects(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	const connects = 20 * time.Second
	gone := make(chan struct{}, 1)
	d := on(t, connected(t, s, nats.PingInterval(100*time.Millisecond), nats.MaxPingsOutstanding(5), nats.ReconnectWait(time.Millisecond),
		nats.Timeout(connects), nats.DisconnectErrHandler(func(*nats.Conn, error) { gone <- struct{}{} })))
	holder := claim(t, d, "a", "one")
	claimtest.Granted(t, holder)
	inFlight := make(chan time.Duration, 1)
	resume := s.Pause()
	defer resume()
	bounded := func(bound time.Duration, call func(ctx context.Context) error) time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		began := time.Now()
		if err := call(ctx); err == nil {
			t.Error("a server that hangs has answered")
		}
		return time.Since(began) - bound
	}
	go func() {
		inFlight <- bounded(3*time.Second, func(ctx context.Context) error { _, err := holder.Renew(ctx, ttl); return err })
	}()
	<-gone
	for what, call := range map[string]func(ctx context.Context) error{
		"Try":     func(ctx context.Context) error { _, err := claim(t, d, "b", "one").Try(ctx); return err },
		"Inspect": func(ctx context.Context) error { _, err := d.Inspect(ctx, "a"); return err },
		"List":    func(ctx context.Context) error { _, _, err := d.List(ctx, "", "", 100); return err },
		"Check":   func(ctx context.Context) error { _, err := driver.Checker(d).Check(ctx); return err },
	} {
		if late := bounded(300*time.Millisecond, call); late > connects/4 {
			t.Errorf("%s ended %v after its context", what, late)
		}
	}
	if late := <-inFlight; late > connects/4 {
		t.Errorf("a Renew that was under way ended %v after its context", late)
	}
}

// A door leads to a server until it is shut, which ends all connections. Who comes then is told of, and kept waiting.
type door struct {
	net.Listener
	to   string
	mu   sync.Mutex
	shut bool       // guarded by mu
	open []net.Conn // guarded by mu
	came chan net.Conn
}

func newDoor(t testing.TB, to string) *door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l, to: to, came: make(chan net.Conn, 100)}
	t.Cleanup(func() { l.Close(); d.end() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			d.enter(conn)
		}
	}()
	return d
}

func (d *door) enter(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = append(d.open, conn)
	if d.shut {
		d.came <- conn
		return
	}
	far, err := net.Dial("tcp", d.to)
	if err != nil {
		conn.Close()
		return
	}
	d.open = append(d.open, far)
	go func() { _, _ = io.Copy(far, conn) }()
	go func() { _, _ = io.Copy(conn, far) }()
}

// end shuts the door.
func (d *door) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	for _, conn := range d.open {
		conn.Close()
	}
	d.open = nil
}

// A driver that somebody waits by is closed while its client connects to a server that hangs: its own connection, or the
// caller's.
func TestCloseWhileTheClientConnects(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	js := connected(t, s)
	if err := natslock.CreateBucket(t.Context(), js, "locks", 1); err != nil {
		t.Fatal(err)
	}
	claimtest.Granted(t, claim(t, on(t, js), "a", "one"))
	for what, open := range map[string]func(addr string) (driver.Driver, error){
		"its own": func(addr string) (driver.Driver, error) {
			return natslock.OpenURL(t.Context(), "nats://"+addr+"/locks")
		},
		"the caller's": func(addr string) (driver.Driver, error) {
			nc, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond), nats.Timeout(20*time.Second))
			if err != nil {
				return nil, err
			}
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc)
			if err != nil {
				return nil, err
			}
			return natslock.New(js, "locks", nil)
		},
	} {
		way := newDoor(t, s.Addr())
		d, err := open(way.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := claimtest.New(t, d, driver.Request{Resource: "a", Owner: what, TTL: ttl, Queue: true})
		if _, err := try(t, c, ttl); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try: %v; want ErrBusy", err)
		}
		way.end()
		<-way.came
		began := time.Now()
		d.Close()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Close took %v with %s connection", took, what)
		}
		way.Close()
		way.end()
	}
}
