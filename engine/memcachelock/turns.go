package memcachelock

import (
	"crypto/rand"
	"sync"
	"time"
)

// When a process releases a name, its next waiter asks the server before any other process does. So
// the process would keep the name as long as it has waiters. Therefore waiters leave a mark beside
// the record. If a process finds another's mark when it releases, and has held the name repeatedly
// for the time turn, it stays away until all others have asked.
const (
	turn = 100 * time.Millisecond
	// stayAway is slightly longer than the polling interval of a waiter that has seen holders
	// change.
	stayAway = 160 * time.Millisecond
	// markTTL is longer than the time between two marks of a waiter.
	markTTL = 3 * time.Second
	// maxStreaks is the number of names at which all are forgotten.
	maxStreaks = 1000
)

// turns is what a driver remembers of names that it has released while others waited.
type turns struct {
	id string // identifies this driver in marks

	mu    sync.Mutex
	names map[string]streak // guarded by mu; by key
}

// A streak is consecutive holds of a name by this process.
type streak struct {
	since time.Time // when it began
	away  time.Time // the process stays away until then
}

func newTurns() *turns { return &turns{id: rand.Text(), names: make(map[string]streak)} }

// refused records that another process has the name.
func (t *turns) refused(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.names, key)
}

// ended records that a hold that began at since has ended, and whether others wait.
func (t *turns) ended(key string, since time.Time, wanted bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s, known := t.names[key]
	switch {
	case !wanted:
		delete(t.names, key)
		return
	case !known || now.After(s.away) && !s.away.IsZero():
		s = streak{since: since}
	}
	if now.Sub(s.since) >= turn && s.away.IsZero() {
		s.away = now.Add(stayAway)
	}
	if len(t.names) >= maxStreaks {
		clear(t.names)
	}
	t.names[key] = s
}

// away returns for how much longer the process stays away from the name.
func (t *turns) away(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.names[key].away)
}
