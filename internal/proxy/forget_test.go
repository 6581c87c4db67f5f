package proxy

import (
	"net"
	"testing"
	"time"
)

func TestProxyForgets(t *testing.T) {
	t.Parallel()
	p := start(t)
	old := call(t, p.Addr())
	old.say("one")
	old.hears("one")
	if n := p.Forget(); n != 1 {
		t.Errorf("forgot %d links, want 1", n)
	}
	old.say("two")
	fresh := call(t, p.Addr())
	fresh.say("three")
	fresh.hears("three")
	old.hearsNothing()
	if n := p.Forget(); n != 1 {
		t.Errorf("forgot %d links, want 1: the other was forgotten before", n)
	}
	fresh.say("four")
	fresh.hearsNothing()
	p.Dark()
	p.Pass()
	old.hearsNothing()
	fresh.hearsNothing()
}

// On a forgotten link, neither end notices when the other closes.
func TestProxyForgetsEnds(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := Listen(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	pair := func() (client, server *caller) {
		client = call(t, p.Addr())
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		server = newCaller(t, conn)
		client.say("hello")
		server.hears("hello")
		return client, server
	}
	client, left := pair()
	stays, server := pair()
	p.Forget()
	client.conn.Close()
	server.conn.Close()
	left.hearsNothing()
	stays.hearsNothing()
	p.Close()
	left.isCutOff()
	stays.isCutOff()
}

// A link that was forgotten while replies were discarded stays silent.
func TestProxyForgetsBeyondDroppedReplies(t *testing.T) {
	t.Parallel()
	p := start(t)
	c := call(t, p.Addr())
	c.say("one")
	c.hears("one")
	p.DropReplies()
	c.say("two")
	for until := time.Now().Add(10 * time.Second); p.Dropped() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("no reply was dropped")
		}
	}
	p.Forget()
	p.Pass()
	c.hearsNothing()
}
