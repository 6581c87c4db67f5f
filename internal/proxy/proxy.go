// Package proxy spoils the link between clients and a server, for demonstrations and tests.
package proxy

import (
	"io"
	"net"
	"sync"
	"time"
)

// A Proxy sits between clients and one or more servers, and can disturb the traffic.
type Proxy struct {
	listener net.Listener
	record   Record // nil: none

	mu      sync.Mutex
	targets []string // guarded by mu; the next one first
	mode    mode
	delay   time.Duration
	// changed is closed, and another takes its place, when mode changes.
	changed chan struct{}
	links   map[*link]bool
	carried int // connections, since the proxy began
	dropped int // replies, or parts of them
	closed  bool
	serving sync.WaitGroup
}

type mode int

const (
	passing   mode = iota
	dark           // holds what arrives
	replyless      // discards what the server sends
)

// A link is a client's connection and its connection to a server.
type link struct {
	client, server net.Conn
	broken         bool // a reply is missing: closed as soon as replies pass again. Guarded by Proxy.mu.
	forgotten      bool // nothing passes any more. Guarded by Proxy.mu.
}

// Close closes all connections and discards what is held. It returns when all goroutines have
// ended.
func (p *Proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.Reset()
	p.serving.Wait()
}

// Addr returns the address that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Pass lets everything through again, including what Dark has held. It closes connections that miss
// a reply.
func (p *Proxy) Pass() {
	p.set(passing)
	p.closeLinks(func(l *link) bool { return l.broken && !l.forgotten })
}

// Dark holds what arrives, in both directions, and leaves new connections without an answer, like a
// network that drops every packet.
func (p *Proxy) Dark() { p.set(dark) }

// DropReplies lets requests through and discards the replies.
func (p *Proxy) DropReplies() { p.set(replyless) }

// Dropped returns how many replies, or parts of them, were discarded so far. A reply that has not
// arrived yet when Pass is called is not discarded.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Reset closes all connections.
func (p *Proxy) Reset() { p.closeLinks(func(*link) bool { return true }) }

// Delay makes everything that arrives from now on take d longer, in each direction.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

func (p *Proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) closeLinks(which func(*link) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if which(l) {
			l.client.Close()
			l.server.Close()
		}
	}
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.serving.Go(func() { p.connect(client) })
	}
}

// connect carries one client's bytes until either side closes.
func (p *Proxy) connect(client net.Conn) {
	defer client.Close()
	if !p.wait() {
		return
	}
	server := p.dial()
	if server == nil {
		return // the client sees a closed connection
	}
	defer server.Close()
	l := &link{client: client, server: server}
	if !p.add(l) {
		return
	}
	var asked, answered io.Reader = client, server
	if p.record != nil {
		a, b := p.record()
		defer a.Close()
		defer b.Close()
		asked, answered = io.TeeReader(client, a), io.TeeReader(server, b)
	}
	var both sync.WaitGroup
	both.Go(func() { p.carry(l, server, client, asked, false) })
	both.Go(func() { p.carry(l, client, server, answered, true) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// add returns false after Close.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = true
	p.carried++
	return !p.closed
}

// Carried returns how many connections there have been to servers.
func (p *Proxy) Carried() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.carried
}

// A parcel is bytes and the time at which they may be sent on.
type parcel struct {
	bytes []byte
	due   time.Time
}

// carry copies from one connection to the other and closes both at the end.
func (p *Proxy) carry(l *link, to, from net.Conn, read io.Reader, replies bool) {
	parcels := make(chan parcel, 1024)
	var sending sync.WaitGroup
	sending.Go(func() {
		for next := range parcels {
			time.Sleep(time.Until(next.due))
			if p.wait() && !p.isForgotten(l) && !(replies && p.drops(l)) {
				_, _ = to.Write(next.bytes) // a closed connection ends the reads below
			}
		}
		p.end(l, from)
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := read.Read(buffer)
		if n > 0 {
			p.mu.Lock()
			due := time.Now().Add(p.delay)
			p.mu.Unlock()
			parcels <- parcel{append([]byte(nil), buffer[:n]...), due}
		}
		if err != nil {
			break // io.EOF, or closed
		}
	}
	close(parcels)
	sending.Wait()
}

// wait returns true when the proxy is no longer dark, or false if it is closed.
func (p *Proxy) wait() bool {
	for {
		p.mu.Lock()
		m, changed, closed := p.mode, p.changed, p.closed
		p.mu.Unlock()
		if closed || m != dark {
			return !closed
		}
		<-changed
	}
}

// drops reports whether to discard a reply now.
func (p *Proxy) drops(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.broken = l.broken || p.mode == replyless
	if l.broken {
		p.dropped++
	}
	return l.broken
}
