package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// placeTTL is how long a place in the queue outlives its owner's last Try: a waiter that
	// died in a program that lives delays the others by no more. keepPlace leaves time for a
	// Try that comes late.
	placeTTL  = 4 * time.Second
	keepPlace = 1500 * time.Millisecond
	// watchAfter is how long a lease is held before its node is watched: shorter sections,
	// which end before anybody could delete it by hand, do without.
	watchAfter = 20 * time.Millisecond
	// maxAge is the part of the session's timeout for which an answer of the leader is new
	// enough for a grant. It saves a waiter a question, for which servers in between need
	// twice the time.
	maxAge = 20
	// timersPerTTL is into how many instants the timers of claims fall: the node of one that
	// nobody renews, or tries again, stays for up to a fiftieth of the TTL longer than it must.
	timersPerTTL = 50
	// againAfter is when to try again to remove a node that could not be removed.
	againAfter = time.Second
)

// claim implements driver.Claim and driver.Noter. A call that its caller has given up goes
// on by itself, and the next one waits for it: so nothing takes effect after what came later.
type claim struct {
	d      *Driver
	req    driver.Request
	parent string
	guid   string
	turn   chan struct{} // capacity 1; whoever has put something in has the claim to itself

	node    string         // guarded by turn; name of the claim's node, "" none that we know of
	over    bool           // guarded by turn; the node has been given up and may be there still
	unsure  bool           // guarded by turn; an attempt to create it has an unknown outcome
	lingers bool           // guarded by turn; the node may leave another behind
	session int64          // guarded by turn; that the node hangs on, 0: not known yet
	wake    *wake          // guarded by turn; of the queue, nil: not waiting
	list    <-chan listing // guarded by turn; that was asked for with the node, nil: none was

	watchedOn int // guarded by turn; greeting of the connection that watched was asked on

	mu      sync.Mutex
	fence   uint64            // guarded by mu; czxid of the node, 0: not known yet
	held    bool              // guarded by mu; granted, and not given up
	lost    error             // guarded by mu; why it is not held any more
	expires time.Time         // guarded by mu; when the lease or the place in the queue ends
	trying  int               // guarded by mu; calls of Try whose callers wait for the answer
	place   time.Time         // guarded by mu; when a place in the queue ends, by the end of the last Try
	timer   *time.Timer       // guarded by mu; nil until there is a node
	offered chan driver.Grant // guarded by mu; has what came without a Try until it is taken
	watched *alarm            // guarded by mu; of the own node, nil: none is armed
}

// inTurn makes one call of the claim, after those that were given up before.
func inTurn[T any](ctx context.Context, c *claim, call func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	return run(ctx, func() (T, error) {
		defer c.end()
		return call()
	})
}

// begin takes the turn if that needs no waiting.
func (c *claim) begin() bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (c *claim) end() { <-c.turn }

// path is that of the claim's node.
func (c *claim) path() string { return c.parent + "/" + c.node }

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	asked := time.Now() // the ensemble hears of us after this
	c.stay()
	defer c.stayed()
	return inTurn(ctx, c, func() (driver.Grant, error) {
		if c.live(asked) == nil {
			if g, err := c.renew(ctx, asked); !errors.Is(err, driver.ErrLost) {
				return g, err
			}
		}
		if err := c.clear(ctx); err != nil {
			return driver.Grant{}, err
		}
		return c.attempt(ctx, asked)
	})
}

// attempt queues, if that is not done yet, and looks whether it is our turn. What changes
// meanwhile makes it look again.
func (c *claim) attempt(ctx context.Context, asked time.Time) (driver.Grant, error) {
	for ctx.Err() == nil {
		conn, err := c.connected(ctx)
		if err != nil {
			return driver.Grant{}, err
		}
		if err := c.queue(ctx, conn); err != nil {
			return driver.Grant{}, err
		}
		c.arm(asked.Add(placeTTL))
		nodes, me, err := c.look(conn)
		switch {
		case errors.Is(err, errGone):
			c.forget() // by hand, or with the session: queue anew
			continue
		case err != nil:
			return driver.Grant{}, err
		}
		if proof := c.d.link.proof(); me < holding(nodes) {
			if proof.session != c.session {
				continue // it has ended just now
			}
			return c.granted(asked, proof.lasts)
		}
		busy, err := c.refused(ctx, conn, nodes, me, asked)
		switch {
		case errors.Is(err, errGone):
			continue
		case err != nil:
			return driver.Grant{}, err
		}
		return driver.Grant{}, busy
	}
	return driver.Grant{}, context.Cause(ctx)
}

