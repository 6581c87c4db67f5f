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

// maxConns is how many connections there are to a server at most. Each carries one call at a time.
// By default a server accepts 1,024 connections of all its clients (its option -c).
const maxConns = 32

// A watching bounds how long a call waits for an answer. It is a method of links.Links.
type watching = func(ctx context.Context, cancel context.CancelCauseFunc) *links.Call

// A server is one memcached and the connections to it.
type server struct {
	address string
	probe   string // a key that belongs to no lock
	dial    dialFunc
	links   links.Links   // watches the connections in idle
	room    chan struct{} // one for each connection in use
	swaps   atomic.Bool   // the server is known to compare and swap

	mu     sync.Mutex
	idle   []*conn // guarded by mu; the last used at the end
	closed bool    // guarded by mu
}

// call runs f on one connection to the server. It returns soon after ctx has ended, or when watch
// finds that the connection is silent.
//
// f must make a swap and the read before it on the same connection. Versions of items start over
// when a server restarts, so a swap on another connection could hit another owner's item with the
// same version.
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

// use runs f on c and gives c back.
func (s *server) use(ctx context.Context, c *conn, watch watching, f func(on *conn) error) error {
	ended := false // set by watch, which does not call after End has returned
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

// take returns an idle connection, or a new one.
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

// give takes a connection back after a call that ended with err. intact says that neither its
// context nor silence has ended it.
func (s *server) give(c *conn, intact bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.broken && intact {
		s.drop() // what broke one connection, such as a restart, usually broke all
	}
	if c.broken || !intact || s.closed {
		c.close()
		return
	}
	c.used = time.Now()
	s.idle = append(s.idle, c)
}

// condemn closes idle connections that were last used before since. They may be silent too.
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

// drop closes the idle connections. Requires mu.
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

// check refuses a server that does not compare and swap, whose items have no version. It checks
// each server once.
func (s *server) check(on *conn) error {
	if s.swaps.Load() {
		return nil
	}
	if err := on.store("add", s.probe, nil, early, 0); err != nil && !errors.Is(err, errRefused) {
		return err
	}
	found := make([]item, 1)
	if err := on.gets([]string{s.probe}, found); err != nil || found[0].value == nil {
		return err // if the probe has just expired, the next call checks again
	}
	if found[0].version == 0 {
		return ErrNoCAS
	}
	s.swaps.Store(true)
	return nil
}
