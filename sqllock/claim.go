package sqllock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// placeTTL is how long a place in a queue outlives its last Try. A dead waiter
	// delays those behind it by at most so long; one that is paused for longer loses
	// its place.
	placeTTL = 4 * time.Second
	// keepPlace is when a waiter should try again to keep its place: two attempts may
	// fail. Each is a write, so that it is not shorter.
	keepPlace = placeTTL / 4
	// goneTTL is how long an attempt is refused that comes after its claim was given up.
	// Both were sent; only a server or a link that stood still can reverse them.
	goneTTL = 30 * time.Second
)

// claim implements driver.Claim, driver.Lingerer and driver.Noter.
type claim struct {
	d   *Driver
	req driver.Request

	again  bool          // it was tried before: only a look at the row can tell what of it is there
	queued bool          // it may have a place
	unsure bool          // a grant by one statement has an unknown outcome, and may yet come
	late   bool          // so has some write of the whole row, which comes to nothing once the row has changed
	ttl    time.Duration // of the last grant or renewal; 0: unknown
}

// errUndecided: only a look at the row can tell.
var errUndecided = errors.New("undecided")

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	sure := !c.unsure && !c.late
	g, err := c.hurry(ctx)
	if err == nil {
		c.d.watch.disarm(c.req.Owner)
	}
	first, refused := errors.AsType[*driver.Busy](err)
	if err != errUndecided && !(refused && c.req.Queue) {
		return g, err
	}
	if !c.req.Queue {
		return c.contend(ctx, nil)
	}
	// Armed before the state is read: a release from here on closes wake.
	g, err = c.contend(ctx, c.d.watch.arm(&c.req))
	if errors.Is(err, driver.ErrBusy) {
		return g, err
	}
	c.d.watch.disarm(c.req.Owner)
	if err != nil && refused && sure && ctx.Err() != nil {
		// No time to queue, or to hear of it: it is as busy as it was found to be.
		return g, first
	}
	return g, err
}

// hurry grants by one statement where that is enough: a free resource that nobody waits
// for, or whose next one this claim is. It may find out a refusal by a read.
func (c *claim) hurry(ctx context.Context) (driver.Grant, error) {
	text := c.d.texts.grant
	switch {
	case c.queued:
		text = c.d.texts.next
	case c.again:
		return driver.Grant{}, errUndecided
	case c.d.traits.oneWriter:
		// Where writers exclude each other, a refusal must not cost a write.
		if err := c.look(ctx); err != errUndecided {
			return driver.Grant{}, err
		}
	}
	c.again = true
	if c.req.Mode == driver.Exclusive {
		fence, granted, err := c.d.number(ctx, text, c.req.Resource, c.req.Owner, inMillis(c.req.TTL), c.req.Note)
		c.unsure = c.unsure || err != nil && !c.queued
		c.late = c.late || err != nil && c.queued // without its place it comes to nothing
		c.queued = c.queued && !granted
		if err != nil || granted {
			return c.grant(c.req.TTL, fence, err)
		}
		if c.req.Queue {
			return driver.Grant{}, &driver.Busy{Retry: keepPlace}
		}
	}
	if c.req.Queue {
		return driver.Grant{}, errUndecided
	}
	return driver.Grant{}, c.look(ctx)
}

// look returns a *driver.Busy if it reads that somebody is in the way, else errUndecided.
func (c *claim) look(ctx context.Context) error {
	r, err := c.d.lookAt(ctx, c.req.Resource)
	if err != nil {
		return err
	}
	if until := r.obstacle(&c.req); until > 0 && !c.holds(r) {
		return c.refusal(r, until, nil)
	}
	return errUndecided
}

func (c *claim) grant(ttl time.Duration, fence int64, err error) (driver.Grant, error) {
	if err != nil {
		return driver.Grant{}, err
	}
	c.ttl = ttl
	return driver.Grant{TTL: millis(inMillis(ttl)), Fence: driver.FenceOf(fence)}, nil
}

// contend reads the row and takes the resource or a place in the queue. If this process
// dies on the way, a place or a lease may remain that expires.
func (c *claim) contend(ctx context.Context, wake <-chan struct{}) (driver.Grant, error) {
	var fence int64
	var busy *driver.Busy
	err := c.d.change(ctx, c.req.Resource, func(r *resource) bool {
		until := r.obstacle(&c.req)
		if until == 0 || c.holds(r) {
			busy, fence = nil, c.take(r)
			return true
		}
		busy = c.refusal(r, until, wake)
		if c.req.Queue {
			c.queued = true
			c.wait(r)
		}
		return c.req.Queue
	})
	switch {
	case err != nil:
		c.late = true
	case busy != nil:
		return driver.Grant{}, busy
	default:
		c.queued = false
	}
	return c.grant(c.req.TTL, fence, err)
}

// holds reports whether this owner has the lease already.
func (c *claim) holds(r *resource) bool {
	mine := r.claimOf(c.req.Owner)
	return r.heldBy(c.req.Owner) || mine != nil && mine.Status == holding
}

// take notes the grant, or restarts the lease with its fence if this owner has it.
func (c *claim) take(r *resource) (fence int64) {
	held, expires := c.holds(r), r.now+inMillis(c.req.TTL)
	if !held {
		r.lock.fence = r.nextFence()
	}
	if c.req.Mode == driver.Exclusive {
		if !held {
			r.lock.since = r.now
		}
		r.claims = r.without(c.req.Owner)
		r.lock.owner, r.lock.expires, r.lock.note = c.req.Owner, expires, c.req.Note
		return r.lock.fence
	}
	mine := c.row(r)
	if !held {
		mine.Status, mine.Fence, mine.Since = holding, r.lock.fence, r.now
	}
	mine.Expires = expires
	return mine.Fence
}

