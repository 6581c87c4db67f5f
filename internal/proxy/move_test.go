package proxy

import (
	"net"
	"testing"
)

func TestProxyMoves(t *testing.T) {
	t.Parallel()
	p := start(t)
	old := call(t, p.Addr())
	old.say("one")
	old.hears("one")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p.Move(l.Addr().String())
	fresh := call(t, p.Addr())
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fresh.say("two")
	newCaller(t, conn).hears("two")
	old.say("three") // it stays where it was
	old.hears("three")
}
