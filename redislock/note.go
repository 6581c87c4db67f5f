package redislock

import (
	"context"
	"fmt"

	"github.com/leasehold-go/leasehold/driver"
)

var scriptNote = &script{name: "note.lua"}

var _ driver.Noter = (*claim)(nil)

// Note implements driver.Noter.
func (c *claim) Note(ctx context.Context, note string) error {
	k := c.keys
	all := []string{k.lock, k.companion(kindHistory), k.companion(kindDetails), k.companion(kindShares)}
	reply, err := c.d.run(ctx, scriptNote, all, c.req.Owner, note)
	if err != nil {
		return err
	}
	held, err := reply.Int64()
	switch {
	case err != nil:
		return fmt.Errorf("redislock: alien reply to note: %w", err)
	case held == 0:
		return fmt.Errorf("%w: it expired, or its key was deleted or taken over", driver.ErrLost)
	}
	return nil
}
