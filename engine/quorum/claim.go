package quorum

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

const (
	// mostTries bounds how often one Try starts over when several callers split the nodes between
	// them and nobody holds the resource.
	mostTries = 10
	// firstDelay and mostDelay bound the random pause before that, which doubles. Two callers that
	// collide are soon apart. So are twenty callers whose rounds take 10 ms each on a slow machine.
	firstDelay, mostDelay = time.Millisecond, 256 * time.Millisecond
	// mostRounds bounds the pause, in rounds, if rounds take longer. Twenty callers then find room
	// for one round each.
	mostRounds = 32
)

// claim implements [driver.Claim] and [driver.Forgetter] by one claim at each node.
type claim struct {
	d     *Driver
	req   driver.Request
	parts []*part
	held  bool   // the last Try was granted, and no call has ended it since
	fence uint64 // its fence; 0: none

	mu     sync.Mutex
	told   bool // guarded by mu; Request.Lost was called
	rounds uint // guarded by mu; counts rounds of renewals
}

// round makes one call to each of parts at once. It returns when done returns true, when all have
// answered, or when ctx ends. Later answers are not counted. The calls to one part run in the order
// of their rounds.
func (c *claim) round(ctx context.Context, parts []*part, call callAt, done func(v *verdict) bool) verdict {
	var v verdict
	answers := make(chan answer, len(parts))
	// A call continues after the caller has its majority, or gives up. Otherwise its part would not
	// know the outcome. The node's timeout bounds it.
	unending := context.WithoutCancel(ctx)
	for _, p := range parts {
		asked := c.inTurn(p, func() {
			a := answer{part: p}
			a.err = p.node.call(unending, func(ctx context.Context) (err error) {
				a.grant, err = call(ctx, p)
				a.repeated = p.repeated
				return err
			})
			answers <- a
		})
		if !asked {
			v.add(answer{part: p, err: driver.ErrClosed})
		}
	}
	for n := len(v.unknown); n < len(parts) && !done(&v); n++ {
		select {
		case a := <-answers:
			v.add(a)
		case <-ctx.Done():
			v.miss(parts, ctx.Err())
			return v
		}
	}
	return v
}

// callAt is a call to one node.
type callAt func(ctx context.Context, p *part) (driver.Grant, error)

// inTurn runs call in the background, after earlier calls to p. It returns false after Close. The
// order of calls is decided before the goroutine starts. If a roll-back ran after the next Try, it
// would release that Try's grant.
func (c *claim) inTurn(p *part, call func()) bool {
	before, over := c.next(p)
	started := c.d.life.Go(func() {
		<-before
		defer close(over)
		call()
	})
	if !started {
		close(over) // all later calls find the driver closed too
	}
	return started
}

// next takes the next place in the order of calls to p. The call begins when before closes, and
// closes over at its end.
func (c *claim) next(p *part) (before, over chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, over = p.last, make(chan struct{})
	p.last = over
	return before, over
}

// ready returns the parts to ask for something new. It omits those of a node that is down and has
// not answered the last call yet.
func (c *claim) ready() (parts []*part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parts {
		if waiting.Closed(p.last) || !p.node.isDown() {
			parts = append(parts, p)
		}
	}
	return parts
}

// ask makes a round over all parts that are ready. The others count as down.
func (c *claim) ask(ctx context.Context, call callAt, done func(v *verdict) bool) verdict {
	ready := c.ready()
	v := c.round(ctx, ready, call, done)
	for _, p := range c.parts {
		if !slices.Contains(ready, p) {
			v.add(answer{part: p, err: ErrNodeDown})
		}
	}
	return v
}

// tryAt tries at one node, in a round that began at start. held reports whether the claim held then.
func (c *claim) tryAt(ctx context.Context, p *part, start boottime.Instant, held bool) (driver.Grant, error) {
	if !held || p.fence == 0 { // an earlier grant or loss at this node does not concern this grant
		c.mu.Lock()
		p.lost, p.standing = false, away
		c.mu.Unlock()
	}
	g, err := p.claim.Try(ctx)
	if err == nil {
		p.repeated, p.fence = p.fence != 0 && p.fence == g.Fence, g.Fence
		c.granted(p, start, held)
	}
	return g, err
}

