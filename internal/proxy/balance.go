package proxy

import (
	"fmt"
	"io"
	"net"
)

// A Record is called for each connection. It returns two writers that get a copy of all bytes:
// asked from the client, answered from the server. They get each byte before the other end does. If
// writing fails, the connection is closed.
type Record func() (asked, answered io.WriteCloser)

// Listen starts a proxy on a free port of 127.0.0.1. It sends each connection to the next of the
// targets that accepts it; none of them need run yet. Close ends it.
func Listen(targets ...string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	return ListenAt(l, nil, targets...), nil
}

// ListenAt is like Listen, on a listener that Close closes. record may be nil.
func ListenAt(l net.Listener, record Record, targets ...string) *Proxy {
	p := &Proxy{listener: l, record: record, targets: targets, changed: make(chan struct{}), links: make(map[*link]bool)}
	p.serving.Go(p.serve)
	return p
}

// dial tries each target once, beginning with the next in turn. It returns nil if no target
// accepts.
func (p *Proxy) dial() net.Conn {
	p.mu.Lock()
	n := len(p.targets)
	p.mu.Unlock()
	for range n {
		if c, err := net.Dial("tcp", p.next()); err == nil {
			return c
		}
	}
	return nil
}

func (p *Proxy) next() (target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	target = p.targets[0]
	p.targets = append(p.targets[1:], target)
	return target
}
