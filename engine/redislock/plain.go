package redislock

import (
	"context"
	"encoding/binary"

	"github.com/leasehold-go/leasehold/driver"
)

// The plain case is an exclusive lease that nobody else wants. It has two scripts of its own,
// which cost the server less than acquire.lua and release.lua. They do nothing in any other case, so
// that it costs one command more; a driver therefore remembers where it met others.

// takePlain asks for a grant where the case may be plain; taken is false when that must
// be asked for otherwise.
func (c *claim) takePlain(ctx context.Context) (g driver.Grant, taken bool, err error) {
	d, k, was := c.d, c.keys, c.load()
	lock := d.known.of(k.lock)
	if c.req.Mode != driver.Exclusive || was.mayBeServed() || was.phase == queued || d.o.RequireFenceHistory || d.o.Rest > 0 || lock.contended {
		return driver.Grant{}, false, nil
	}
	if err := d.usable(ctx); err != nil {
		return driver.Grant{}, false, err
	}
	d.subscriber.listen(c)
	was.floor = lock.fence
	// Unknown until there is an answer.
	c.update(func(now *state) { now.asked, now.uncertain.attempt, now.floor = true, true, was.floor })
	fence, reply, err := c.sendTake(ctx)
	switch {
	case err != nil:
		return driver.Grant{}, false, err
	case fence == 0:
		c.update(func(now *state) { now.uncertain.attempt = false })
		d.known.contended(k.lock, true)
		return driver.Grant{}, false, nil
	}
	err = c.accept(ctx, uint64(fence), was, reply)
	c.update(func(now *state) { now.grant.plain = err == nil })
	return granted(c.req.TTL, uint64(fence)), true, err
}

// about appends what history.lua stores of a grant beside numbers.
func (c *call) about(owner, channel, note string) {
	all := [...]string{owner, channel, note}
	const head = 5
	c.body = appendSize(c.body, '$', len(all)*head+len(owner)+len(channel)+len(note))
	for _, s := range all {
		c.body = append(c.body, 0xdb) // a string with 32 bits of length, in MessagePack
		c.body = binary.BigEndian.AppendUint32(c.body, uint32(len(s)))
		c.body = append(c.body, s...)
	}
	c.body = append(c.body, "\r\n"...)
	c.count++
}

// givePlain gives up a plain grant; given is false when that must be asked for otherwise.
func (c *claim) givePlain(ctx context.Context) (given bool, err error) {
	if err := c.d.usable(ctx); err != nil {
		return false, err
	}
	k := c.keys
	give := c.d.pipelines.newCall(scriptGive)
	give.leaves = leavesLate
	give.keys(k, c.req.Owner, kindQueue, kindGone)
	give.args(c.req.Owner)
	reply, err := c.d.pipelines.ask(ctx, k.lock, give)
	switch {
	case err != nil && isReply(err): // it did not run: release.lua may need other permissions
		return false, nil
	case err != nil:
		return false, explain(err)
	}
	n, err := reply.integer("give")
	if err != nil {
		return false, err
	}
	if n == 0 {
		c.d.known.contended(k.lock, true)
	}
	return n == 1, nil
}

func (c *claim) sendTake(ctx context.Context) (fence int64, reply answer, err error) {
	d, k := c.d, c.keys
	take := d.pipelines.newCall(scriptTake)
	take.durable, take.leaves = true, leavesSoon
	if d.o.MinUptime > 0 {
		take.keys(k, c.req.Owner, kindHistory, kindQueue, kindGone, kindMemory)
	} else {
		take.keys(k, c.req.Owner, kindHistory, kindQueue, kindGone)
	}
	take.args(c.req.Owner, c.req.TTL, d.historyLife(c.req.TTL))
	take.about(c.req.Owner, c.channel(), c.req.Note)
	take.args(d.o.MinUptime)
	reply, err = d.pipelines.ask(ctx, k.lock, take)
	if err != nil {
		return 0, reply, explain(err)
	}
	fence, err = reply.integer("take")
	return fence, reply, err
}
