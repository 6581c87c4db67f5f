package zklock

import "sync"

// hosts are the servers, used in turn. Unlike go-zookeeper's own provider, it looks names up when
// it connects, and starts the first round after a loss at once.
type hosts struct {
	mu    sync.Mutex
	all   []string // guarded by mu
	next  int      // guarded by mu
	tried int      // guarded by mu; since the last success
}

// Init is called by the client, with the servers in random order.
func (h *hosts) Init(servers []string) error {
	h.all = servers
	return nil
}

// Len is called by the client.
func (h *hosts) Len() int { return len(h.all) }

// Next is called by the client, which pauses for a second when retryStart is true.
func (h *hosts) Next() (server string, retryStart bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.all[h.next%len(h.all)]
	h.next++
	retryStart = h.tried > 0 && h.tried%len(h.all) == 0
	h.tried++
	return server, retryStart
}

// Connected is called by the client.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 0
}
