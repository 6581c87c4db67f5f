package zklock

import (
	"cmp"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A view is the queue of a resource as a claim of the session has lately seen it. Whoever stands behind others, but for the
// next, need not look for itself: it is woken when the one ahead goes, and a view that is new says that neither has gone
// unheard.
type view struct {
	nodes    []node // in order
	holder   driver.Holder
	told     bool             // holder is known
	greeting int              // of the connection on which it was asked for
	seen     boottime.Instant // when it was asked for
	asked    boottime.Instant // when somebody has last asked for another
}

// viewsPerSession is how many views a session has one after the other: what a lost event costs is this part of it.
const viewsPerSession = 3

// moment is for how long a view says that a queue moves. The next Try, which is later, asks who holds.
const moment = time.Second

// stays is the refusal of a claim that listens to those ahead, and of which a view says that nothing has changed; nil: it is
// to look.
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

// moves reports whether another than first has held the resource within the last moment: whoever holds it now will not for
// long, and need not be asked for.
func (s *session) moves(parent string, first node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[parent]
	return v != nil && v.nodes[0].name != first.name && s.d.clock.Now().Sub(v.seen) < moment
}

// behind returns the queue from c on, as a view shows it, and nil if it is older than a place of somebody who has died.
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

// index is where a node stands in the queue; -1: it does not. All who wait ask for that under the session's mu.
func (v *view) index(name string) int {
	n, err := parseNode(name)
	if err != nil || len(v.nodes) == 0 {
		return -1
	}
	distance := func(n node) uint32 { return uint32(n.seq - v.nodes[0].seq) } // the sequence wraps around
	i, ok := slices.BinarySearchFunc(v.nodes, n, func(a, b node) int {
		return cmp.Or(cmp.Compare(distance(a), distance(b)), cmp.Compare(a.name, b.name))
	})
	if !ok {
		return -1
	}
	return i
}

// has reports whether all of those names are in the queue.
func (v *view) has(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return v.index(name) < 0 })
}

// saw keeps a view for the other claims on the resource, and none that is old.
func (s *session) saw(parent string, v *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.views) >= s.viewsMost {
		for parent, v := range s.views {
			if s.d.clock.Now().Sub(v.seen) > s.timeout {
				delete(s.views, parent)
			}
		}
		s.viewsMost = 2*len(s.views) + 1
	}
	v.asked = s.d.clock.Now()
	s.views[parent] = v
}
