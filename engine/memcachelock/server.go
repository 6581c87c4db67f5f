package memcachelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
)

// maxConns is how many connections there are to a server at most. Each carries one call
// at a time. A server takes 1,024 of all its clients unless its option -c says more.
const maxConns = 32

// A watching says how long a call waits for an answer: it is a method of links.Links.
type watching = func(ctx context.Context, cancel context.CancelCauseFunc) *links.Call

// A server is one memcached and the connections to it.
type server struct {
	address string
	probe   string // a key that is no lock's
	dial    dialFunc
	links   links.Links   // whose connections are those in idle
	room    chan struct{} // one for each connection in use
	swaps   atomic.Bool   // it was seen to compare and swap

	mu     sync.Mutex
	idle   []*conn // guarded by mu; the one used last at the end
	closed bool    // guarded by mu
}

// call has f talk to the server on one connection. It returns soon after ctx has ended, or when watch finds that nobody
// answers on the connection.
// Versions of items begin anew when a server restarts, so that a swap which follows its
// read on another connection could hit somebody else's item with the same version.
func (s *server) call(ctx context.Context, watch watching, f func(on *conn) error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c, err := s.take(ctx)
	if err == nil {
		err = s.use(ctx, c, watch, f)
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, driver.ErrBusy) && !errors.Is(err, driver.ErrLost) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return explain(err)
}

// use has f talk on c, which it gives back.
func (s *server) use(ctx context.Context, c *conn, watch watching, f func(on *conn) error) error {
	ended := false // by call, which does so no more when End has returned
	call := watch(ctx, func(silent error) {
		if silent != nil {
			ended = true
			c.end()
		}
	})
	stop := context.AfterFunc(ctx, c.end)
	err := s.check(c)
	if err == nil {
		err = f(c)
	}
	err = call.End(err)
	s.give(c, stop() && !ended, err)
	return err
}

// take returns a connection that nobody uses, or a new one.
func (s *server) take(ctx context.Context) (*conn, error) {
	for {
		s.mu.Lock()
		n := len(s.idle)
		if s.closed {
			s.mu.Unlock()
			return nil, driver.ErrClosed
		}
		if n == 0 {
			s.mu.Unlock()
			return dial(ctx, s.dial, s.address)
		}
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		if time.Since(c.used) < checkIdle || c.alive() {
			return c, nil
		}
		c.close()
	}
}

// give takes a connection back after a call that came to err; intact says that nothing did end it.
func (s *server) give(c *conn, intact bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.broken && intact {
		s.drop() // what broke one connection mostly broke all, a restart say
	}
	if c.broken || !intact || s.closed {
		c.close()
		return
	}
	c.used = time.Now()
	s.idle = append(s.idle, c)
}

// condemn closes what nobody uses and has not been used since then: nobody may answer on it either.
func (s *server) condemn(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = slices.DeleteFunc(s.idle, func(c *conn) bool {
		condemned := c.used.Before(since)
		if condemned {
			c.close()
		}
		return condemned
	})
}

// drop closes what nobody uses. Requires mu.
func (s *server) drop() {
	for _, c := range s.idle {
		c.close()
	}
	s.idle = nil
}

func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.drop()
}

// check refuses a server that does not compare and swap, which shows in an item without
// a version. It asks each server once.
func (s *server) check(on *conn) error {
	if s.swaps.Load() {
		return nil
	}
	if err := on.store("add", s.probe, nil, early, 0); err != nil && !errors.Is(err, errRefused) {
		return err
	}
	found := []item{{missing: true}}
	if err := on.gets([]string{s.probe}, found); err != nil || found[0].missing {
		return err // missing: it has just expired; the next call asks again
	}
	if found[0].version == 0 {
		return ErrNoCAS
	}
	s.swaps.Store(true)
	return nil
}
