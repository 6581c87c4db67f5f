package redislock

import (
	"fmt"
	"sync"
	"time"
)

// seen is for how long the server is known to remember what it was told. Its own clock
// cannot tell: that may be set. What counts is what drivers have seen on the monotonic
// clocks of their machines, one after the other; memory.lua keeps it. The time that an
// answer was on its way does not count.
type seen struct {
	mu     sync.Mutex
	memory string        // guarded by mu; "": none was seen
	known  time.Duration // guarded by mu; when it was first seen, or others had seen more
	since  time.Time     // guarded by mu; when that answer came
}

// saw notes what an answer that came just now has told.
func (s *seen) saw(memory string, known time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if memory != s.memory || known > s.known+time.Since(s.since) {
		s.memory, s.known, s.since = memory, known, time.Now()
	}
}

// now is for how long the server must have had which memory.
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
