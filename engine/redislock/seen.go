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
	memory string        // guarded by mu; the name of the memory; "": none was seen
	known  time.Duration // guarded by mu; its age by an answer
	since  time.Time     // guarded by mu; when that answer came
}

// saw records what an answer that came just now said.
func (s *seen) saw(memory string, known time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if memory != s.memory || known > s.known+time.Since(s.since) {
		s.memory, s.known, s.since = memory, known, time.Now()
	}
}

// now returns a memory, and for how long the server must have had it.
func (s *seen) now() (memory string, known time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory == "" {
		return "", 0
	}
	return s.memory, s.known + time.Since(s.since)
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
