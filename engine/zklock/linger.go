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

// linger ends the lease, and keeps the resource taken without an owner for d. By default the
// ensemble looks once a minute which TTL nodes have expired.
func (c *claim) linger(ctx context.Context, d time.Duration) error {
	now := c.s.d.clock.Now()
	_, err := exclusively(ctx, c, func() (struct{}, error) {
		var err error
		again := c.behind
		if !again {
			if err = c.holds(now); err == nil {
				err = c.leaveBehind(ctx, d)
			}
		}
		if err == nil {
			err = c.leave(ctx)
			c.behind = err != nil && !errors.Is(err, driver.ErrLost)
		}
		if again { // an earlier attempt, or the timer, may have removed the node
			err = unlessLost(err)
		}
		switch {
		case err == nil:
			c.after = ""
		case errors.Is(err, driver.ErrLost): // it may have ended before, so nothing is kept in its place
			c.takeBack(ctx)
		}
		return struct{}{}, err
	})
	return err
}

// leaveBehind makes a node at the place of the claim's node in the order. It belongs to no session
// and no owner. It may exist already, if an answer was lost.
//
// A waiter that listed the claims before waits only for the end of our node, and would then hold.
// So our node is marked first. That wakes all that wait for it, and all that read it later see the
// mark.
func (c *claim) leaveBehind(ctx context.Context, d time.Duration) error {
	client, err := c.s.ready(ctx)
	if err != nil {
		return err
	}
	c.node.lingers = true // even if it is unknown whether that was written
	if err := c.write(client, c.req.Note); err != nil {
		return err
	}
	kind := strings.TrimPrefix(c.node.name, protected+c.guid)
	c.after = c.parent + "/" + protected + guidOf("after "+c.req.Owner) + kind
	err = c.s.creates(func() (string, error) {
		return client.CreateTTL(c.after, details{Note: c.req.Note, Left: true}.encode(), zk.FlagTTL, c.s.d.acl(), max(d, time.Millisecond))
	})
	switch {
	case err == nil, errors.Is(err, zk.ErrNodeExists):
		return nil
	case isCode(err, unimplemented):
		return fmt.Errorf("%w: the ensemble has no TTL nodes, set zookeeper.extendedTypesEnabled", driver.ErrUnsupported)
	}
	return explain(err)
}

// takeBack removes a node that leaveBehind may have made. If that fails, the node ends after its
// time, or the next Release tries again.
func (c *claim) takeBack(ctx context.Context) {
	if c.after == "" {
		return
	}
	if client, err := c.s.reach(ctx); err == nil {
		_ = client.Delete(c.after, -1)
	}
}
