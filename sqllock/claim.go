package sqllock

import (
	"context"
	"errors"
	"fmt"
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
)

// claim implements driver.Claim and driver.Lingerer.
type claim struct {
	d   *Driver
	req driver.Request

	// queued: the tables may have a place of this owner, which only the transaction
	// of contend turns into a grant.
	queued bool
}

// errUndecided: only the transaction of contend can tell.
var errUndecided = errors.New("undecided")

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.hurry(ctx)
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
	if err != nil && refused && ctx.Err() != nil {
		// No time to queue, or to hear of it: it is as busy as it was found to be.
		return g, first
	}
	return g, err
}

// hurry does without the transaction where that is enough: a free resource is granted
// by one statement, and a refusal found out by a read.
func (c *claim) hurry(ctx context.Context) (driver.Grant, error) {
	if c.queued {
		return driver.Grant{}, errUndecided
	}
	if c.d.texts.oneWriter {
		// Where writers exclude each other, a refusal must not cost a write.
		if err := c.look(ctx); err != errUndecided {
			return driver.Grant{}, err
		}
	}
	if c.req.Mode == driver.Exclusive {
		fence, granted, err := c.d.number(ctx, c.d.texts.grant, c.req.Resource, c.req.Owner, inMillis(c.req.TTL), c.req.Note)
		if err != nil || granted {
			return c.grant(c.req.TTL, fence, err)
		}
	}
	if c.req.Queue {
		return driver.Grant{}, errUndecided
	}
	return driver.Grant{}, c.look(ctx)
}

// look returns a *driver.Busy if it reads that somebody is in the way, else errUndecided.
func (c *claim) look(ctx context.Context) error {
	all, err := c.d.look(ctx, c.d.texts.state, names(c.req.Resource))
	if err != nil {
		return err
	}
	if len(all) == 0 || c.holds(&all[0]) {
		return errUndecided
	}
	if until := all[0].obstacle(&c.req); until > 0 {
		return c.refusal(&all[0], until, nil)
	}
	return errUndecided
}

func (c *claim) grant(ttl time.Duration, fence int64, err error) (driver.Grant, error) {
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{TTL: millis(inMillis(ttl)), Fence: uint64(fence)}, nil
}

// contend decides in a transaction. If this process dies inside, nothing of it remains;
// after it, a place or a lease remains that expires.
func (c *claim) contend(ctx context.Context, wake <-chan struct{}) (driver.Grant, error) {
	c.queued = c.queued || c.req.Queue
	var fence int64
	var busy *driver.Busy
	err := c.d.transact(ctx, func(on runner) (bool, error) {
		r, err := c.d.enter(ctx, on, c.req.Resource)
		if err != nil {
			return false, err
		}
		until := r.obstacle(&c.req)
		if until == 0 || c.holds(r) {
			busy = nil
			fence, err = c.take(ctx, on, r)
			return true, err
		}
		busy = c.refusal(r, until, wake)
		if !c.req.Queue {
			return false, nil
		}
		return true, c.wait(ctx, on, r)
	})
	if err == nil && busy != nil {
		return driver.Grant{}, busy
	}
	if err == nil {
		c.queued = false
	}
	return c.grant(c.req.TTL, fence, err)
}

// holds reports whether this owner has the lease already.
func (c *claim) holds(r *resource) bool {
	mine := r.claimOf(c.req.Owner)
	return r.heldBy(c.req.Owner) || mine != nil && mine.status == holding
}