// connected returns the connection. Who waits in the queue has time, as long as its place is
// kept: it need not ask again and again whether the ensemble is back.
func (c *claim) connected(ctx context.Context) (*zk.Conn, error) {
	if c.wake == nil {
		return c.d.link.ready(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, keepPlace, errAway)
	defer cancel()
	return c.d.link.outlast(ctx)
}

// errAway is no context's error: the caller's goes on.
var errAway = errors.New("zklock: the servers are away, and the place in the queue is about to end")

// look lists the claims of the resource. me is ours among them; errGone: it is not there.
//
// It also makes sure that the leader has lately confirmed the session: this server may not
// have heard yet that it has ended.
func (c *claim) look(conn *zk.Conn) (nodes []node, me int, err error) {
	var names []string
	list := func() (err error) { names, err = c.names(conn); return err }
	at := c.d.link.proof().at
	switch {
	case c.session == 0:
		err = both(list, func() error { return c.identify(conn) })
	case time.Since(at) > c.d.timeout/maxAge:
		err = both(list, func() error { return c.d.link.sync(conn, c.parent) })
	default:
		err = list()
	}
	switch {
	case errors.Is(err, zk.ErrNoNode), err == nil && c.session != c.d.link.current():
		return nil, 0, errGone
	case err != nil:
		return nil, 0, err
	}
	if nodes, err = parseNodes(names); err != nil {
		return nil, 0, err
	}
	return c.amongst(conn, nodes)
}

// identify asks for what is not known of a node that was found.
func (c *claim) identify(conn *zk.Conn) error {
	exists, stat, err := conn.Exists(c.path())
	switch {
	case err != nil:
		return explain(err)
	case !exists:
		return errGone
	}
	c.session = stat.EphemeralOwner
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence = uint64(stat.Czxid)
	return nil
}

// amongst finds the claim's node, and removes others of ours: they could only be in our way.
func (c *claim) amongst(conn *zk.Conn, nodes []node) ([]node, int, error) {
	me := -1
	for i, n := range nodes {
		switch {
		case n.name == c.node:
			me = i
		case n.guid == c.guid:
			if err := conn.Delete(c.parent+"/"+n.name, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
				return nil, 0, explain(err)
			}
			return c.look(conn)
		}
	}
	if me < 0 {
		return nil, 0, errGone
	}
	return nodes, me, nil
}

// granted makes the claim held, by the answer to a call that was made at asked, and for no
// longer than the session lasts in any case.
func (c *claim) granted(asked, lasts time.Time) (driver.Grant, error) {
	ttl := min(c.req.TTL, lasts.Sub(asked))
	if ttl <= 0 {
		return driver.Grant{}, errStalled
	}
	c.stopWaiting()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.d.keep(c) {
		return driver.Grant{}, driver.ErrClosed
	}
	if err := c.d.link.refusal(); err != nil { // its holders were told before this was one
		return driver.Grant{}, err
	}
	c.held, c.lost = true, nil
	c.expires = asked.Add(ttl)
	c.timer.Reset(min(watchAfter, time.Until(c.expires)))
	return driver.Grant{TTL: ttl, Fence: driver.FenceOf(c.fence)}, nil
}

// errStalled: what the leader is known to have heard of us is too long ago for a grant.
var errStalled = errors.New("zklock: the ensemble may not have heard of the session for too long")

// refused keeps the claim's place in the queue, if it wants one, or gives it up.
func (c *claim) refused(ctx context.Context, conn *zk.Conn, nodes []node, me int, asked time.Time) (*driver.Busy, error) {
	var holder driver.Holder
	first, ahead := nodes[0], blockers(nodes, me)
	tell := func() (err error) { holder, err = c.d.holder(conn, c.parent, first); return err }
	if !c.req.Queue {
		err := both(func() error { return unlessLost(c.remove(ctx)) }, tell)
		return &driver.Busy{Holder: holder}, err
	}
	w, seen, err := c.await(conn, ahead, isNext(nodes, me), asked)
	switch {
	case err != nil:
		return nil, err
	case seen.stat != nil && ahead[0].name == first.name:
		holder = holderOf(first, seen)
	default:
		if err := tell(); err != nil {
			return nil, err
		}
	}
	return &driver.Busy{Wake: w.rung, Granted: w.granted, Retry: keepPlace, Holder: holder}, nil
}

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if ttl != c.req.TTL {
		return driver.Grant{}, otherTTL(ttl, c.req.TTL)
	}
	asked := time.Now()
	return inTurn(ctx, c, func() (driver.Grant, error) { return c.renew(ctx, asked) })
}

