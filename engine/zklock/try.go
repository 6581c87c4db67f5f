package zklock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// maxAge is the part of the session's timeout for which an answer of the leader is recent enough
// for a grant. It saves a waiter a question to the leader, which costs the servers between twice
// the time.
const maxAge = 20

// attempt queues, unless that is done, and checks whether the claim holds. It checks again after
// changes meanwhile.
func (c *claim) attempt(ctx context.Context, asked boottime.Instant) (driver.Grant, error) {
	if c.tooHeavy(0) {
		return driver.Grant{}, driver.ErrTooHeavy
	}
	for ctx.Err() == nil {
		client, err := c.connected(ctx)
		if err != nil {
			return driver.Grant{}, err
		}
		if busy := c.stays(asked); busy != nil {
			return driver.Grant{}, busy
		}
		_, greeting, isUp := c.s.current()
		names, op, err := c.enterUnder(ctx, client)
		if err == nil && c.tooHeavy(op.Limit) {
			err = c.heavier(ctx, client, op)
		}
		switch {
		case errors.Is(err, errGone):
			continue
		case err != nil:
			return driver.Grant{}, err
		}
		nodes, me, err := c.look(client, names)
		switch {
		case errors.Is(err, errGone):
			c.forget() // its node was deleted by hand, or with the session, so queue anew
			continue
		case err != nil:
			return driver.Grant{}, err
		}
		if _, now, _ := c.s.current(); op.known != nil && (!isUp || now != greeting || op.known.isOutOfDate()) {
			continue // the limit may be newer than the list
		}
		if proof := c.s.proof(); me < holding(nodes, op.Limit) {
			if proof.session != c.node.session {
				continue // one of them has just ended
			}
			return c.granted(asked, proof.lasts, nodes, op.Limit)
		}
		err = c.refused(ctx, client, &view{nodes: nodes, greeting: greeting, seen: asked}, me, op)
		if !errors.Is(err, errGone) {
			return driver.Grant{}, err
		}
	}
	return driver.Grant{}, ctx.Err()
}

// tooHeavy reports whether the claim weighs more than its own limit or the operator's, so that it
// can never hold.
func (c *claim) tooHeavy(limit int) bool {
	return queue.Claim{Mode: c.req.Mode, Limit: queue.Smaller(c.req.Limit, limit), Weight: c.req.Weight}.TooHeavy()
}

// enterUnder is enter, and also finds the operator's limit. A claim that is known to be too heavy
// for it does not enter.
func (c *claim) enterUnder(ctx context.Context, client *zk.Conn) (names []string, op effective, err error) {
	isKnown := c.req.Mode == driver.Exclusive
	if !isKnown {
		op, isKnown = c.s.limits.at(c.req.Resource)
	}
	switch {
	case !isKnown:
		err = both(
			func() (err error) { names, err = c.enter(ctx, client); return err },
			func() (err error) { op, err = c.s.limits.find(ctx, client, c.req.Resource); return err })
	case c.node != nil || c.uncertain || !c.tooHeavy(op.Limit):
		names, err = c.enter(ctx, client)
	}
	return names, op, err
}

// heavier gives up a claim that weighs more than an operator's limit, and returns ErrTooHeavy. It
// asks the leader, because a server that lags behind may not know a higher limit yet. errGone means
// that the limit has changed.
func (c *claim) heavier(ctx context.Context, client *zk.Conn, op effective) error {
	if err := c.s.sync(client, c.parent); err != nil {
		return err
	}
	if op.known.isOutOfDate() {
		return errGone
	}
	return cmp.Or(unlessLost(c.leave(ctx)), driver.ErrTooHeavy)
}

