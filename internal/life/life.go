// Package life runs the goroutines that a driver or the service has beside its calls, until Close.
package life

import (
	"context"
	"sync"
)

// A Life is a context that lasts until End, and the goroutines that work under it. Its methods are
// safe for concurrent use.
type Life struct {
	context.Context
	end     context.CancelFunc
	mu      sync.Mutex     // held to begin a goroutine and by End
	running sync.WaitGroup // added to under mu
}

// New returns a Life that has begun.
func New() *Life {
	l := &Life{}
	l.Context, l.end = context.WithCancel(context.Background())
	return l
}

// Go runs f in a goroutine that Wait waits for. After End it does not run f, and returns false.
func (l *Life) Go(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.running.Go(f)
	return true
}

// End ends the context. Go begins nothing from then on.
func (l *Life) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// Wait waits, after End, until all goroutines have ended.
func (l *Life) Wait() { l.running.Wait() }
