package memcachelock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold/driver"
)

// maxLines is how many connections there are to a server at most. Each carries one call
// at a time, and more would not make one server faster.
const maxLines = 8

// A dialFunc opens a connection.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// A server is one memcached and the connections to it.
type server struct {
	address string
	probe   string // a key that is no lock's
	dial    dialFunc
	busy    chan struct{} // one for each line in use
	swaps   atomic.Bool   // it was seen to compare and swap

	mu     sync.Mutex
	idle   []*line   // guarded by mu; the one used last at the end
	broke  time.Time // guarded by mu; when a connection failed last
	closed bool      // guarded by mu
}

func newServer(address, prefix string, dial dialFunc) *server {
	return &server{address: address, probe: prefix + escape + "probe", dial: dial, busy: make(chan struct{}, maxLines)}
}

// call has f talk to the server on one connection. It returns soon after ctx has ended.
func (s *server) call(ctx context.Context, f func(l *line) error) error {
	l, err := s.take(ctx)
	if err != nil {
		return err
	}
	end := l.begin(ctx)
	if err = s.check(l); err == nil {
		err = f(l)
	}
	end()
	s.give(l)
	if err != nil && ctx.Err() != nil && !isAnswer(err) {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return explain(err)
}

// isAnswer reports whether err is one of the three outcomes, and not that of a call.
func isAnswer(err error) bool {
	return errors.Is(err, driver.ErrBusy) || errors.Is(err, driver.ErrLost)
}

// take waits for a line that nobody uses.
func (s *server) take(ctx context.Context) (*line, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		<-s.busy
		return nil, driver.ErrClosed
	}
	if len(s.idle) == 0 {
		return newLine(s), nil
	}
	l := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	if l.opened.Before(s.broke) {
		l.client.Close() // what broke one connection mostly broke all, a restart say
	}
	return l, nil
}

func (s *server) give(l *line) {
	s.mu.Lock()
	if l.failed {
		s.broke = time.Now()
	}
	if s.closed {
		l.client.Close()
	} else {
		s.idle = append(s.idle, l)
	}
	s.mu.Unlock()
	<-s.busy
}

func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, l := range s.idle {
		l.client.Close()
	}
	s.idle = nil
}

// check refuses a server that does not compare and swap, which shows in an item without
// a version. It asks each server once.
func (s *server) check(l *line) error {
	if s.swaps.Load() {
		return nil
	}
	item := &memcache.Item{Key: s.probe, Expiration: int32(early / time.Second)}
	if err := l.client.Add(item); err != nil && !refused(err) {
		return err
	}
	found, err := l.client.Get(s.probe)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss): // it has just expired; the next call asks again
		return nil
	case err != nil:
		return err
	case found.CasID == 0:
		return ErrNoCAS
	}
	s.swaps.Store(true)
	return nil
}
