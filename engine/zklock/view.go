package zklock

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A view is the queue of a resource as a claim of the session has recently seen it. A claim behind
// others, except for the next, need not look for itself. It is woken when the one ahead goes, and a
// recent view shows that no such event was missed.
type view struct {
	nodes    []node // in order
	holder   driver.Holder
	told     bool             // holder is known
	greeting int              // of the connection on which it was read
	seen     boottime.Instant // when it was requested
	asked    boottime.Instant // when a claim last set out to read another
}

// viewsPerSession is how many views in turn a session's timeout has. A missed event delays a claim
// by this part of the timeout.
const viewsPerSession = 3

// moment is how long a view shows that a queue moves. The next Try, which comes later, asks who
// holds.
const moment = time.Second

// stays returns the refusal of a claim that listens to those ahead, if a view shows that nothing
// has changed. It returns nil if the claim must look.
func (c *claim) stays(asked boottime.Instant) *driver.Busy {
	q, ok := c.current().(*queued)
	if !ok || q.wake == nil || q.wake.hasRung() || c.node == nil || c.uncertain {
		return nil
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	v, now := s.views[c.parent], s.d.clock.Now()
	if v == nil || !v.told || s.conn.state != up || s.conn.greeting != v.greeting || s.life.id != c.node.session {
		return nil
	}
	if v.index(c.node.name) < 2 || now >= v.asked.Add(s.timeout/viewsPerSession) || !v.has(q.wake.names) {
		v.asked = now
		return nil
	}
	q.wake.asked = asked
	return &driver.Busy{Wake: q.wake.rung, Granted: q.wake.granted, Retry: keepPlace, Holder: v.holder.Later(now.Sub(v.seen))}
}

// moves reports whether another node than first was at the head within the last moment. The present
// holder will then not hold for long, so it is not asked for.
func (s *session) moves(parent string, first node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[parent]
	return v != nil && v.nodes[0].name != first.name && s.d.clock.Now().Sub(v.seen) < moment
}

// behind returns the queue from c on, as a view shows it. It returns nil if the view may still have
// places of dead waiters.
func (s *session) behind(c *claim) []node {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[c.parent]
	if v == nil || s.d.clock.Now().Sub(v.seen) > placeTTL {
		return nil
	}
	if i := v.index(c.node.name); i >= 0 {
		return v.nodes[i:]
	}
	return nil
}

// index returns the position of a node in the queue; -1: it is not there. It must be quick, because
// all waiters call it under the session's mu.
func (v *view) index(name string) int {
	n, err := parseNode(name)
	if err != nil || len(v.nodes) == 0 {
		return -1
	}
	distance := func(n node) uint32 { return uint32(n.seq - v.nodes[0].seq) } // sequence numbers wrap around
	i, ok := slices.BinarySearchFunc(v.nodes, n, func(a, b node) int {
		return cmp.Or(cmp.Compare(distance(a), distance(b)), cmp.Compare(a.name, b.name))
	})
	if !ok {
		return -1
	}
	return i
}

// has reports whether all names are in the queue.
func (v *view) has(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return v.index(name) < 0 })
}

// saw keeps a view for other claims on the resource, and drops old views.
func (s *session) saw(parent string, v *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.d.clock.Now()
	if len(s.views) >= s.viewsMost {
		maps.DeleteFunc(s.views, func(_ string, old *view) bool { return now.Sub(old.seen) > s.timeout })
		s.viewsMost = 2*len(s.views) + 1
	}
	v.asked = now
	s.views[parent] = v
}