func (c *claim) renew(ctx context.Context, asked time.Time) (driver.Grant, error) {
	for {
		if err := c.live(asked); err != nil {
			_ = c.clear(ctx) // else the timer does it
			return driver.Grant{}, err
		}
		if err := c.watch(ctx); err != nil {
			return driver.Grant{}, err
		}
		err := c.d.sync(ctx)
		g, err := c.renewed(asked, c.d.link.proof(), err)
		if !errors.Is(err, errDisturbed) || ctx.Err() != nil {
			return g, err
		}
	}
}

// renewed is what comes of a renewal whose sync had the outcome err and left proof. What
// happened to the node before the sync has been heard of.
func (c *claim) renewed(asked time.Time, proof proof, err error) (driver.Grant, error) {
	ttl := min(c.req.TTL, proof.lasts.Sub(asked))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.held:
		return driver.Grant{}, errNotHeld
	case c.lost != nil:
		return driver.Grant{}, c.lost
	case err != nil:
		return driver.Grant{}, err
	case c.watched == nil:
		return driver.Grant{}, errDisturbed
	case proof.session != c.session:
		return driver.Grant{}, errExpired
	case ttl <= 0:
		return driver.Grant{}, errStalled
	}
	c.expires, c.offered = asked.Add(ttl), nil
	return driver.Grant{TTL: ttl, Fence: driver.FenceOf(c.fence)}, nil
}

var errNotHeld = fmt.Errorf("%w: it is not held", driver.ErrLost)

// live returns nil while the lease has not ended, else why it has.
func (c *claim) live(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.held:
		return errNotHeld
	case c.lost == nil && !now.Before(c.expires):
		c.lost = fmt.Errorf("%w: it has expired", driver.ErrLost)
	}
	return c.lost
}

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context) error {
	now := time.Now()
	_, err := inTurn(ctx, c, func() (struct{}, error) {
		ended := c.live(now)
		if err := c.remove(ctx); err != nil {
			return struct{}{}, err
		}
		if errors.Is(ended, errNotHeld) { // it waited
			ended = nil
		}
		return struct{}{}, ended
	})
	return err
}

// Note implements driver.Noter.
func (c *claim) Note(ctx context.Context, note string) error {
	now := time.Now()
	_, err := inTurn(ctx, c, func() (struct{}, error) {
		if err := c.live(now); err != nil {
			return struct{}{}, err
		}
		conn, err := c.d.link.ready(ctx)
		if err != nil {
			return struct{}{}, err
		}
		if err := c.write(conn, note); err != nil {
			return struct{}{}, err
		}
		c.req.Note = note
		return struct{}{}, nil
	})
	return err
}

// write replaces what the claim's node contains. ErrLost: it is gone.
func (c *claim) write(conn *zk.Conn, note string) error {
	_, err := conn.Set(c.path(), details{Owner: c.req.Owner, Note: note, Lingers: c.lingers}.encode(), -1)
	if errors.Is(err, zk.ErrNoNode) {
		return c.gone(conn)
	}
	return explain(err)
}
