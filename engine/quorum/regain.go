package quorum

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A standing says how the lease of a claim stands at a node. A node may lose the lease in a
// restart, or because it was away for a TTL. After each renewal that a majority confirms, such a
// node is asked for the lease again. Otherwise nodes that are away one after another would end
// leases that are held for long.
//
// Such a grant does not count at once. The call may have been in flight while the lease was ended
// at the other nodes and another owner held it. The grant counts when a later round of renewals
// finds a majority among the nodes that count. They held the lease while this node did, so nobody
// else has had it since.
type standing uint8

const (
	away     standing = iota // the node has not said that it has the lease, or said that it lost it
	regained                 // it has the lease again, which does not count yet
	counts                   // it has had the lease while a majority had it
)

// errRegained is the error of a renewal or a release at a node that does not count yet.
var errRegained = errors.New("it lost the lease, and what it has again does not count yet")

// granted records a yes to a Try of a round that began at start. held reports whether the claim
// held then. A yes that took longer than a call may is like one that regains the lease: the claim
// may have been evicted from the nodes that made the grant, and another may have held since.
func (c *claim) granted(p *part, start boottime.Instant, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !held && c.d.clock.Now().Sub(start) > p.node.timeout:
		p.standing, p.since = regained, c.rounds
	case !held:
		p.standing = counts
	case p.repeated:
		p.repeated = p.standing == counts
	default:
		p.standing = away
	}
}

// hold records the nodes that made a grant together.
func (c *claim) hold(yes []answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range yes {
		a.part.standing = counts
	}
	c.held = true
}

// begin counts a round of renewals, before it is sent.
func (c *claim) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds++
}

// counted records the outcome of a renewal or a release at p, and returns it. A success at a node
// that does not count is errRegained.
func (c *claim) counted(p *part, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, driver.ErrLost):
		p.standing = away
	case err == nil && p.standing != counts:
		return errRegained
	}
	return err
}

// regain follows a round of renewals that a majority confirmed. Nodes that were regained before it
// count from now on. Nodes without the lease are asked for it in the background.
func (c *claim) regain(ttl time.Duration) {
	ready := c.ready()
	var missing []*part
	c.mu.Lock()
	for _, p := range c.parts {
		if p.standing == regained && p.since < c.rounds {
			p.standing = counts
		}
	}
	for _, p := range ready {
		if p.standing == away && !p.node.isDown() {
			missing = append(missing, p)
		}
	}
	c.mu.Unlock()
	for _, p := range missing {
		c.again(p, ttl, c.fence)
	}
}

// again asks p for the lease, after earlier calls to p and until its next renewal is due.
func (c *claim) again(p *part, ttl time.Duration, fence uint64) {
	c.inTurn(p, func() {
		ctx, cancel := context.WithTimeout(c.d.life, ttl/3)
		defer cancel()
		_ = p.node.renew(ctx, func(ctx context.Context) error { return c.regainAt(ctx, p, ttl, fence) }) // if it fails, the next renewal tries again
	})
}

func (c *claim) regainAt(ctx context.Context, p *part, ttl time.Duration, fence uint64) error {
	c.mu.Lock()
	has := p.standing != away // the call before has regained it, and took longer than a round of renewals
	if !has {
		p.lost = false
	}
	c.mu.Unlock()
	if has {
		return nil
	}
	g, err := p.claim.Try(ctx)
	if err != nil {
		return err
	}
	p.fence = g.Fence
	if ttl != c.req.TTL {
		_, err = p.claim.Renew(ctx, ttl)
	}
	if err == nil && c.d.features.Fencing { // the nodes that knew the fence may have lost it
		err = c.liftAt(ctx, p, fence)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.standing, p.since = regained, c.rounds
	return nil
}