// connected returns the connection. A claim in the queue has time while its place is kept, so it
// waits for servers to come back instead of asking repeatedly.
func (c *claim) connected(ctx context.Context) (*zk.Conn, error) {
	if q, ok := c.current().(*queued); !ok || q.wake == nil {
		return c.s.ready(ctx)
	}
	away, cancel := context.WithTimeout(ctx, keepPlace)
	defer cancel()
	client, err := c.s.outlast(away)
	if err != nil && away.Err() != nil && ctx.Err() == nil {
		err = errAway
	}
	return client, err
}

// errAway is not an error of a context, because the caller's context has not ended.
var errAway = errors.New("zklock: the servers are away, and the place in the queue is about to end")

// enter ensures that the claim has a node. It returns the claims if they were listed with it, else
// nil.
func (c *claim) enter(ctx context.Context, client *zk.Conn) ([]string, error) {
	if c.node != nil && c.node.session != 0 && !c.s.carries(c.node.session) {
		c.forget() // the ensemble has removed the node
	}
	if c.uncertain {
		if err := c.find(client); err != nil {
			return nil, err
		}
	}
	if c.node != nil {
		return nil, nil
	}
	asked := c.s.d.clock.Now()
	c.entering()
	prefix := c.parent + "/" + namePrefix(&c.req, c.s.d.exclusive)
	path, names, err := c.s.create(ctx, client, c.parent, prefix, details{Owner: c.req.Owner, Note: c.req.Note}.encode())
	if err := c.entered(asked, path, err); err != nil || !slices.Contains(names, c.node.name) {
		return nil, err
	}
	return names, nil
}

// entering is called before a creation is sent. If nobody takes its answer, the timer looks for the
// node.
func (c *claim) entering() {
	c.behind, c.after = false, ""
	c.uncertain = true
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = nil
	c.become(&queued{})
}

// entered applies the answer to a creation that was requested at asked.
func (c *claim) entered(asked boottime.Instant, path string, err error) error {
	switch {
	case err == nil:
	case answered(err):
		c.forget()
		return err
	default:
		return err
	}
	c.found(path[strings.LastIndexByte(path, '/')+1:])
	if v, ok := c.s.births.LoadAndDelete(path); ok { // otherwise identify reads it
		b := v.(birth)
		c.node.session, c.node.fence = b.session, driver.FenceOf(b.zxid)
		c.s.prove(b.session, asked)
	}
	return nil
}

// find looks for a node that a creation without an answer may have made. The package comment
// explains why that takes a sync.
func (c *claim) find(client *zk.Conn) error {
	err := c.s.sync(client, c.parent)
	if errors.Is(err, errDisturbed) { // the node is to be found on a connection that proves nothing, too
		err = caughtUp(client, c.parent)
	}
	if err != nil {
		return err
	}
	names, _, err := client.Children(c.parent)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return explain(err)
	}
	c.looked(names)
	return nil
}

// looked applies the result of find: names are the nodes that it saw.
func (c *claim) looked(names []string) {
	for _, name := range names {
		if n, err := parseNode(name); err == nil && n.guid == c.guid {
			c.found(name)
			return
		}
	}
	c.forget()
}

// found takes the node of that name as the claim's node.
func (c *claim) found(name string) {
	c.node, c.uncertain = &own{name: name}, false
}

// look finds the claim's node among all nodes of the resource. It lists them unless names has them.
// errGone means that the node does not exist.
//
// It also ensures that the leader has recently confirmed the session, because this server may not
// know yet that the session has ended.
func (c *claim) look(client *zk.Conn, names []string) (nodes []node, me int, err error) {
	list := func() (err error) {
		if names == nil {
			names, _, err = client.Children(c.parent)
		}
		return explain(err)
	}
	at := c.s.proof().at
	switch {
	case c.node.session == 0:
		err = both(list, func() error { return c.identify(client) })
	case c.s.d.clock.Now().Sub(at) > c.s.timeout/maxAge:
		err = both(list, func() error { return c.s.sync(client, c.parent) })
	default:
		err = list()
	}
	switch {
	case errors.Is(err, zk.ErrNoNode), err == nil && !c.s.carries(c.node.session):
		return nil, 0, errGone
	case err != nil:
		return nil, 0, err
	}
	if nodes, err = parseNodes(names); err != nil {
		return nil, 0, err
	}
	me = slices.IndexFunc(nodes, func(n node) bool { return n.name == c.node.name })
	if me < 0 {
		return nil, 0, errGone
	}
	return nodes, me, nil
}

