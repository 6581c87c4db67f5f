package redislock

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// The plain case is an exclusive lease that nobody else wants. It has a script of its own,
// which costs the server half, and less when one run of it serves many leases. It does
// nothing in any other case, so that it costs one command more; a driver therefore
// remembers where it met others.

// maxPlain bounds the leases of one run, during which all others wait: it takes the server
// less than half a millisecond.
const maxPlain = 64

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
	fence, reply, err := c.runPlain(ctx, d.replicas, millis(c.req.TTL), c.about())
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
	n, _, err := c.runPlain(ctx, 0, 0, nil)
	switch {
	case err != nil && isReply(err): // it did not run, such as for want of memory
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		c.d.crowds.meet(c.keys.lock)
	}
	return n == 1, nil
}

func (c *claim) runPlain(ctx context.Context, replicas int, ttl int64, about []byte) (n int64, reply answer, err error) {
	k := c.keys
	reply, err = c.d.links.of(k.lock).runAcknowledged(ctx, replicas, scriptPlain,
		append([]string{k.lock, k.companion(kindHistory), k.companion(kindQueue), k.gone(c.req.Owner)}, c.d.markOfMemory()...),
		c.d.historyLife(c.req.TTL), millis(c.d.memory), c.req.Owner, ttl, about)
	if err != nil {
		return 0, reply, explain(err)
	}
	values, err := slice(reply.cmd, 1)
	if err != nil {
		return 0, reply, err
	}
	return number(values[0]), reply, nil
}

// Where the arguments of scriptPlain are in those of EVALSHA: the keys of the lease, those
// that all leases share, life and memory, and what is told of the lease.
const plainKeys, plainShared = 3, 7

func (c *call) plainLife() int { return plainKeys + c.args[2].(int) }
func (c *call) plainArgs() int { return c.plainLife() + 2 }

// gives reports whether c gives a plain grant up.
func (c *call) gives() bool { return c.args[c.plainArgs()+1] == int64(0) }

// mergeable reports whether c may share a run of the script. On Cluster each has a slot of
// its own.
func (l *link) mergeable(c *call) bool {
	return c.script == scriptPlain && c.replicas == 0 && !l.cluster
}

// carryPlain has one run of the script serve all of batch. What is given up is not sent a
// second time, as ever.
func (l *link) carryPlain(batch []*call) {
	if len(batch) == 1 {
		batch[0].makeOn(l.client)
		return
	}
	l.runMerged(batch)
	if forItsKeys(batch[0].err) {
		l.carryAll(batch)
		return
	}
	var again []*call
	for _, c := range batch {
		if c.err != nil && !isReply(c.err) && !c.gives() && c.ctx.Err() == nil {
			c.repeated = true
			again = append(again, c)
		}
	}
	if len(again) > 0 && len(again) < len(batch) { // else go-redis has tried again
		l.runMerged(again)
	}
}

func (l *link) runMerged(batch []*call) {
	m := merge(batch)
	m.makeOn(l.client)
	var values []any
	if m.err == nil {
		values, m.err = slice(m.cmd, len(batch))
	}
	for i, c := range batch {
		c.repeated = c.repeated || m.repeated
		if c.err = m.err; m.err == nil {
			c.cmd.SetVal(values[i : i+1])
		}
	}
}

// merge is one call that makes all of batch. Callers that have gone do not stop the others.
func merge(batch []*call) *call {
	first := batch[0]
	shared := first.args[plainShared:first.plainLife()]
	args := make([]any, 0, 6+7*len(batch))
	args = append(args, "evalsha", scriptPlain.sha, 4*len(batch)+len(shared))
	var life int64
	for _, c := range batch {
		args = append(args, c.args[plainKeys:plainShared]...)
		life = max(life, c.args[c.plainLife()].(int64))
	}
	args = append(append(args, shared...), life, first.args[first.plainLife()+1])
	for _, c := range batch {
		args = append(args, c.args[c.plainArgs():]...)
	}
	s := &script{text: scriptPlain.text, unrepeatable: slices.ContainsFunc(batch, (*call).gives)}
	m := &call{ctx: context.WithoutCancel(first.ctx), script: s, args: args}
	m.cmd = redis.NewCmd(m.ctx, args...)
	m.cmd.SetFirstKeyPos(plainKeys)
	return m
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
