package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

var scriptNote = &script{name: "note.lua"}

var _ driver.Noter = (*claim)(nil)

// notes are the calls of Note, which a mark tells apart while those of before may still come.
type notes struct {
	id   string // of the claim; empty: none was made
	last int64
	late bool // an earlier one had no answer, and there is no mark yet
}

// Note implements driver.Noter.
func (c *claim) Note(ctx context.Context, note string) error {
	k := c.keys
	if c.notes.id == "" {
		c.notes.id = fmt.Sprintf("%016x", rand.Uint64())
	}
	c.notes.last++
	keep := time.Duration(0)
	if c.notes.late {
		keep = goneTTL
	}
	n := c.d.pipelines.newCall(scriptNote, 5)
	n.text(k.lock)
	n.companions(k, kindHistory, kindDetails, kindShares)
	n.companionOf(k, kindNoted, c.req.Owner)
	n.text(c.req.Owner, note, c.notes.id)
	n.number(c.notes.last, millis(keep))
	c.notes.late = true
	reply, err := c.d.ask(ctx, k.lock, n)
	if err != nil {
		return err
	}
	held, err := reply.integer("note")
	if err != nil {
		return err
	}
	c.notes.late = false
	if held == 0 {
		return c.why(ctx, c.load().grant.fence)
	}
	return nil
}
