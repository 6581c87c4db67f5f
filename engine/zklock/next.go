package zklock

import (
	"cmp"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/internal/several"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// The next in the queue (queue.IsNext) holds as soon as it is notified that the node ahead was
// deleted. It need not ask, because:
//
//   - Its own node still exists. Events come in the order of the changes, so it would have been
//     notified of its own deletion first. For this it must listen to both nodes over one
//     connection, because a new connection reports earlier changes in no order. The node ahead
//     must be another session's, because the nodes of one session end in any order.
//   - The operators' limits have not changed. A change rings the same alarm, which rings only
//     once, and its event comes before that of a later deletion.
//   - Nobody has come before it. New claims come behind. A claim that lingers, and so leaves
//     another node in its place, first marks its node, which is a change and not a deletion.
//   - Its lease ends as late as what the leader said before the event allows, and counts from its
//     last Try. If less than half of the TTL is left, it asks.

// under returns a function that returns a claim for the rule of the queue, with an operator's
// limit.
func under(limit int) func(node) queue.Claim {
	return func(n node) queue.Claim {
		return queue.Claim{Mode: n.mode, Limit: queue.Smaller(n.limit, limit), Weight: n.weight}
	}
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

// A wake is what a waiting claim listens to, and how it is woken.
type wake struct {
	names []string  // one of these nodes must go before the claim can be granted
	op    effective // the operator's limit, which must not change
	alarm alarm
	rung  chan struct{}

	asked    boottime.Instant  // guarded by the claim's calls; when the last Try began
	greeting int               // of the connection on which it listens
	granted  chan driver.Grant // guarded by the claim's calls; nil: the claim must look when it is woken
}

// await wakes the claim when one of ahead goes or an operator's limit changes. next says that the
// claim holds once the one ahead has gone. await also returns the content of the first of ahead, if
// it has read it. errGone means that one of these events has happened already.
func (c *claim) await(client *zk.Conn, ahead []node, op effective, next bool, asked boottime.Instant) (*wake, content, error) {
	names := make([]string, len(ahead))
	for i, n := range ahead {
		names[i] = n.name
	}
	q := c.current().(*queued)
	if w := q.wake; w != nil && slices.Equal(w.names, names) && !w.hasRung() {
		w.asked = asked
		if !next {
			w.granted = nil
		}
		return w, content{}, nil // it is armed, and they all existed then
	}
	c.stopWaiting()
	session, greeting, isUp := c.s.current()
	next = next && isUp && session == c.node.session
	w := &wake{names: names, op: op, rung: make(chan struct{}), greeting: greeting, asked: asked}
	w.alarm.ring = func(deleted bool) { c.woken(w, deleted) }
	q.wake = w
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

// listenTo listens to the limit and the nodes of w, and if next, also to the claim's own. It returns
// the content of the first node, if it has read it.
func (c *claim) listenTo(client *zk.Conn, w *wake, next bool) (content, error) {
	if w.op.known != nil && !c.s.limits.heed(w.op.known, &w.alarm) {
		return content{}, errGone
	}
	n := len(w.names)
	if next {
		n++
	}
	seen := make([]content, n)
	errs := several.Errors(n, n, func(i int) (err error) {
		if i < len(w.names) {
			seen[i], err = c.s.watches.listen(client, c.parent+"/"+w.names[i], &w.alarm)
		} else if err = c.listen(client); err != nil {
			c.unwatch()
		}
		return err
	})
	return seen[0], cmp.Or(errs...)
}

// endsAlone reports whether the deletion of the node with that content leaves no other node in its
// place and does not end our own node. The content is unknown, and the result false, if another
// claim listened to the node before.
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
	if g, err := c.granted(w.asked, lasts, c.s.behind(c), w.op.Limit); err == nil {
		c.offer(w, g)
	}
}

// isFirst reports whether the claim holds now that the node of w is deleted.
func (c *claim) isFirst(w *wake) bool {
	_, greeting, _ := c.s.current()
	q, ok := c.current().(*queued)
	return ok && q.wake == w && w.granted != nil && c.isWatched() && c.node.watchedOn == greeting && w.greeting == greeting
}

// offer passes on a grant that came without a call. There may be nobody to take it.
func (c *claim) offer(w *wake, g driver.Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.phase.(*held); ok {
		h.offered = w.granted
		w.granted <- g
		c.arm()
	}
}

func (w *wake) hasRung() bool { return waiting.Closed(w.rung) }

// stopWaiting disarms the wake.
func (c *claim) stopWaiting() {
	q, ok := c.current().(*queued)
	if !ok || q.wake == nil {
		return
	}
	for _, name := range q.wake.names {
		c.s.watches.forget(c.parent+"/"+name, &q.wake.alarm)
	}
	if known := q.wake.op.known; known != nil {
		c.s.watches.forget(known.key, &q.wake.alarm)
	}
	q.wake = nil
}
