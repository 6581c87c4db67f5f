package redislock

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
)

// The plain case is an exclusive lease that nobody else wants. It has two scripts of its own,
// which cost the server less than acquire.lua and release.lua. They do nothing in any other case, so
// that it costs one command more; a driver therefore remembers where it met others.

// takePlain asks for a grant where the case may be plain; taken is false when that must
// be asked for otherwise.
func (c *claim) takePlain(ctx context.Context) (g driver.Grant, taken bool, err error) {
	d, k, was := c.d, c.keys, c.load()
	if c.req.Mode != driver.Exclusive || was.unsure || was.pending || was.queued || d.history || d.rest > 0 || d.crowds.met(k.lock) {
		return driver.Grant{}, false, nil
	}
	if err := d.usable(ctx); err != nil {
		return driver.Grant{}, false, err
	}
	d.ear.listen(&c.req)
	was.floor = d.fences.last(k.lock)
	// Unknown until there is an answer.
	c.update(func(now *known) { now.unsure, now.floor = true, was.floor })
	fence, reply, err := c.sendTake(ctx)
	switch {
	case err != nil:
		return driver.Grant{}, false, err
	case fence == 0: // or it ran twice and the first answer was lost: acquire.lua finds out
		c.update(func(now *known) { now.unsure = reply.repeated })
		d.crowds.meet(k.lock)
		return driver.Grant{}, false, nil
	}
	err = c.accept(ctx, uint64(fence), was, reply)
	c.update(func(now *known) { now.plain = err == nil })
	return c.granted(c.req.TTL, uint64(fence)), true, err
}

// about is what history.lua stores of the claim's grant beside numbers.
func (c *claim) about() []byte {
	channel := c.channel()
	b := make([]byte, 0, 15+len(c.req.Owner)+len(channel)+len(c.req.Note))
	for _, s := range [...]string{c.req.Owner, channel, c.req.Note} {
		b = append(b, 0xdb) // a string with 32 bits of length, in MessagePack
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}

// givePlain gives up a plain grant; given is false when that must be asked for otherwise.
func (c *claim) givePlain(ctx context.Context) (given bool, err error) {
	if err := c.d.usable(ctx); err != nil {
		return false, err
	}
	k := c.keys
	reply, err := c.d.links.of(k.lock).run(ctx, scriptGive, []string{k.lock, k.companion(kindQueue), k.gone(c.req.Owner)}, c.req.Owner)
	switch {
	case err != nil && isReply(err): // it did not run: release.lua may need other permissions
		return false, nil
	case err != nil:
		return false, explain(err)
	}
	n, err := reply.Int64()
	if err != nil {
		return false, fmt.Errorf("redislock: alien reply to give: %w", err)
	}
	if n == 0 {
		c.d.crowds.meet(k.lock)
	}
	return n == 1, nil
}

func (c *claim) sendTake(ctx context.Context) (fence int64, reply answer, err error) {
	d, k := c.d, c.keys
	keys := append([]string{k.lock, k.companion(kindHistory), k.companion(kindQueue), k.gone(c.req.Owner)}, d.markOfMemory()...)
	args := []any{c.req.Owner, millis(c.req.TTL), d.historyLife(c.req.TTL), c.about()}
	if d.memory > 0 {
		args = append(args, millis(d.memory))
	}
	reply, err = d.links.of(k.lock).runAcknowledged(ctx, d.replicas, scriptTake, keys, args...)
	if err != nil {
		return 0, reply, explain(err)
	}
	if fence, err = reply.cmd.Int64(); err != nil {
		return 0, reply, fmt.Errorf("redislock: alien reply to take: %w", err)
	}
	return fence, reply, nil
}

// crowds remembers where the plain case was not met, until it may be again. It forgets
// all when they are many.
type crowds struct {
	mu    sync.Mutex
	locks map[string]struct{} // guarded by mu
}

// maxCrowds bounds them, as maxFences does.
const maxCrowds = 4096

func (c *crowds) met(lock string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.locks[lock]
	return ok
}

func (c *crowds) meet(lock string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.locks == nil || len(c.locks) >= maxCrowds {
		c.locks = make(map[string]struct{})
	}
	c.locks[lock] = struct{}{}
}

func (c *crowds) left(lock string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.locks, lock)
}
