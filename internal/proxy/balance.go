package proxy

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// A Balancer gives each connection to the next of its targets that takes it.
type Balancer struct {
	listener net.Listener
	record   Record
	serving  sync.WaitGroup

	many int // targets

	mu      sync.Mutex
	targets []string          // guarded by mu; the next one first
	links   map[net.Conn]bool // guarded by mu
	closed  bool              // guarded by mu
}

// A Record is called for each connection, and returns what gets a copy of what its client sends
// and of what it is sent, before the other end has it. Should that fail, the connection ends.
type Record func() (asked, answered io.WriteCloser)

// Balance makes a balancer on a free port of 127.0.0.1. Close ends it.
func Balance(targets ...string) (*Balancer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a balancer: %w", err)
	}
	return BalanceAt(l, nil, targets...), nil
}

// BalanceAt is Balance on a listener, which Close closes. record may be nil.
func BalanceAt(l net.Listener, record Record, targets ...string) *Balancer {
	b := &Balancer{listener: l, record: record, many: len(targets), targets: targets, links: make(map[net.Conn]bool)}
	b.serving.Go(b.serve)
	return b
}

// Addr is where clients connect to.
func (b *Balancer) Addr() string { return b.listener.Addr().String() }

// Close closes all connections and returns when nothing of the balancer is left.
func (b *Balancer) Close() {
	b.listener.Close()
	b.mu.Lock()
	b.closed = true
	for c := range b.links {
		c.Close()
	}
	b.mu.Unlock()
	b.serving.Wait()
}

func (b *Balancer) serve() {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		b.serving.Go(func() { b.connect(client) })
	}
}

// connect carries bytes between a client and a target until either end closes.
func (b *Balancer) connect(client net.Conn) {
	defer client.Close()
	server := b.dial()
	if server == nil {
		return
	}
	defer server.Close()
	if !b.add(client, server) {
		return
	}
	var asked, answered io.Reader = client, server
	if b.record != nil {
		a, b := b.record()
		defer a.Close()
		defer b.Close()
		asked, answered = io.TeeReader(client, a), io.TeeReader(server, b)
	}
	var both sync.WaitGroup
	carry := func(to net.Conn, from io.Reader) {
		_, _ = io.Copy(to, from) // ends with either connection
		client.Close()
		server.Close()
	}
	both.Go(func() { carry(server, asked) })
	both.Go(func() { carry(client, answered) })
	both.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.links, client)
	delete(b.links, server)
}

// dial tries each target once, beginning with the one whose turn it is.
func (b *Balancer) dial() net.Conn {
	for range b.many {
		b.mu.Lock()
		next := b.targets[0]
		b.targets = append(b.targets[1:], next)
		b.mu.Unlock()
		if c, err := net.Dial("tcp", next); err == nil {
			return c
		}
	}
	return nil
}

// add reports false after Close.
func (b *Balancer) add(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		b.links[c] = true
	}
	return !b.closed
}
