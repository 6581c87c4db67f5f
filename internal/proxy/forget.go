package proxy

import "net"

// Forget makes every link that is open now silent for ever, as a firewall does that has lost its table of
// connections: what either end sends vanishes, neither hears of the other's end, and nothing is reset. New
// connections pass. It returns how many links it has forgotten.
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

// isForgotten reports whether nothing of l passes any more.
func (p *Proxy) isForgotten(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.forgotten
}

// end closes both ends of a link; of one that is forgotten, only the end that has closed itself.
func (p *Proxy) end(l *link, closed net.Conn) {
	if p.isForgotten(l) {
		closed.Close()
		return
	}
	l.client.Close()
	l.server.Close()
}
