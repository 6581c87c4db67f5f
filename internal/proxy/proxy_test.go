package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo starts a server that sends back what it receives.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // the test notices what is missing
			}()
		}
	}()
	return l.Addr().String()
}

// start starts a proxy to an echo server.
func start(t *testing.T) *Proxy {
	p, err := Listen(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

type caller struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func call(t *testing.T, addr string) *caller {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return newCaller(t, conn)
}

func newCaller(t *testing.T, conn net.Conn) *caller { return &caller{t, conn, bufio.NewReader(conn)} }

func (c *caller) say(line string) {
	c.t.Helper()
	if _, err := c.conn.Write([]byte(line + "\n")); err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) hears(line string) {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := c.in.ReadString('\n'); err != nil || got != line+"\n" {
		c.t.Fatalf("heard %q, %v; want %q", got, err, line)
	}
}

func (c *caller) hearsNothing() {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if got, err := c.in.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("heard %q, %v; want silence", got, err)
	}
}

func (c *caller) isCutOff() {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := c.in.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("heard %q, %v; want the end of the connection", got, err)
	}
}

func TestProxyHoldsWhatArrivesInTheDark(t *testing.T) {
	p := start(t)
	c := call(t, p.Addr())
	c.say("one")
	c.hears("one")
	p.Dark()
	late := call(t, p.Addr())
	c.say("two")
	late.say("three")
	c.hearsNothing()
	late.hearsNothing()
	p.Pass()
	c.hears("two")
	late.hears("three")
}

func TestProxyDropsReplies(t *testing.T) {
	p := start(t)
	c, idle := call(t, p.Addr()), call(t, p.Addr())
	idle.say("one")
	idle.hears("one")
	p.DropReplies()
	c.say("two")
	c.hearsNothing()
	p.Pass()
	c.isCutOff()
	idle.say("three")
	idle.hears("three")
}

func TestProxyResets(t *testing.T) {
	p := start(t)
	c := call(t, p.Addr())
	c.say("one")
	c.hears("one")
	p.Reset()
	c.isCutOff()
	call(t, p.Addr())
}

func TestProxyDelays(t *testing.T) {
	p := start(t)
	c := call(t, p.Addr())
	p.Delay(100 * time.Millisecond)
	start := time.Now()
	c.say("one")
	c.hears("one")
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("there and back in %v, want at least 200 ms", took)
	}
}

// Close ends connections that wait in the dark.
func TestProxyCloses(t *testing.T) {
	p := start(t)
	c := call(t, p.Addr())
	c.say("one")
	c.hears("one")
	p.Dark()
	c.say("two")
	call(t, p.Addr())
	p.Close()
	c.isCutOff()
}