// Try implements driver.Claim. Unless it returns a grant, it has begun to release the grants of
// single nodes. It starts over while nobody holds a majority.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	for tries := 1; ; tries++ {
		start := time.Now()
		grant, v, err := c.tryOnce(ctx)
		if err == nil || !v.split(c.d.majority) || tries == mostTries {
			return grant, err
		}
		if err := pause.For(ctx, rand.N(delay(tries, time.Since(start)))); err != nil {
			return driver.Grant{}, err
		}
	}
}

// delay returns the longest pause after so many tries. took is how long the last one took.
func delay(tries int, took time.Duration) time.Duration {
	return min(max(firstDelay, took)<<tries, max(mostDelay, mostRounds*took))
}

func (c *claim) tryOnce(ctx context.Context) (driver.Grant, *verdict, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, &verdict{}, ctx.Err()
	}
	start, held := c.d.clock.Now(), c.held
	v := c.ask(ctx, func(ctx context.Context, p *part) (driver.Grant, error) { return c.tryAt(ctx, p, start, held) }, c.tried)
	if len(v.yes) < c.d.majority {
		c.rollBack(ctx)
		return driver.Grant{}, &v, c.refusal(&v)
	}
	grant, err := c.take(ctx, &v)
	// Do not count the time of both rounds: each node counts the TTL from when it was asked.
	if err == nil && (grant.TTL <= c.d.clock.Now().Sub(start) || ctx.Err() != nil) {
		err = errors.Join(errors.New("the majority answered too late"), ctx.Err())
	}
	if err != nil {
		c.rollBack(ctx)
		return driver.Grant{}, &verdict{}, err
	}
	return grant, &v, nil
}

// tried is decided for a Try. If the claim holds already, it waits for a majority that confirms
// that grant, or for all answers. Nodes that missed the grant make new grants, which would look
// like another one.
func (c *claim) tried(v *verdict) bool {
	repeated := countIf(v.yes, func(a answer) bool { return a.repeated })
	return c.d.decided(v) && (c.fence == 0 || len(v.yes) < c.d.majority || repeated >= c.d.majority)
}

// decided reports whether a majority said yes, or none can any more.
func (d *Driver) decided(v *verdict) bool {
	minority := len(d.nodes) - d.majority
	return len(v.yes) >= d.majority || len(v.no) > minority || len(v.unknown) > minority
}

// take turns the yes of a majority into a grant. First it writes the greatest of their fences to a
// majority. So every later majority includes a node that knows that fence. Otherwise the greatest
// fence of a later majority could be lower.
func (c *claim) take(ctx context.Context, v *verdict) (driver.Grant, error) {
	grant := driver.Grant{TTL: v.yes[0].grant.TTL}
	same, top := 0, c.fence // the holder may have used it already
	for _, a := range v.yes {
		grant.TTL = min(grant.TTL, a.grant.TTL)
		top = max(top, a.grant.Fence)
		if a.repeated {
			same++
		}
	}
	if c.fence != 0 && same >= c.d.majority { // the holder's own grant, repeated
		grant.Fence = c.fence
		return grant, nil
	}
	if c.d.features.Fencing {
		if err := c.raise(ctx, v.yes, top); err != nil {
			return driver.Grant{}, err
		}
		c.fence, grant.Fence = top, top
	}
	c.hold(v.yes)
	return grant, nil
}

// raise writes fence to the nodes with smaller ones, until a majority has it.
func (c *claim) raise(ctx context.Context, granted []answer, fence uint64) error {
	var below []*part
	for _, a := range granted {
		if a.grant.Fence < fence {
			below = append(below, a.part)
		}
	}
	missing := c.d.majority - (len(granted) - len(below))
	if missing <= 0 {
		return nil
	}
	v := c.round(ctx, below, func(ctx context.Context, p *part) (driver.Grant, error) {
		return driver.Grant{}, c.liftAt(ctx, p, fence)
	}, func(v *verdict) bool { return len(v.yes) >= missing })
	if len(v.yes) < missing {
		return v.report("raise fence", len(c.parts))
	}
	return nil
}

func (c *claim) liftAt(ctx context.Context, p *part, fence uint64) error {
	// The grant here may have been ended since. The next one may then exist already, with a smaller
	// fence.
	if holder, ok := p.claim.(driver.FenceLifter); ok {
		return holder.LiftFence(ctx, fence)
	}
	return p.node.operator.RaiseFence(ctx, c.req.Resource, fence)
}

