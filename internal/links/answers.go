package links

import (
	"sync"
	"time"
)

// Answers record when an engine last answered.
type Answers struct {
	mu   sync.Mutex
	last time.Time // guarded by mu
}

// Add records an answer.
func (a *Answers) Add() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now() // under mu: it never goes back
}

// Last returns the time of the last answer.
func (a *Answers) Last() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}
