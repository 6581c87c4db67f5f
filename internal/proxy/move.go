package proxy

// Move directs later connections to the server at target, like a name that moves in a failover.
// Earlier connections stay where they are.
func (p *Proxy) Move(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = []string{target}
}
