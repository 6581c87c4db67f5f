package zklock

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// recalls notifies holders with a Request.Wanted that others wait. A session watches the children
// of a resource's node once for all these holders, and lists them after each change. The ensemble
// reads the list and arms the watch in one step, so no change is missed. While the watch is armed
// the list is up to date, and renewals need no other.
type recalls struct {
	s *session

	mu sync.Mutex
	of map[string]*lookout // guarded by mu; by the node of the resource
}

// A lookout watches one resource. The mutex of its recalls guards it.
type lookout struct {
	parent   string
	resource string
	holders  map[*claim]*node // with the last waiter that each was notified of; nil: none
	latest   []node           // see latest
	alarm    *alarm           // rings when the children change; nil: latest is out of date
	looking  bool             // a look is under way or due
	due      *time.Timer      // begins the look that is due; nil: it has begun
	next     boottime.Instant // the next look is not before this
}

// pace is the least time between two looks at a queue of that length. A crowd may arrive one by
// one, and each look lists all of them.
func pace(length int) time.Duration {
	const perMillisecond = 20
	return min(time.Duration(length/perMillisecond)*time.Millisecond, time.Second)
}

// latest returns the last waiter among nodes, and the last waiter of another owner. The first
// holders of nodes hold.
func latest(nodes []node, holders int) (found []node) {
	for i := len(nodes) - 1; i >= holders && len(found) < 2; i-- {
		if n := nodes[i]; !n.passing && (len(found) == 0 || n.guid != found[0].guid) {
			found = append(found, n)
		}
	}
	return found
}

// add makes r notify c while it holds. nodes are the queue as it was recently seen, of which the
// first holders hold; nil: it was not seen. If others wait in it, c is notified at once, and the
// first look is later, when c may well be gone.
func (r *recalls) add(c *claim, nodes []node, holders int) {
	if c.req.Wanted == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.silent {
		return
	}
	l := r.of[c.parent]
	if l == nil {
		l = &lookout{parent: c.parent, resource: c.req.Resource, holders: make(map[*claim]*node, 1)}
		r.of[c.parent] = l
	}
	l.holders[c] = nil
	if !l.upToDate() {
		l.latest = latest(nodes, holders)
	}
	if l.wants(c) {
		go c.req.Wanted()
		l.next = r.s.d.clock.Now().Add(max(watchAfter, pace(len(nodes))))
	}
	r.look(l)
}

// silence stops notifying c when its Release begins, or allows it again when a Try begins.
func (r *recalls) silence(c *claim, silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.silent = silent; silent {
		r.forget(c)
	}
}

// drop undoes add.
func (r *recalls) drop(c *claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(c)
}

// forget is drop. Requires r.mu.
func (r *recalls) forget(c *claim) {
	l := r.of[c.parent]
	if l == nil {
		return
	}
	delete(l.holders, c)
	if len(l.holders) == 0 && l.due != nil && l.due.Stop() {
		l.looking, l.due = false, nil
	}
	r.tidy(l)
}

// renewed notifies c after a renewal, even of waiters that it was notified of before. Call it
// without c.mu.
func (r *recalls) renewed(c *claim) {
	if r.wants(c) {
		c.req.Wanted()
	}
}

func (r *recalls) wants(c *claim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.of[c.parent]
	if l == nil {
		return false
	}
	if _, ok := l.holders[c]; !ok {
		return false
	}
	l.holders[c] = nil
	r.look(l) // it notifies c, unless the list is up to date
	return l.upToDate() && l.wants(c)
}

// upToDate reports whether nothing has changed since the last list. Requires the mutex.
func (l *lookout) upToDate() bool { return l.alarm != nil && !l.looking }

// wants reports whether there is a waiter that c was not notified of, and records that it is now
// notified. Requires the mutex.
func (l *lookout) wants(c *claim) bool {
	for i := range l.latest {
		n, told := &l.latest[i], l.holders[c]
		switch {
		case n.guid == c.guid:
			continue
		case told != nil && n.seq-told.seq <= 0: // sequence numbers wrap around
			return false
		}
		l.holders[c] = n
		return true
	}
	return false
}

// look starts a look, unless the list is up to date or a look is under way or due. Requires r.mu.
func (r *recalls) look(l *lookout) {
	if l.looking || l.alarm != nil {
		return
	}
	l.looking = true
	l.due = time.AfterFunc(max(0, l.next.Sub(r.s.d.clock.Now())), func() {
		for r.looks(l) {
		}
	})
}

// looks makes one look. It reports whether its connection has ended, so that another look must
// follow.
func (r *recalls) looks(l *lookout) (again bool) {
	a := &alarm{}
	a.ring = func(bool) { r.changed(l, a) }
	if !r.begin(l, a) {
		return false
	}
	nodes, holders, err := r.list(l, a)
	for _, c := range r.end(l, a, nodes, holders, err) {
		if c.holds(r.s.d.clock.Now()) == nil { // the lease may have ended while the process was stopped
			c.req.Wanted()
		}
	}
	return hasEnded(err)
}

// begin reports whether a look has holders to notify.
func (r *recalls) begin(l *lookout, a *alarm) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.due = nil
	if len(l.holders) == 0 {
		l.looking = false
		r.tidy(l)
		return false
	}
	l.alarm = a
	return true
}

// list lists the children and arms a. It returns them, and how many of them hold. It waits for
// servers that are away as long as the session can last.
func (r *recalls) list(l *lookout, a *alarm) (nodes []node, holders int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.s.timeout)
	defer cancel()
	client, err := r.s.outlast(ctx)
	if err != nil {
		return nil, 0, err
	}
	names, stat, err := r.s.watches.children(client, l.parent, a)
	if err != nil {
		return nil, 0, err
	}
	if nodes, err = parseNodes(names); err != nil {
		return nil, 0, err
	}
	if holders = holding(nodes, 0); holders > 1 { // a single holder needs no limit
		op, err := r.s.limits.find(ctx, client, l.resource)
		if err != nil {
			return nil, 0, err
		}
		holders = op.holding(line{nodes, stat.Czxid})
	}
	return nodes, holders, nil
}

// end records the outcome of a look and returns the claims to notify. After a failure the next
// renewal starts another look, unless looks continues.
func (r *recalls) end(l *lookout, a *alarm, nodes []node, holders int, err error) (wanted []*claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.tidy(l)
	if err != nil {
		l.alarm, l.looking = nil, hasEnded(err)
		return nil
	}
	l.looking, l.latest, l.next = false, latest(nodes, holders), r.s.d.clock.Now().Add(pace(len(nodes)))
	for c := range l.holders {
		if l.wants(c) {
			wanted = append(wanted, c)
		}
	}
	if len(l.holders) > 0 {
		r.look(l) // looks again if something has changed meanwhile
	}
	return wanted
}

// changed is called when a rings: the children have changed, or the session has ended.
func (r *recalls) changed(l *lookout, a *alarm) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.alarm != a {
		return
	}
	l.alarm = nil
	if len(l.holders) > 0 {
		r.look(l)
	}
	r.tidy(l)
}

// tidy forgets a lookout that has no holders and no armed watch. Requires r.mu.
func (r *recalls) tidy(l *lookout) {
	if len(l.holders) == 0 && l.alarm == nil && !l.looking && r.of[l.parent] == l {
		delete(r.of, l.parent)
	}
}
