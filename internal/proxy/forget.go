package proxy

import "net"

// Forget makes all open links silent, like a firewall that has lost its connection table. What
// either end sends vanishes. Neither end notices when the other closes, and nothing is reset. New
// connections pass. Forget returns the number of links it has silenced.
func (p *Proxy) Forget() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		if !l.forgotten {
			l.forgotten = true
			n++
		}
	}
	return n
}

// isForgotten reports whether l carries nothing any more.
func (p *Proxy) isForgotten(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.forgotten
}

// end closes both ends of a link. Of a forgotten link it closes only the end that has closed
// itself.
func (p *Proxy) end(l *link, closed net.Conn) {
	if p.isForgotten(l) {
		closed.Close()
		return
	}
	l.client.Close()
	l.server.Close()
}
