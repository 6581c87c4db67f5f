package memcachelock

import (
	"crypto/rand"
	"maps"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// A process that releases a name has its next waiter at the server before any other
// process asks again, and would keep the name for as long as it wants it. So waiters leave
// a mark beside the lock. A process that has had the name again and again for a turn looks
// for the mark of another, and if there is one stays away until all have asked.
const (
	turn = 100 * time.Millisecond
	// between is the most between two holds of one streak.
	between = 20 * time.Millisecond
	// stayAway is a little more than the pace of who has seen others come and go.
	stayAway = 160 * time.Millisecond
	// markTTL outlives the looks of a waiter, at each of which it marks again.
	markTTL = 3
	// fewTurns is how many names are remembered before those are forgotten that nobody
	// wanted for a while.
	fewTurns = 64
)

// turns is what a driver remembers of the names it has released lately.
type turns struct {
	id string // in marks

	mu    sync.Mutex
	names map[string]streak // guarded by mu; by key
	limit int               // guarded by mu; of names, when some are forgotten
}

// A streak is one process's holds of a name, one right after the other.
type streak struct {
	since time.Time // began, or was looked at last
	last  time.Time // when the last hold ended
	away  time.Time // the process stays away until then
}

func newTurns() *turns {
	return &turns{id: rand.Text(), names: make(map[string]streak), limit: fewTurns}
}

// granted notes that a hold begins.
func (t *turns) granted(key string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.names[key]
	if now.Sub(s.last) > between {
		s.since = now
	}
	if len(t.names) >= t.limit {
		maps.DeleteFunc(t.names, func(_ string, s streak) bool { return now.Sub(s.last) > turn+stayAway })
		t.limit = max(fewTurns, 2*len(t.names)) // so that it costs little for each name
	}
	t.names[key] = s
}

// released notes that a hold ends, and reports whether a turn is over, if others wait.
func (t *turns) released(key string) bool {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s, known := t.names[key]
	if !known { // forgotten during the hold, or another process's
		s.since = now
	}
	s.last = now
	over := now.Sub(s.since) >= turn
	if over {
		s.since = now
	}
	t.names[key] = s
	return over
}

// leave has the process stay away from the name.
func (t *turns) leave(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.names[key]
	s.away = time.Now().Add(stayAway)
	t.names[key] = s
}

// away is for how long yet.
func (t *turns) away(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.names[key].away)
}

// mark tells holders that this process waits. Nothing depends on it.
func (c *claim) mark(l *line) {
	_ = l.timed(func() error {
		return l.client.Set(&memcache.Item{Key: c.marks, Value: []byte(c.turns.id), Expiration: markTTL})
	})
}

// endTurn looks whether another process waits, when it is time to.
func (c *claim) endTurn(l *line) {
	if !c.turns.released(c.key) {
		return
	}
	mark, err := l.get(c.marks)
	if err == nil && mark != nil && string(mark.Value) != c.turns.id {
		c.turns.leave(c.key)
	}
}