// wait keeps this owner's place, or queues it behind all others.
func (c *claim) wait(r *resource) { c.row(r).Expires = r.now + inMillis(placeTTL) }

// row is this owner's row, a new one at the end of the queue if it has none.
func (c *claim) row(r *resource) *claimRow {
	if mine := r.claimOf(c.req.Owner); mine != nil {
		return mine
	}
	r.claims = append(r.claims, claimRow{
		Ticket: r.nextTicket(), Owner: c.req.Owner, Mode: c.req.Mode, Limit: c.req.Limit, Since: r.now, Note: c.req.Note,
	})
	return &r.claims[len(r.claims)-1]
}

// refusal says when to try again if nothing wakes the caller: when what is in the way
// first ends by itself, and in a queue soon enough to keep the place.
func (c *claim) refusal(r *resource, until int64, wake <-chan struct{}) *driver.Busy {
	busy := &driver.Busy{Wake: wake, Retry: millis(until - r.now)}
	if c.req.Queue {
		busy.Retry = min(busy.Retry, keepPlace)
	}
	if holders := r.holders(); len(holders) > 0 {
		busy.Holder = holders[0]
	}
	return busy
}

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	one := []driver.Renewal{{Claim: c, TTL: ttl}}
	c.d.RenewAll(ctx, one)
	return one[0].Grant, one[0].Err
}

// renewed is what a renewal comes to.
func (c *claim) renewed(ttl time.Duration, fence int64, err error) (driver.Grant, error) {
	if errors.Is(err, driver.ErrCorrupt) {
		// Such as a file that was replaced: the lease is not where others look for it.
		err = fmt.Errorf("%w: %w", driver.ErrLost, err)
	}
	return c.grant(ttl, fence, err)
}

// restart restarts the lease in r.
func (c *claim) restart(r *resource, ttl time.Duration) (fence int64, err error) {
	err = c.alter(r, func(mine *claimRow) {
		if mine != nil {
			fence, mine.Expires = mine.Fence, r.now+inMillis(ttl)
		} else {
			fence, r.lock.expires = r.lock.fence, r.now+inMillis(ttl)
		}
	})
	return fence, err
}

// lengthens reports whether one statement can renew the lease: one that comes late must
// not make it shorter than its holder believes.
func (c *claim) lengthens(ttl time.Duration) bool {
	return c.req.Mode == driver.Exclusive && c.ttl > 0 && ttl >= c.ttl
}

// alter changes the grant in r by Owner alone, as Resume needs it: mine is a shared one,
// nil for the exclusive one.
func (c *claim) alter(r *resource, change func(mine *claimRow)) error {
	mine := r.claimOf(c.req.Owner)
	switch {
	case mine != nil && mine.Status == holding:
		change(mine)
	case r.heldBy(c.req.Owner):
		change(nil)
	default:
		return r.lost(c.req.Owner)
	}
	return nil
}

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context) error { return c.end(ctx, 0) }

// Linger implements driver.Lingerer.
func (c *claim) Linger(ctx context.Context, d time.Duration) error {
	return c.end(ctx, max(inMillis(d), 0))
}

// end gives up the grant, linger from now, and the place.
func (c *claim) end(ctx context.Context, linger int64) error {
	c.d.watch.disarm(c.req.Owner)
	if c.req.Mode == driver.Exclusive && !c.queued && !c.unsure && !c.late {
		found, err := c.d.changed(ctx, c.d.texts.free, c.req.Resource, c.req.Owner, linger)
		if err != nil || found {
			return err
		}
	}
	var lost error
	err := c.d.change(ctx, c.req.Resource, func(r *resource) bool {
		lost = c.leave(r, linger)
		if c.unsure {
			r.claims = append(r.claims, claimRow{
				Ticket: r.nextTicket(), Owner: c.req.Owner, Status: gone, Expires: r.now + inMillis(goneTTL), Since: r.now,
			})
		}
		return lost == nil || c.unsure || c.late
	})
	if c.late = err != nil; !c.late {
		c.queued, c.unsure = false, false
	}
	return cmp.Or(err, lost)
}

// leave takes this owner out of the resource.
func (c *claim) leave(r *resource, linger int64) error {
	mine := r.claimOf(c.req.Owner)
	switch {
	case r.heldBy(c.req.Owner):
		// An instant that has just passed would come again if the clock is set back.
		r.lock.owner, r.lock.expires = "", 0
		if linger > 0 {
			r.lock.expires = r.now + linger
		}
	case mine == nil:
		return r.lost(c.req.Owner)
	case mine.Status == holding && linger > 0:
		mine.Status, mine.Expires = lingering, r.now+linger
		return nil
	}
	r.claims = r.without(c.req.Owner)
	return nil
}

// lost says why there is nothing left of owner, as far as the row tells.
func (r *resource) lost(owner string) error {
	for _, c := range slices.Backward(r.claims) {
		if c.Status == evicted && c.Owner == owner {
			return fmt.Errorf("%w: evicted: %s", driver.ErrLost, c.Note)
		}
	}
	return fmt.Errorf("%w: expired or released", driver.ErrLost)
}
