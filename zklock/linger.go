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

// A lingerer is a claim whose server has TTL nodes.
type lingerer struct{ *claim }

// Linger implements driver.Lingerer. The ensemble looks once a minute, unless it is told
// otherwise, which TTL nodes are over.
func (l lingerer) Linger(ctx context.Context, d time.Duration) error {
	now := time.Now()
	_, err := inTurn(ctx, l.claim, func() (struct{}, error) {
		if err := l.live(now); err != nil {
			return struct{}{}, err
		}
		if err := l.leaveBehind(ctx, d); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, l.remove(ctx)
	})
	return err
}

// leaveBehind makes a node that stands where the claim's does in the order, and that no
// session and no owner keeps. It may be there already, if an answer was lost.
//
// Who listed the claims before waits for the end of ours alone, and would take it for its
// turn. So our node tells first: that wakes all who wait for it, and who asks later reads it.
func (c *claim) leaveBehind(ctx context.Context, d time.Duration) error {
	conn, err := c.d.link.ready(ctx)
	if err != nil {
		return err
	}
	if err := c.tellLingering(conn); err != nil {
		return err
	}
	kind := strings.TrimPrefix(c.node, protected+c.guid)
	path := c.parent + "/" + protected + guidOf("after "+c.req.Owner) + kind
	c.d.creating.RLock()
	_, err = conn.CreateTTL(path, details{Note: c.req.Note, Left: true}.encode(), zk.FlagTTL, c.d.acl, max(d, time.Millisecond))
	c.d.creating.RUnlock()
	switch {
	case err == nil, errors.Is(err, zk.ErrNodeExists):
		return nil
	case strings.HasSuffix(err.Error(), unimplemented):
		return fmt.Errorf("%w: the ensemble has no TTL nodes, set zookeeper.extendedTypesEnabled", driver.ErrUnsupported)
	}
	return explain(err)
}

// tellLingering writes into the claim's node that it may leave another behind.
func (c *claim) tellLingering(conn *zk.Conn) error {
	c.lingers = true // also if nobody knows whether it was written
	return c.write(conn, c.req.Note)
}

// claimOf is what is behind a claim of this package.
func claimOf(c driver.Claim) *claim {
	if l, ok := c.(lingerer); ok {
		return l.claim
	}
	return c.(*claim)
}
