package redislock

import (
	"fmt"
	"sync"
	"time"
)

// seen is how long the server is known to have kept its data. The server's own clock cannot prove
// that, because it may be set. Drivers measure it one after another, on the monotonic clocks of
// their machines, and memory.lua keeps the sum. The time that an answer takes to arrive does not
// count.
type seen struct {
	mu     sync.Mutex
	memory string    // guarded by mu; the name of the memory; "": none was seen
	began  time.Time // guarded by mu; since when the server is known to have it
}

// saw records what an answer that came just now said.
func (s *seen) saw(memory string, known time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if began := time.Now().Add(-known); memory != s.memory || began.Before(s.began) {
		s.memory, s.began = memory, began
	}
}

// now returns a memory, and for how long the server must have had it.
func (s *seen) now() (memory string, known time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory == "" {
		return "", 0
	}
	return s.memory, time.Since(s.began)
}

// tooYoung returns the error for a server that has not been up for MinUptime.
func (d *Driver) tooYoung(values []any) error {
	if len(values) < 3 {
		return ErrServerTooYoung
	}
	known := time.Duration(number(values[2])) * time.Millisecond
	d.seen.saw(text(values[1]), known)
	return fmt.Errorf("%w: it was seen to remember for %v, and leases may last for %v", ErrServerTooYoung, known.Round(time.Millisecond), d.o.MinUptime)
}
