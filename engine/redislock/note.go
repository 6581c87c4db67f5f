package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

var scriptNote = &script{name: "note.lua"}

// notes numbers the calls of Note. While an earlier call may still arrive, the server keeps the
// last number, and ignores calls with lower ones.
type notes struct {
	id   string // distinguishes this claim's calls from other claims'; empty: there was no call
	last int64
	late bool // an earlier call had no answer, and the server has no mark against it yet
}

// Note implements driver.Claim.
func (c *claim) Note(ctx context.Context, note string) error {
	k := c.keys
	now, keep := c.nextNote()
	n := c.d.pipelines.newCall(scriptNote)
	n.keys(k, c.req.Owner, kindHistory, kindDetails, kindShares, kindNoted)
	n.args(c.req.Owner, note, now.id, now.last, keep)
	held, err := c.d.askNumber(ctx, k.lock, n, "note")
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.notes.late = false
	c.mu.Unlock()
	if held == 0 {
		return c.why(ctx, c.load().grant.fence)
	}
	return nil
}

// nextNote counts a call. keep is for how long the server must remember its number; 0: no earlier
// call may arrive.
func (c *claim) nextNote() (now notes, keep time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notes.id == "" {
		c.notes.id = fmt.Sprintf("%016x", rand.Uint64())
	}
	if c.notes.late {
		keep = goneTTL
	}
	c.notes.last++
	c.notes.late = true
	return c.notes, keep
}
