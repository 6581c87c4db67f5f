package zklock

import (
	"cmp"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/internal/several"
)

// The next of the queue, queue.IsNext, holds when it hears that the node ahead was deleted,
// and asks nobody:
//
//   - Its own node is still there, or it would have heard of that deletion first: events come
//     in the order of the changes. It has to listen to both nodes over one connection, since
//     what another tells of the time before is in no order; and the node ahead must be another
//     session's, since those of one session end in any order.
//   - Operators' limits are what they were: the event of a change has the same alarm ring, which
//     rings but once, and comes before that of a later deletion.
//   - Nobody has come before it: new claims come behind, and a claim that lingers, and so leaves
//     another in its place, says so in its node first, which is a change and no deletion.
//   - How long it holds rests on what the leader has said before the event, which may be late,
//     and counts from its last Try: if less than half of the TTL is left it asks.

// The rule of the queue, for nodes in order.

func (n node) claim() queue.Claim {
	return queue.Claim{Mode: n.mode, Limit: n.limit, Weight: n.weight}
}

// holding returns how many of nodes hold if an operator has set limit.
func holding(nodes []node, limit int) int { return queue.Holding(nodes, under(limit)) }

// blockers returns the nodes before nodes[i] of which at least one must leave before nodes[i] can
// hold; none if it holds.
func blockers(nodes []node, i, limit int) []node {
	var in []node
	for _, j := range queue.Blockers(nodes, i, under(limit)) {
		in = append(in, nodes[j])
	}
	return in
}

// A wake is what a waiting claim listens to.
type wake struct {
	names []string // the nodes of which one must go before it can be granted
	paths []string // of names
	heeds string   // the watch on operators' limits, "": an exclusive claim heeds none
	limit int      // of an operator
	alarm alarm
	rung  chan struct{}

	asked    boottime.Instant  // guarded by the claim's calls; when the last Try began
	greeting int               // of the connection it asks on
	granted  chan driver.Grant // guarded by the claim's calls; nil: whoever is woken must look
}

// await has the claim woken when one of ahead goes, or an operator's limit changes; next says that
// it holds once the one ahead has gone. errGone: that has happened already. It also returns the
// content of the first of them, if it has asked for it.
func (c *claim) await(client *zk.Conn, ahead []node, op effective, next bool, asked boottime.Instant) (*wake, content, error) {
	names, paths := make([]string, len(ahead)), make([]string, len(ahead))
	for i, n := range ahead {
		names[i], paths[i] = n.name, c.parent+"/"+n.name
	}
	q := c.current().(*queued)
	if w := q.wake; w != nil && slices.Equal(w.paths, paths) && !w.hasRung() {
		w.asked = asked
		if !next {
			w.granted = nil
		}
		return w, content{}, nil // armed before, and they are all there
	}
	c.stopWaiting()
	session, greeting, isUp := c.s.current()
	next = next && isUp && session == c.node.session
	w := &wake{names: names, paths: paths, limit: op.Limit, rung: make(chan struct{}), greeting: greeting, asked: asked}
	w.alarm.ring = func(deleted bool) { c.woken(w, deleted) }
	q.wake = w
	if op.known != nil {
		if w.heeds = op.known.key; !c.s.limits.heed(op.known, &w.alarm) {
			c.stopWaiting()
			return nil, content{}, errGone
		}
	}
	seen, err := c.listenTo(client, w, next)
	if err != nil {
		c.stopWaiting()
		return nil, seen, err
	}
	if next && c.endsAlone(seen) {
		w.granted = make(chan driver.Grant, 1)
	}
	return w, seen, nil
}

// listenTo listens to the nodes of w, and to the claim's own if it is the next. It returns the
// content of the first, if it has asked for it.
func (c *claim) listenTo(client *zk.Conn, w *wake, next bool) (content, error) {
	n := len(w.paths)
	if next {
		n++
	}
	seen := make([]content, n)
	errs := several.Errors(n, n, func(i int) (err error) {
		if i < len(w.paths) {
			seen[i], err = c.s.watches.listen(client, w.paths[i], &w.alarm)
		} else if err = c.listen(client); err != nil {
			c.unwatch()
		}
		return err
	})
	return seen[0], cmp.Or(errs...)
}

// endsAlone reports whether the node with that content, which is not known if somebody else
// listens to it, leaves its place empty when it is deleted, and our own node where it is.
func (c *claim) endsAlone(seen content) bool {
	return seen.stat != nil && seen.stat.EphemeralOwner != c.node.session && !lingers(seen.data)
}

// woken runs in the client's own goroutine when something happened to a node that the claim waits
// for. If the claim is next now, it holds.
func (c *claim) woken(w *wake, deleted bool) {
	defer close(w.rung)
	if !deleted || !c.calls.TryBegin() {
		return
	}
	defer c.calls.End()
	lasts := c.s.proof().lasts
	if !c.isFirst(w) || min(lasts, w.asked.Add(c.req.TTL)).Sub(c.s.d.clock.Now()) < c.req.TTL/2 {
		return
	}
	if g, err := c.granted(w.asked, lasts, c.s.behind(c), w.limit); err == nil {
		c.offer(w, g)
	}
}

// isFirst reports whether the claim holds, now that the node that w listens to is deleted.
func (c *claim) isFirst(w *wake) bool {
	_, greeting, _ := c.s.current()
	q, ok := c.current().(*queued)
	return ok && q.wake == w && w.granted != nil && c.isWatched() && c.node.watchedOn == greeting && w.greeting == greeting
}

// offer hands over a grant that no call has just asked for, and that nobody may be there to take.
func (c *claim) offer(w *wake, g driver.Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.phase.(*held); ok {
		h.offered = w.granted
		w.granted <- g
		c.arm()
	}
}

func (w *wake) hasRung() bool {
	select {
	case <-w.rung:
		return true
	default:
		return false
	}
}

// stopWaiting disarms the wake of the queue.
func (c *claim) stopWaiting() {
	q, ok := c.current().(*queued)
	if !ok || q.wake == nil {
		return
	}
	for _, path := range q.wake.paths {
		c.s.watches.forget(path, &q.wake.alarm)
	}
	if q.wake.heeds != "" {
		c.s.watches.forget(q.wake.heeds, &q.wake.alarm)
	}
	q.wake = nil
}