// take writes the grant, or restarts the lease with its fence if this owner has it.
func (c *claim) take(ctx context.Context, on runner, r *resource) (fence int64, err error) {
	held, mine, expires := c.holds(r), r.claimOf(c.req.Owner), r.now+inMillis(c.req.TTL)
	if !held {
		r.lock.fence = r.nextFence()
	}
	if c.req.Mode == driver.Exclusive {
		if mine != nil {
			if err := c.d.dropClaim(ctx, on, r, mine); err != nil {
				return 0, err
			}
		}
		if !held {
			r.lock.since = r.now
		}
		r.lock.owner, r.lock.expires, r.lock.note = c.req.Owner, expires, c.req.Note
		return r.lock.fence, c.d.saveLock(ctx, on, r)
	}
	if mine == nil {
		mine = c.row(r)
	}
	if !held {
		mine.status, mine.fence, mine.since = holding, r.lock.fence, r.now
		if err := c.d.saveLock(ctx, on, r); err != nil {
			return 0, err
		}
	}
	mine.expires = expires
	return mine.fence, c.d.saveClaim(ctx, on, r, mine)
}

// wait keeps this owner's place, or queues it behind all others.
func (c *claim) wait(ctx context.Context, on runner, r *resource) error {
	mine := r.claimOf(c.req.Owner)
	if mine == nil {
		mine = c.row(r)
	}
	mine.expires = r.now + inMillis(placeTTL)
	return c.d.saveClaim(ctx, on, r, mine)
}

// row is a new row for this owner, at the end of the queue.
func (c *claim) row(r *resource) *claimRow {
	return &claimRow{ticket: r.nextTicket(), owner: c.req.Owner, mode: c.req.Mode, limit: c.req.Limit, since: r.now, note: c.req.Note}
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
	restart := func(text string) func() (int64, bool, error) {
		return func() (int64, bool, error) {
			return c.d.number(ctx, text, c.req.Resource, c.req.Owner, inMillis(ttl))
		}
	}
	fence, err := c.settle(ctx, restart(c.d.texts.renew), restart(c.d.texts.renewClaim))
	if errors.Is(err, driver.ErrCorrupt) {
		// Such as a file that was replaced: the lease is not where others look for it.
		err = fmt.Errorf("%w: %w", driver.ErrLost, err)
	}
	return c.grant(ttl, fence, err)
}

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context) error {
	return c.end(ctx, 0, c.d.texts.leave, c.req.Resource, c.req.Owner)
}

// Linger implements driver.Lingerer.
func (c *claim) Linger(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return c.Release(ctx)
	}
	return c.end(ctx, inMillis(d), c.d.texts.linger, c.req.Resource, c.req.Owner, inMillis(d))
}

// end gives up an exclusive lease, linger from now, or what the statement shared ends.
func (c *claim) end(ctx context.Context, linger int64, shared string, args ...any) error {
	c.d.watch.disarm(c.req.Owner)
	_, err := c.settle(ctx, func() (int64, bool, error) {
		return c.d.number(ctx, c.d.texts.free, c.req.Resource, c.req.Owner, linger)
	}, func() (int64, bool, error) {
		rows, err := c.d.exec(ctx, shared, args...)
		return rows, rows > 0, err
	})
	return err
}

// settle does what applies to an exclusive lease or else what applies to a row of
// claims, the likelier first: by Owner alone, as Resume needs it. If neither finds a
// thing, the claim is lost.
func (c *claim) settle(ctx context.Context, locks, claims func() (int64, bool, error)) (int64, error) {
	if c.req.Mode == driver.Shared || c.queued {
		locks, claims = claims, locks
	}
	n, found, err := locks()
	if err == nil && !found {
		n, found, err = claims()
	}
	if err == nil && !found {
		err = c.lost(ctx)
	}
	return n, err
}

// lost says why there is nothing left, as far as the tables tell.
func (c *claim) lost(ctx context.Context) error {
	reason, evicted, err := c.d.reason(ctx, c.req.Resource, c.req.Owner)
	switch {
	case err != nil:
		return err // lost for certain, but a caller that asks again may learn why
	case evicted:
		return fmt.Errorf("%w: evicted: %s", driver.ErrLost, reason)
	}
	return fmt.Errorf("%w: expired or released", driver.ErrLost)
}
