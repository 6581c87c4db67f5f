//go:build linux

package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/stores"
)

// nobody is an address where nobody listens, a second and a third.
const nobody, nobody2, nobody3 = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"

// Whoever mistypes a port hears of it at once, with the address and what to do.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://" + nobody, "redis://u:" + canary + "@" + nobody + "/1?replicas=1", "rediss://" + nobody,
		"redis+sentinel://" + nobody + "/main", "redis+sentinel://" + nobody + "," + nobody2 + "," + nobody3 + "/main",
		"redis+cluster://" + nobody, "redis+cluster://" + nobody + "," + nobody2 + "," + nobody3,
		"redlock://" + nobody + "," + nobody2 + "," + nobody3,
		"postgres://u:" + canary + "@" + nobody + "/db", "mysql://u:" + canary + "@" + nobody + "/db",
		"zookeeper://" + nobody, "etcd://" + nobody, "etcd://u:" + canary + "@" + nobody, "memcached://" + nobody,
		"nats://u:" + canary + "@" + nobody + "/locks", "nats://" + nobody + "," + nobody2 + "/locks",
	} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.store = url
			pace := c.pace()
			began := time.Now()
			o := c.want(69, "run", "x", "--", "touch", "ran")
			if took := time.Since(began); took > 3*time.Second+2*(pace+c.pace()) {
				t.Errorf("says so after %v", took)
			}
			contains(t, o.stderr, "127.0.0.1:", "refused", "Check the store ("+stores.Redact(url)+"), its address")
			c.missing("ran")
		})
	}
}

// pace is how long this machine takes right now for a command that asks nobody.
func (c *cli) pace() time.Duration {
	began := time.Now()
	c.call("version")
	return time.Since(began)
}

// A wrong password is as soon told.
func TestRefusedPassword(t *testing.T) {
	t.Parallel()
	addr := refusing(t)
	for _, url := range []string{"redis://u:PW@ADDR", "redis+cluster://u:PW@ADDR", "redlock://u:PW@ADDR,ADDR,ADDR", "redis://u:PW@ADDR?replicas=1"} {
		c := newCLI(t)
		c.store = strings.NewReplacer("ADDR", addr, "PW", canary).Replace(url)
		pace := c.pace()
		began := time.Now()
		contains(t, c.want(77, "run", "x", "--", "touch", "ran").stderr, addr, "refuses the user", "Check user, password and rights on the store (", "Its page")
		if took := time.Since(began); took > 3*time.Second+2*(pace+c.pace()) {
			t.Errorf("%s: says so after %v", url, took)
		}
		c.missing("ran")
	}
}

// refusing is the address of a Redis that knows no user.
func refusing(t *testing.T) string {
	t.Helper()
	done := make(chan struct{})
	t.Cleanup(func() { <-done }) // after s has closed its calls
	s := silence(t)
	go func() {
		defer close(done)
		var talks sync.WaitGroup
		for conn := range s.calls {
			talks.Go(func() {
				defer conn.Close()
				for b := make([]byte, 4096); ; {
					n, err := conn.Read(b)
					if err != nil {
						return
					}
					commands := bytes.Count(b[:n], []byte("*")) // each is an array
					conn.Write(bytes.Repeat([]byte("-WRONGPASS invalid username-password pair or user is disabled.\r\n"), commands))
				}
			})
		}
		talks.Wait() // their clients have ended
	}()
	return s.addr
}

// A server that takes connections and says nothing is given up after a while, and whoever
// does not want to wait for that is obeyed.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	var stopped, left []*job
	for _, url := range []string{
		"redis://ADDR", "redis+sentinel://ADDR/main", "redis+cluster://ADDR", "redlock://ADDR," + nobody + ",ADDR",
		"postgres://u:p@ADDR/db", "mysql://u:p@ADDR/db", "zookeeper://ADDR", "etcd://ADDR", "etcd://u:p@ADDR", "memcached://ADDR", "nats://ADDR/locks", "s3://k:s@b?region=r&endpoint=http://ADDR",
	} {
		silent, c := silence(t), newCLI(t)
		c.store = strings.ReplaceAll(url, "ADDR", silent.addr)
		j := c.start("run", "x", "--", "touch", "ran")
		silent.called()
		j.signal(syscall.SIGTERM)
		stopped, left = append(stopped, j), append(left, c.start("run", "x", "--", "touch", "ran"))
	}
	for _, j := range stopped {
		if code := j.code(); code != 143 { // one that is deaf gives up with 69
			t.Errorf("exit code %d: %s", code, j.errors())
		}
	}
	for _, j := range left {
		if code := j.code(); code != 69 { // the bound is that of code
			t.Errorf("exit code %d: %s", code, j.errors())
		}
		contains(t, j.errors(), "Check the store (", "), its address")
		if _, err := os.Stat(filepath.Join(j.cmd.Dir, "ran")); err == nil {
			t.Errorf("has run: %s", j.errors())
		}
	}
}

// A silentServer takes connections and says nothing.
type silentServer struct {
	t     *testing.T
	addr  string
	calls chan net.Conn
}

func silence(t *testing.T) *silentServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &silentServer{t, l.Addr().String(), make(chan net.Conn, 100)}
	go func() {
		defer close(s.calls)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.calls <- conn
		}
	}()
	t.Cleanup(func() {
		l.Close()
		for conn := range s.calls {
			conn.Close()
		}
	})
	return s
}

// called waits for a connection.
func (s *silentServer) called() {
	s.t.Helper()
	select {
	case conn := <-s.calls:
		s.t.Cleanup(func() { conn.Close() })
	case <-time.After(15 * time.Second):
		s.t.Fatal("nobody connects")
	}
}

// Whoever says how long it may take waits no longer, whatever hangs.
func TestNobodyWaitsLongerThanAsked(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://ADDR", "redis+sentinel://ADDR/main", "redis+cluster://ADDR", "redlock://ADDR," + nobody + ",ADDR",
		"postgres://u:p@ADDR/db", "mysql://u:p@ADDR/db", "zookeeper://ADDR", "etcd://ADDR", "etcd://u:p@ADDR", "memcached://ADDR", "nats://ADDR/locks", "s3://k:s@b?region=r&endpoint=http://ADDR",
	} {
		for _, line := range []string{"run -n x -- touch ran", "run -w 2 x -- touch ran", "acquire -n x", "acquire -w 0.1 x"} {
			if strings.HasPrefix(line, "acquire") && strings.HasPrefix(url, "zookeeper") {
				continue // has nothing that acquire could leave behind
			}
			t.Run(url+" "+line, func(t *testing.T) {
				t.Parallel()
				silent, c := silence(t), newCLI(t)
				c.store = strings.ReplaceAll(url, "ADDR", silent.addr)
				j := c.start(strings.Fields(line)...)
				pace := c.pace()
				silent.called()
				began := time.Now()
				if code := j.code(); code != 69 {
					t.Errorf("exit code %d: %s", code, j.errors())
				}
				// It says 2 s; without the bound it is 5 s.
				if took := time.Since(began); took > 4500*time.Millisecond+2*(pace+c.pace()) {
					t.Errorf("it took %v: %s", took, j.errors())
				}
				c.missing("ran")
			})
		}
	}
}
