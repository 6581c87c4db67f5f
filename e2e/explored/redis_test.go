// Package explored explores drivers of real servers: each connection ends in the bubble at the
// explorer, which asks the server over a socket of its own and moves its clock with the bubble's.
package explored

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/locktest/explore"
	"github.com/leasehold-go/leasehold/redislock"
)

// TestRedis explores redislock, with the scripts as they are, on a real server.
func TestRedis(t *testing.T) {
	s := startServer(t)
	h := explore.Harness{Name: "Redis", For: time.Second, New: func(w *explore.World) func(*explore.Process) driver.Driver {
		n := s.network(t, w)
		return func(p *explore.Process) driver.Driver {
			d, err := redislock.Open(n.options(p), nil)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}}
	if flag.Lookup("explore.for").Value.String() == "0s" { // make test has less time than make explore
		h.Scenarios = []string{"two"}
	}
	explore.Run(t, h)
}

// A server is a real one for all schedules, one after the other.
type server struct {
	redis   *servers.Redis
	clock   *servers.Clock
	control socket
	names   map[string]string // of scripts, by what Redis calls them
}

func startServer(t *testing.T) *server {
	r, clock := servers.StartRedisWithClock(t)
	s := &server{redis: r, clock: clock, names: scripts(t)}
	s.control = s.open(t)
	t.Cleanup(func() { s.control.Close() })
	return s
}

// scripts names those of redislock.
func scripts(t *testing.T) map[string]string {
	const folder = "../../redislock/scripts"
	files, err := filepath.Glob(filepath.Join(folder, "*.lua"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", folder, err)
	}
	text := make(map[string]string)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text[filepath.Base(file)] = string(b)
	}
	names := make(map[string]string)
	for name, script := range text {
		for _, part := range []string{"history.lua", "prelude.lua", "memory.lua"} {
			script = strings.Replace(script, "--include "+part+"\n", text[part], 1)
		}
		sum := sha1.Sum([]byte(script))
		names[hex.EncodeToString(sum[:])] = strings.TrimSuffix(name, ".lua")
	}
	return names
}

// A socket is a connection to the server, outside of the bubble.
type socket struct {
	net.Conn
	from *bufio.Reader
}

func (s *server) open(t *testing.T) socket {
	c, err := net.Dial("tcp", s.redis.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return socket{c, bufio.NewReader(c)}
}

// ask has one request answered.
func (s *socket) ask(frame []byte) (reply, error) {
	if _, err := s.Write(frame); err != nil {
		return nil, err
	}
	return value(s.from)
}

// A network is what is between the drivers of one schedule and the server.
type network struct {
	t      *testing.T
	server *server
	start  time.Time

	mu      sync.Mutex // held while the server answers
	conns   []*wire    // guarded by mu
	sockets []socket   // guarded by mu; all that were opened
}

// network has the server forget what was before.
func (s *server) network(t *testing.T, w *explore.World) *network {
	n := &network{t: t, server: s, start: time.Now()}
	n.flush()
	w.OnFlush(n.flush)
	w.OnClock(func(offset time.Duration) { s.clock.Stop(time.Now().Add(offset)) })
	w.Cleanup(func() {
		for _, s := range n.sockets {
			s.Close()
		}
	})
	return n
}

func (n *network) flush() {
	if _, err := n.server.control.ask([]byte("*1\r\n$8\r\nFLUSHALL\r\n")); err != nil {
		n.t.Errorf("FLUSHALL: %v", err)
	}
}

// options are those of a client that goes through the explorer.
func (n *network) options(p *explore.Process) *redis.Options {
	return &redis.Options{
		Addr: "127.0.0.1:1", Protocol: 2, DisableIdentity: true,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dial(p) },
	}
}

// A wire is one connection of a driver.
type wire struct {
	network  *network
	line     *explore.Line
	conn     *conn
	socket   socket
	mu       sync.Mutex
	unparsed []byte // guarded by mu
	open     int    // guarded by mu; requests without an answer
	listens  bool   // guarded by network.mu
	gone     bool   // guarded by network.mu
}

func (n *network) dial(p *explore.Process) (net.Conn, error) {
	x := &wire{network: n, socket: n.server.open(n.t)}
	x.conn = newConn(x.wrote, x.closed)
	x.line = p.Line(func() {
		x.leaves()
		x.conn.fail(errBroken)
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns, n.sockets = append(n.conns, x), append(n.sockets, x.socket)
	return x.conn, nil
}

// closed: the driver has left. What it has sent may still get to the server.
func (x *wire) closed() {
	x.leaves()
	x.line.Close()
}

func (x *wire) leaves() {
	x.network.mu.Lock()
	defer x.network.mu.Unlock()
	x.gone = true
}

// wrote passes on what a driver wrote.
func (x *wire) wrote(b []byte) {
	x.mu.Lock()
	whole, rest := frames(append(x.unparsed, b...))
	x.unparsed = rest
	direct := x.open == 0
	x.mu.Unlock()
	for _, frame := range whole {
		what := words(frame)
		if direct && isAside(what[0]) {
			x.conn.receive(x.serve(frame))
			continue
		}
		direct = false
		x.send(frame, what)
	}
}

// isAside: what a client asks before anything else, and about the connection, is no event.
func isAside(command string) bool {
	switch strings.ToUpper(command) {
	case "HELLO", "CLIENT", "AUTH", "SELECT", "PING", "INFO":
		return true
	}
	return false
}

// send has the explorer decide what becomes of a request.
func (x *wire) send(frame []byte, what []string) {
	x.count(1)
	name := strings.ToUpper(what[0])
	if script, ok := x.network.server.names[what[min(1, len(what)-1)]]; ok && name == "EVALSHA" {
		name = script
	}
	x.line.Send(name, "", func() any { return x.serve(frame) }, func(answer any) {
		x.count(-1)
		x.conn.receive(answer.(reply))
	})
}

func (x *wire) count(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.open += n
}

// serve has the server answer, and passes on what others hear.
func (x *wire) serve(frame []byte) reply {
	n := x.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if x.listens {
		return x.hear()
	}
	x.listens = strings.EqualFold(words(frame)[0], "subscribe")
	answer, err := x.socket.ask(frame)
	if err != nil {
		n.t.Errorf("the server does not answer: %v", err)
	}
	for _, o := range n.conns {
		if o.listens && !o.gone && o != x {
			o.hear()
		}
	}
	return answer
}

// hear passes on what a connection heard, and returns the answer to a PING, which is the only
// thing that one that listens asks. Requires network.mu.
func (x *wire) hear() (pong reply) {
	if _, err := x.socket.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return nil
	}
	for {
		v, err := value(x.socket.from)
		if err != nil {
			x.network.t.Errorf("a connection that listens: %v", err)
			return nil
		}
		if what := words(v); len(what) == 0 || what[0] != "message" {
			return v
		}
		x.line.Push("hears", func() { x.conn.receive(v) })
	}
}
