package explore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/locktest/explore"
	"github.com/leasehold-go/leasehold/memory"
)

// TestQuorum explores three nodes, of which the clock of one is ahead, and any may restart empty.
func TestQuorum(t *testing.T) {
	all := -1 // changes
	if long() {
		all = 1
	}
	opts := &quorum.Options{NodeTimeout: 600 * time.Millisecond} // longer than some messages are held
	explore.Run(t, explore.Harness{Name: "quorum", For: time.Second, Changes: all, Scenarios: unlessLong("two", "evict"), New: func(w *explore.World) func(*explore.Process) driver.Driver {
		nodes := []*node{{}, {ahead: 3 * time.Second / 2}, {}}
		for i, n := range nodes {
			n.name = fmt.Sprint("n", i+1)
			n.server = memory.NewServer()
			w.OnRestart(n.name, n.restart)
		}
		return func(p *explore.Process) driver.Driver {
			var all []driver.Driver
			for _, n := range nodes {
				all = append(all, p.Link(n.name, &nodeDriver{n.server.Connect(), n}))
			}
			d, err := quorum.New(all, opts)
			if err != nil {
				panic(err)
			}
			return d
		}
	}})
}

// A node is an engine that grants nothing for a while after it has forgotten, as redislock's
// nodes do not.
type node struct {
	name   string
	server *memory.Server
	ahead  time.Duration // its clock, of which only its fences tell
	quiet  time.Time     // until when it grants nothing
}

// memoryOf is for how long a node must be known to remember: the longest TTL of leases at least, and more
// than clocks differ by.
const memoryOf = 4 * time.Second

var errForgetful = errors.New("explore_test: the node may have forgotten")

func (n *node) restart() {
	n.server.Flush()
	n.quiet = time.Now().Add(memoryOf)
}

type nodeDriver struct {
	*memory.Driver
	node *node
}

// Claim does not hear of its loss: a node that restarts tells nobody, and other news may be lost.
func (d *nodeDriver) Claim(req driver.Request) (driver.Claim, error) {
	req.Lost = nil
	c, err := d.Driver.Claim(req)
	return &nodeClaim{c, d, req}, err
}

type nodeClaim struct {
	driver.Claim
	d   *nodeDriver
	req driver.Request
}

func (c *nodeClaim) Try(ctx context.Context) (driver.Grant, error) {
	if time.Now().Before(c.d.node.quiet) {
		return driver.Grant{}, errForgetful
	}
	// Its fences are no less than its clock.
	clock := driver.FenceOf(uint64(time.Now().Add(c.d.node.ahead).UnixMicro()))
	if err := c.d.RaiseFence(ctx, c.req.Resource, clock); err != nil {
		return driver.Grant{}, err
	}
	return c.Claim.Try(ctx)
}

// LiftFence is one step, as the explorer has a node serve one call at a time.
func (c *nodeClaim) LiftFence(ctx context.Context, fence uint64) error {
	state, err := c.d.Inspect(ctx, c.req.Resource)
	if err != nil {
		return err
	}
	for _, h := range state.Holders {
		if h.Owner.Reveal() == c.req.Owner {
			return c.d.RaiseFence(ctx, c.req.Resource, fence)
		}
	}
	return driver.ErrLost
}
