package redislock

import (
	"context"
	"encoding/binary"

	"github.com/leasehold-go/leasehold/driver"
)

// The plain case is an exclusive lease that nobody else wants. It has two scripts of its own, which
// cost the server less than acquire.lua and release.lua. They do nothing in any other case, which
// then costs an additional command. So a driver remembers which locks were not plain.

// takePlain tries take.lua if the case may be plain. If taken is false and err is nil, use
// acquire.lua.
func (c *claim) takePlain(ctx context.Context) (g driver.Grant, taken bool, err error) {
	if !c.mayBePlain() {
		return driver.Grant{}, false, nil
	}
	if err := c.d.usable(ctx); err != nil {
		return driver.Grant{}, false, err
	}
	was := c.beginTake()
	reply, err := c.d.pipelines.ask(ctx, c.keys.lock, c.newTake())
	return c.took(ctx, was, reply, err)
}

func (c *claim) mayBePlain() bool {
	d, now := c.d, c.load()
	return c.req.Mode == driver.Exclusive && !now.mayBeServed() && now.phase != queued &&
		!d.o.RequireFenceHistory && d.o.Rest == 0 && !d.known.of(c.keys.lock).contended
}

// beginTake is called before take.lua is sent. It returns the state before the call.
func (c *claim) beginTake() (was state) {
	c.d.subscriber.listen(c)
	was = c.load()
	was.floor = c.d.known.of(c.keys.lock).fence
	// The outcome is unknown until an answer comes.
	c.update(func(now *state) { now.asked, now.uncertain.attempt, now.floor = true, true, was.floor })
	return was
}

// took handles the answer to take.lua.
func (c *claim) took(ctx context.Context, was state, reply answer, err error) (g driver.Grant, taken bool, _ error) {
	if err != nil {
		return driver.Grant{}, false, explain(err)
	}
	fence, err := reply.integer("take")
	switch {
	case err != nil:
		return driver.Grant{}, false, err
	case fence == 0:
		c.update(func(now *state) { now.uncertain.attempt = false })
		c.d.known.contended(c.keys.lock, true)
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

// givePlain releases a plain grant. If given is false and err is nil, use release.lua.
func (c *claim) givePlain(ctx context.Context) (given bool, err error) {
	if err := c.d.usable(ctx); err != nil {
		return false, err
	}
	reply, err := c.d.pipelines.ask(ctx, c.keys.lock, c.newGive())
	return c.gave(reply, err)
}

func (c *claim) newGive() *call {
	give := c.d.pipelines.newCall(scriptGive)
	give.leaves = leavesLate
	give.keys(c.keys, c.req.Owner, kindQueue, kindGone)
	give.args(c.req.Owner)
	return give
}

// gave handles the answer to give.lua.
func (c *claim) gave(reply answer, err error) (given bool, _ error) {
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
	if n != 1 {
		c.d.known.contended(c.keys.lock, true)
		return false, nil
	}
	c.update(func(now *state) { now.released(true) })
	return true, nil
}

func (c *claim) newTake() *call {
	d, k := c.d, c.keys
	take := d.pipelines.newCall(scriptTake)
	take.durable, take.leaves = true, leavesSoon
	kinds := []byte{kindHistory, kindQueue, kindGone, kindMemory}
	if d.o.MinUptime == 0 {
		kinds = kinds[:3]
	}
	take.keys(k, c.req.Owner, kinds...)
	take.args(c.req.Owner, c.req.TTL, d.historyLife(c.req.TTL))
	take.about(c.req.Owner, c.channel(), c.req.Note)
	take.args(d.o.MinUptime)
	return take
}
