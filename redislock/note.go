package redislock

import (
	"context"

	"github.com/leasehold-go/leasehold/driver"
)

var scriptNote = &script{name: "note.lua"}

var _ driver.Noter = (*claim)(nil)

// Note implements driver.Noter.
func (c *claim) Note(ctx context.Context, note string) error {
	k := c.keys
	n := c.d.pipelines.newCall(scriptNote, 4)
	n.text(k.lock)
	n.companions(k, kindHistory, kindDetails, kindShares)
	n.text(c.req.Owner, note)
	reply, err := c.d.ask(ctx, k.lock, n)
	if err != nil {
		return err
	}
	held, err := reply.integer("note")
	switch {
	case err != nil:
		return err
	case held == 0:
		return c.why(ctx, c.load().grant.fence)
	}
	return nil
}