// identify reads the missing data of a node that was found.
func (c *claim) identify(client *zk.Conn) error {
	exists, stat, err := client.Exists(c.path())
	switch {
	case err != nil:
		return explain(err)
	case !exists:
		return errGone
	}
	c.node.session, c.node.fence = stat.EphemeralOwner, driver.FenceOf(stat.Czxid)
	return nil
}

// granted makes the claim held, by the answer to a call that was made at asked, until lasts at
// most, when the session may end. nodes are the queue as it was recently seen, nil if it was not
// seen. limit is an operator's.
func (c *claim) granted(asked, lasts boottime.Instant, nodes []node, limit int) (driver.Grant, error) {
	ttl := min(c.req.TTL, lasts.Sub(asked))
	if ttl <= 0 {
		return driver.Grant{}, errStalled
	}
	c.stopWaiting()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.s.keep(c) {
		return driver.Grant{}, driver.ErrClosed
	}
	if err := c.s.refusal(); err != nil { // its holders were notified before this claim was one
		c.s.drop(c)
		return driver.Grant{}, err
	}
	h := &held{expires: asked.Add(ttl)}
	if c.node.alarm == nil {
		h.watchAt = c.s.d.clock.Now().Add(watchAfter)
	}
	c.become(h)
	c.s.recalls.add(c, nodes, holding(nodes, limit))
	return driver.Grant{TTL: ttl, Fence: c.node.fence}, nil
}

// errStalled means that the last contact that the leader is known to have is too long ago for a
// grant.
var errStalled = errors.New("zklock: the ensemble may not have heard of the session for too long")

// refused keeps the claim's place in the queue of v if it wants one, and otherwise gives it up. It
// returns the refusal, or why there is none.
func (c *claim) refused(ctx context.Context, client *zk.Conn, v *view, me int, op effective) error {
	first := v.nodes[0]
	tell := func() (err error) { v.holder, err = holderOf(client, c.parent, first); return err }
	if !c.req.Queue {
		if err := both(func() error { return unlessLost(c.leave(ctx)) }, tell); err != nil {
			return err
		}
		return &driver.Busy{Holder: v.holder}
	}
	ahead := blockers(v.nodes, me, op.Limit)
	w, seen, err := c.await(client, ahead, op, queue.IsNext(v.nodes, me, under(op.Limit)), v.seen)
	if err != nil {
		return err
	}
	switch v.told = true; {
	case seen.stat != nil && ahead[0].name == first.name:
		v.holder = seen.holder(first)
	case c.s.moves(c.parent, first):
		v.told = false
	default:
		if err := tell(); err != nil {
			return err
		}
	}
	c.s.saw(c.parent, v)
	return &driver.Busy{Wake: w.rung, Granted: w.granted, Retry: keepPlace, Holder: v.holder}
}

// remove deletes the node. ErrLost means that there was none.
func (c *claim) remove(ctx context.Context) error {
	if c.node == nil && !c.uncertain {
		return errNotHeld
	}
	client, err := c.s.reach(ctx)
	if err != nil {
		return err
	}
	if c.uncertain {
		if err := c.find(client); err != nil {
			return err
		}
	}
	switch {
	case c.node == nil:
		return errNotHeld
	case c.node.session != 0 && !c.s.carries(c.node.session):
		return lostFor("it ended with its session")
	}
	err = client.Delete(c.path(), -1)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) {
		return lostFor("its node is gone")
	}
	return explain(err)
}
