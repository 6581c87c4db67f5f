package zklock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/onecall"
)

// claim implements driver.Claim. A call that its caller has given up continues, and the next one
// waits for it, so that nothing takes effect after a later call.
type claim struct {
	s      *session
	req    driver.Request
	parent string
	guid   string
	calls  onecall.Gate // a call must begin here to use the claim
	silent bool         // guarded by recalls.mu; Release has begun: a grant that comes now notifies nobody

	node      *own   // guarded by calls; nil: no known node
	uncertain bool   // guarded by calls; a creation had no answer: its node may exist, or still come
	behind    bool   // guarded by calls; Release has left another node behind, and has to remove its own
	after     string // guarded by calls; the path of the node that Release may have left behind; "": none

	mu     sync.Mutex
	phase  phase            // guarded by mu
	lost   error            // guarded by mu; why the last lease has ended; nil: it was given up, or there was none
	trying int              // guarded by mu; calls of Try whose callers wait for the answer
	tried  boottime.Instant // guarded by mu; when the last Try returned
	timer  *time.Timer      // guarded by mu; nil until the timer is needed
}

// own is the claim's node.
type own struct {
	name    string
	session int64  // the session of the node; 0: not known yet
	fence   uint64 // the node's czxid; 0: not known yet
	lingers bool   // it may leave another node in its place

	watchedOn int    // greeting of the connection that has the watch
	alarm     *alarm // guarded by the claim's mu; nil: nothing reports the node's events
}

func newClaim(s *session, req driver.Request) *claim {
	return &claim{s: s, req: req, parent: s.d.path(req.Resource), guid: guidOf(req.Owner), calls: onecall.New(), phase: idle{}}
}

// exclusively makes one call of the claim, after earlier ones whose callers gave up.
func exclusively[T any](ctx context.Context, c *claim, call func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	if err := c.calls.Begin(ctx); err != nil {
		return none, err
	}
	return abandon.Call(ctx, func() (T, error) {
		defer c.calls.End()
		return call()
	})
}

// path returns the path of the claim's node.
func (c *claim) path() string { return c.parent + "/" + c.node.name }

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	asked := c.s.d.clock.Now() // the ensemble's contacts with this call are later
	c.s.recalls.silence(c, false)
	defer c.attend()()
	return exclusively(ctx, c, func() (driver.Grant, error) {
		g, err := c.try(ctx, asked)
		for hasEnded(err) && ctx.Err() == nil { // another connection carries the session on; attempt looks for a node that was requested
			g, err = c.try(ctx, asked)
		}
		return g, err
	})
}

// hasEnded reports whether a call failed because its connection ended, as when the server is
// silent.
func hasEnded(err error) bool { return errors.Is(err, zk.ErrConnectionClosed) }

func (c *claim) try(ctx context.Context, asked boottime.Instant) (driver.Grant, error) {
	if g, err := c.renew(ctx, asked); !errors.Is(err, driver.ErrLost) {
		return g, err
	}
	if _, ok := c.current().(*leaving); ok {
		if err := unlessLost(c.leave(ctx)); err != nil {
			return driver.Grant{}, err
		}
	}
	return c.attempt(ctx, asked)
}

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if ttl != c.req.TTL {
		return driver.Grant{}, otherTTL(ttl, c.req.TTL)
	}
	asked := c.s.d.clock.Now()
	return exclusively(ctx, c, func() (driver.Grant, error) { return c.renew(ctx, asked) })
}

func (c *claim) renew(ctx context.Context, asked boottime.Instant) (driver.Grant, error) {
	for {
		if err := c.holds(asked); err != nil {
			return driver.Grant{}, err
		}
		if err := c.watch(ctx); err != nil {
			return driver.Grant{}, err
		}
		err := c.s.alive(ctx)
		g, err := c.renewed(asked, c.s.proof(), err)
		if err == nil {
			c.s.recalls.renewed(c)
		}
		if !errors.Is(err, errDisturbed) || ctx.Err() != nil {
			return g, err
		}
	}
}

// renewed returns the outcome of a renewal whose sync ended with err and left proof. Events of the
// node from before the sync have been handled.
func (c *claim) renewed(asked boottime.Instant, proof proof, err error) (driver.Grant, error) {
	ttl := min(c.req.TTL, proof.lasts.Sub(asked))
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ended := c.lease(asked)
	switch {
	case ended != nil:
		return driver.Grant{}, ended
	case err != nil:
		return driver.Grant{}, err
	case c.node.alarm == nil:
		return driver.Grant{}, errDisturbed
	case proof.session != c.node.session:
		return driver.Grant{}, errExpired
	case ttl <= 0:
		return driver.Grant{}, errStalled
	}
	h.expires, h.offered = asked.Add(ttl), nil
	return driver.Grant{TTL: ttl, Fence: c.node.fence}, nil
}

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	if err := how.Check(c.s.d.Features()); err != nil {
		return err
	}
	c.s.recalls.silence(c, true)
	if how.Linger > 0 {
		return c.linger(ctx, how.Linger)
	}
	now := c.s.d.clock.Now()
	_, err := exclusively(ctx, c, func() (struct{}, error) {
		ended := c.holds(now)
		err := c.leave(ctx)
		if hasEnded(err) && ctx.Err() == nil && c.leave(ctx) == nil { // the first attempt may have removed the node
			err = nil
		}
		if errors.Is(ended, errNotHeld) { // it was queued
			ended = nil
		}
		if err == nil || ended != nil && errors.Is(err, driver.ErrLost) { // err says that the node is gone, but not why
			err = ended
		}
		return struct{}{}, err
	})
	return err
}

