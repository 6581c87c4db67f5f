package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
)

// remove gives up the claim's node. ErrLost: there was none. After any other error it may
// be there still: the timer tries again.
func (c *claim) remove(ctx context.Context) error {
	c.stopWaiting()
	c.unwatch()
	c.over = true
	c.mu.Lock()
	c.held, c.offered = false, nil
	c.mu.Unlock()
	c.d.drop(c)
	err := c.delete(ctx)
	switch {
	case err == nil, errors.Is(err, driver.ErrLost), errors.Is(err, driver.ErrClosed): // with the session
		c.forget()
	default:
		c.arm(time.Now().Add(againAfter))
	}
	return err
}

func (c *claim) delete(ctx context.Context) error {
	if c.node == "" && !c.unsure {
		return errNotHeld
	}
	conn, err := c.d.link.ready(ctx)
	if err != nil {
		return err
	}
	if c.unsure {
		if err := c.find(conn); err != nil {
			return err
		}
		c.over = true
	}
	switch {
	case c.node == "":
		return errNotHeld
	case c.session != 0 && c.session != c.d.link.current():
		return fmt.Errorf("%w: it ended with its session", driver.ErrLost)
	}
	err = conn.Delete(c.path(), -1)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) {
		return fmt.Errorf("%w: its node is gone", driver.ErrLost)
	}
	return explain(err)
}

// clear removes what a lease that has ended, or was given up, may have left.
func (c *claim) clear(ctx context.Context) error {
	c.mu.Lock()
	held := c.held
	c.mu.Unlock()
	if !held && !c.over {
		return nil
	}
	return unlessLost(c.remove(ctx))
}

// unlessLost is err, unless it says that there was nothing to give up.
func unlessLost(err error) error {
	if errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}

// stay keeps the place in the queue for a call of Try, however long that takes.
func (c *claim) stay() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying++
}

// stayed is called when a Try returns. The timer looks at it when it fires.
func (c *claim) stayed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying--
	c.place = time.Now().Add(placeTTL)
}

// placeEnds is when the place in the queue ends if nobody tries again. Requires c.mu.
func (c *claim) placeEnds() time.Time {
	if c.trying > 0 {
		return time.Now().Add(placeTTL)
	}
	return c.place
}

// arm sets the timer for the end of a place in the queue, or for another attempt to remove
// the node.
func (c *claim) arm(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expires = until
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(until), c.tick)
		return
	}
	c.timer.Reset(time.Until(until))
}

// tick is the claim's timer: it watches the node of a lease that lasts, and removes that of
// one that nobody has renewed, or of a waiter who never came back. The session would keep
// both for as long as the program runs.
func (c *claim) tick() {
	if c.goesOn() {
		return
	}
	c.turn <- struct{}{}
	defer c.end()
	c.mu.Lock()
	end := c.placeEnds()
	if !c.held && !c.over || time.Until(end) <= 0 && c.untaken() {
		c.expires = end
	}
	left := time.Until(c.expires)
	watch := c.held && c.lost == nil && c.watched == nil
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), againAfter)
	defer cancel()
	var err error
	switch {
	case c.node == "" && !c.unsure:
		return
	case left <= 0:
		_ = c.remove(ctx) // it plans the next attempt itself
		return
	case watch:
		err = c.watch(ctx) // else the next renewal does it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.d.together(c.due())
	if watch && err == nil && c.held && c.lost == nil && c.watched == nil {
		next = 0 // disturbed since
	}
	c.timer.Reset(next)
}

// together is how long it is until the first instant after end at which timers of d's claims
// fire together: thousands of wake-ups of a process that is idle cost more than all else.
func (d *Driver) together(end time.Time) time.Duration {
	step := max(d.ttl/timersPerTTL, time.Millisecond)
	late := step - end.Sub(d.began)%step
	return max(time.Until(end)+late, time.Millisecond)
}

// goesOn sets the timer of a lease that was renewed and is watched: nothing is to be done.
func (c *claim) goesOn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held || c.lost != nil || c.watched == nil || time.Until(c.due()) <= 0 {
		return false
	}
	c.timer.Reset(c.d.together(c.due()))
	return true
}

// due is when the claim's node has to go: with the lease, but a grant that nobody takes lasts
// no longer than the place in the queue would have. Requires c.mu.
func (c *claim) due() time.Time {
	if end := c.placeEnds(); len(c.offered) > 0 && end.Before(c.expires) {
		return end
	}
	return c.expires
}

// untaken takes back a grant that came without a Try, unless somebody has taken it. Requires
// c.mu.
func (c *claim) untaken() bool {
	select {
	case <-c.offered:
		return true
	default:
		return false
	}
}

// watch has the claim told of whatever happens to its node. ErrLost: it is gone.
func (c *claim) watch(ctx context.Context) error {
	c.mu.Lock()
	armed, lost := c.watched != nil, c.lost
	c.mu.Unlock()
	if lost != nil || armed {
		return lost
	}
	conn, err := c.d.link.ready(ctx)
	if err != nil {
		return err
	}
	err = c.listen(conn)
	switch {
	case errors.Is(err, errGone):
		return c.gone(conn)
	case err != nil:
		c.unwatch()
	case c.session != c.d.link.current(): // and this server may not know it yet
		go c.lose(errExpired)()
		return errExpired
	}
	return err
}

// listen asks the ensemble to tell what happens to the claim's node. errGone: it is not there.
func (c *claim) listen(conn *zk.Conn) error {
	a := &alarm{}
	a.ring = func(bool) { c.disturbed(a) }
	_, c.watchedOn, _ = c.d.link.connection()
	c.mu.Lock()
	c.watched = a
	c.mu.Unlock()
	_, err := c.d.watches.listen(conn, c.path(), a)
	return err
}

var errExpired = fmt.Errorf("%w: the session has expired", driver.ErrLost)

// unwatch keeps the claim from being told of its node any more.
func (c *claim) unwatch() {
	c.mu.Lock()
	a := c.watched
	c.watched = nil
	c.mu.Unlock()
	if a != nil {
		c.d.watches.forget(c.path(), a)
	}
}

// disturbed is called when something happened to the claim's node: it was deleted, or
// somebody has written to it. The client's own goroutine must not wait for the answer.
func (c *claim) disturbed(a *alarm) {
	c.mu.Lock()
	if c.watched != a {
		c.mu.Unlock()
		return
	}
	c.watched = nil
	c.timer.Reset(0)
	c.mu.Unlock()
}

// gone ends the lease, because somebody has deleted its node, and says why if they did.
func (c *claim) gone(conn *zk.Conn) error {
	cause := fmt.Errorf("%w: its node was deleted", driver.ErrLost)
	if data, _, err := conn.Get(c.parent); err == nil {
		if reason, ok := strings.CutPrefix(string(data), evictedMark+c.node+" "); ok {
			cause = fmt.Errorf("%w: evicted: %s", driver.ErrLost, reason)
		}
	}
	go c.lose(cause)()
	return cause
}

// lose ends the lease for cause, if it is held, and returns what tells its holder. Who has
// not taken it yet finds that out by the next Try.
func (c *claim) lose(cause error) (tell func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held || c.lost != nil {
		return func() {}
	}
	c.lost = cause
	untaken := c.untaken()
	return func() {
		if c.req.Lost != nil && !untaken {
			c.req.Lost(cause)
		}
	}
}
