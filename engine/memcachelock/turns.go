package memcachelock

import (
	"crypto/rand"
	"sync"
	"time"
)

// A process that releases a name has its next waiter at the server before any other
// process asks again, and would keep the name for as long as it wants it. So waiters leave
// a mark beside the record. A process that finds the mark of another when it releases, and
// has had the name again and again for a turn, stays away until all have asked.
const (
	turn = 100 * time.Millisecond
	// stayAway is a little more than the pace of who has seen others come and go.
	stayAway = 160 * time.Millisecond
	// markTTL outlives the time from one mark of a waiter to its next.
	markTTL = 3 * time.Second
	// maxStreaks is how many names are remembered before all are forgotten.
	maxStreaks = 1000
)

// turns is what a driver remembers of the names that it has released while others waited.
type turns struct {
	id string // in marks

	mu    sync.Mutex
	names map[string]streak // guarded by mu; by key
}

// A streak is one process's holds of a name, with no other's in between.
type streak struct {
	since time.Time // began
	away  time.Time // the process stays away until then
}

func newTurns() *turns { return &turns{id: rand.Text(), names: make(map[string]streak)} }

// refused notes that another process has the name.
func (t *turns) refused(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.names, key)
}

// ended notes that a hold that began at since has ended, and whether others wait.
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

// away is for how long the process stays away from the name yet.
func (t *turns) away(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.names[key].away)
}
