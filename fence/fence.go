// Package fence guards writes on the resource's side with fencing tokens.
//
// A lease cannot stop a process that was paused between its check and its write: when
// it wakes up, another may hold the lease. So the thing that is written to remembers
// the greatest token it has seen and refuses smaller ones, atomically with the write.
package fence

import (
	"errors"
	"fmt"
	"sync"
)

// ErrStale: a later holder has written already, or the token cannot tell. Nothing was
// written; the caller's lease is over, so it must give up its work.
var ErrStale = errors.New("fencing token is stale")

// admits reports whether a write with token by owner may follow one with last by lastOwner.
func admits(last uint64, lastOwner string, token uint64, owner string) bool {
	return token > last || token == last && owner == lastOwner
}

// check refuses token 0, which leases carry on engines without fencing: it guards nothing.
func check(token uint64) error {
	if token == 0 {
		return fmt.Errorf("%w: token 0 is no fencing token", ErrStale)
	}
	return nil
}

// A Guard protects things in this process's memory, or behind it, such as a file that
// only this process writes. The zero value is ready. It is safe for concurrent use.
type Guard struct {
	mu   sync.Mutex
	seen map[string]*seen // guarded by mu
}

// seen serialises the writes to one resource.
type seen struct {
	mu    sync.Mutex
	token uint64
	owner string
}

// Do runs write unless a larger token, or the same with another owner, was seen for
// resource: then it returns ErrStale. Writes to one resource run one at a time. The
// token counts as seen even when write fails; its error is returned as it is.
func (g *Guard) Do(resource string, token uint64, owner string, write func() error) error {
	if err := check(token); err != nil {
		return err
	}
	s := g.of(resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !admits(s.token, s.owner, token, owner) {
		return fmt.Errorf("%w: %d after %d", ErrStale, token, s.token)
	}
	s.token, s.owner = token, owner
	return write()
}

func (g *Guard) of(resource string) *seen {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == nil {
		g.seen = make(map[string]*seen)
	}
	s := g.seen[resource]
	if s == nil {
		s = &seen{}
		g.seen[resource] = s
	}
	return s
}