// leave gives up the node. ErrLost means that there was none. After any other error it may still
// exist, and the timer tries again.
func (c *claim) leave(ctx context.Context) error {
	c.giveUp()
	return c.left(c.remove(ctx))
}

// giveUp precedes each attempt to remove the node.
func (c *claim) giveUp() {
	c.stopWaiting()
	c.unwatch()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := c.phase.(type) {
	case idle:
	case *leaving:
		p.at = c.s.d.clock.Now().Add(againAfter)
		c.arm()
	default:
		c.become(&leaving{at: c.s.d.clock.Now().Add(againAfter)})
	}
}

// left applies the outcome of an attempt to remove the node.
func (c *claim) left(err error) error {
	if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrClosed) { // the node is gone with the session
		c.forget()
	}
	return err
}

// forget is called when the node is gone and none can come.
func (c *claim) forget() {
	c.stopWaiting()
	c.unwatch()
	c.node, c.uncertain = nil, false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.become(idle{})
}

// unlessLost returns err, or nil if it says that there was nothing to give up.
func unlessLost(err error) error {
	if errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}

// watch begins to report events of the lease's node to the claim. ErrLost means that the node is
// gone.
func (c *claim) watch(ctx context.Context) error {
	if c.isWatched() {
		return nil
	}
	c.mu.Lock()
	if h, ok := c.phase.(*held); ok {
		h.watchAt = 0
		c.arm()
	}
	c.mu.Unlock()
	client, err := c.s.ready(ctx)
	if err != nil {
		return err
	}
	err = c.listen(client)
	switch {
	case errors.Is(err, errGone):
		return c.gone(client)
	case err != nil:
		c.unwatch()
	case !c.s.carries(c.node.session): // and this server may not know that yet
		go c.lose(errExpired)()
		return errExpired
	}
	return err
}

func (c *claim) isWatched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node.alarm != nil
}

// listen asks the ensemble to report events of the node, unless that was done before. errGone means
// that the node does not exist.
func (c *claim) listen(client *zk.Conn) error {
	if c.isWatched() {
		return nil
	}
	node, a := c.node, &alarm{}
	a.ring = func(bool) { c.disturbed(node, a) }
	_, node.watchedOn, _ = c.s.current()
	c.mu.Lock()
	node.alarm = a
	c.mu.Unlock()
	_, err := c.s.watches.listen(client, c.path(), a)
	return err
}

// unwatch stops the reports of its node's events to the claim.
func (c *claim) unwatch() {
	if c.node == nil {
		return
	}
	c.mu.Lock()
	a := c.node.alarm
	c.node.alarm = nil
	c.mu.Unlock()
	if a != nil {
		c.s.watches.forget(c.path(), a)
	}
}

// disturbed is called when the claim's node was deleted or written by another. It runs in the
// client's own goroutine, which must not wait for an answer, so it leaves the look to the timer.
func (c *claim) disturbed(node *own, a *alarm) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if node.alarm != a {
		return
	}
	node.alarm = nil
	if h, ok := c.phase.(*held); ok {
		h.watchAt = c.s.d.clock.Now()
		c.arm()
	}
}

// gone ends the lease because its node was deleted by another. It returns the reason, if there is
// one.
func (c *claim) gone(client *zk.Conn) error {
	cause := lostFor("its node was deleted")
	if data, _, err := client.Get(c.parent); err == nil {
		if reason, ok := strings.CutPrefix(string(data), evictedMark+c.node.name+" "); ok {
			cause = driver.Evicted(reason)
		}
	}
	go c.lose(cause)()
	return cause
}

// Note implements driver.Claim.
func (c *claim) Note(ctx context.Context, note string) error {
	now := c.s.d.clock.Now()
	_, err := exclusively(ctx, c, func() (struct{}, error) {
		if err := c.holds(now); err != nil {
			return struct{}{}, err
		}
		client, err := c.s.ready(ctx)
		if err == nil {
			err = c.write(client, note)
		}
		if err == nil {
			c.req.Note = note
		}
		return struct{}{}, err
	})
	return err
}

// write replaces the content of the claim's node. ErrLost means that it is gone.
func (c *claim) write(client *zk.Conn, note string) error {
	_, err := client.Set(c.path(), details{Owner: c.req.Owner, Note: note, Lingers: c.node.lingers}.encode(), -1)
	if errors.Is(err, zk.ErrNoNode) {
		return c.gone(client)
	}
	return explain(err)
}