// refusal returns the error of a Try without a majority. If a majority has answered, it is a
// refusal, or ErrBarred if a node says so. Otherwise the outcome is unknown.
func (c *claim) refusal(v *verdict) error {
	if len(v.no) == 0 || len(v.unknown) > len(c.parts)-c.d.majority {
		return v.report("try", len(c.parts))
	}
	if v.barred() {
		return driver.ErrBarred
	}
	busy := &driver.Busy{}
	for _, a := range v.no {
		if b, ok := errors.AsType[*driver.Busy](a.err); ok && b.Holder != (driver.Holder{}) {
			busy.Holder, busy.Retry = b.Holder, max(busy.Retry, b.Retry)
			busy.Holder.Fence = 0 // it is this node's own number
		}
	}
	return busy
}

// rollBack releases at every node in the background, even at nodes that have not answered yet,
// because the calls to a part run in order.
func (c *claim) rollBack(ctx context.Context) {
	c.held, c.fence = false, 0
	c.round(ctx, c.parts, releaseAt(driver.End{}), func(*verdict) bool { return true })
}

func releaseAt(how driver.End) callAt {
	return func(ctx context.Context, p *part) (driver.Grant, error) {
		p.fence, p.repeated = 0, false
		return driver.Grant{}, p.claim.Release(ctx, how)
	}
}

// Renew implements driver.Claim. If a renewal misses the majority, some nodes may have renewed.
// Their leases expire a TTL later, or are released, and never form a majority.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, ctx.Err()
	}
	one := []driver.Renewal{{Claim: c, TTL: ttl}}
	c.d.RenewAll(ctx, one)
	return one[0].Grant, one[0].Err
}

// renewed returns the outcome of a round of renewals.
func (c *claim) renewed(ctx context.Context, ttl time.Duration, v *verdict) (driver.Grant, error) {
	switch {
	case len(v.yes) >= c.d.majority:
		c.regain(ttl)
		grant := driver.Grant{TTL: v.yes[0].grant.TTL, Fence: c.fence}
		for _, a := range v.yes {
			grant.TTL = min(grant.TTL, a.grant.TTL)
		}
		return grant, nil
	case len(v.no) > len(c.parts)-c.d.majority:
		c.rollBack(ctx)
		return driver.Grant{}, v.no[0].err
	}
	return driver.Grant{}, v.report("renew", len(c.parts))
}

// Release implements driver.Claim. A lease counts as released if a majority of nodes that count
// held it until now. At a node that was regained, another may have held it since. With how.Bar, a
// majority then has the mark, so no majority grants.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	if err := cmp.Or(ctx.Err(), how.Check(c.d.features)); err != nil {
		return err
	}
	c.held, c.fence = false, 0
	give := releaseAt(how)
	released := func(ctx context.Context, p *part) (driver.Grant, error) {
		g, err := give(ctx, p)
		return g, c.counted(p, err)
	}
	v := c.round(ctx, c.parts, released, c.d.decided)
	switch {
	case len(v.yes) >= c.d.majority:
		return nil
	case len(v.no) > len(c.parts)-c.d.majority:
		return v.no[0].err
	}
	return v.report("release", len(c.parts))
}

// Forget implements [driver.Forgetter]. Each part's driver forgets it after the calls in progress. A
// part whose grant hangs on the driver's session is released, because the session would keep it.
func (c *claim) Forget() {
	for _, p := range c.parts {
		f, ok := p.claim.(driver.Forgetter)
		if !ok && p.node.driver.Features().Resumes {
			continue
		}
		c.inTurn(p, func() {
			if ok {
				f.Forget()
				return
			}
			_ = p.node.call(context.Background(), func(ctx context.Context) error { return p.claim.Release(ctx, driver.End{}) }) // if it fails, it ends with the session
		})
	}
}

// Note returns ErrUnsupported.
func (*claim) Note(context.Context, string) error { return driver.ErrUnsupported }

// partLost handles the loss of the lease at one node. The claim is certainly lost when no majority
// of the nodes can hold it. Until then, renewals find the losses of single nodes.
func (c *claim) partLost(p *part, cause error) {
	c.mu.Lock()
	p.lost = true
	lost := countIf(c.parts, func(other *part) bool { return other.lost })
	tell := lost > len(c.parts)-c.d.majority && !c.told && c.req.Lost != nil
	c.told = c.told || tell
	c.mu.Unlock()
	if tell {
		c.req.Lost(cause)
	}
}
