package proxy

// Move has connections that are made from now on lead to the server at target, as a name does that moves in a failover.
// Those of before stay where they are.
func (p *Proxy) Move(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = []string{target}
}
