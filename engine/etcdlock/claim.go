package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/queue"
)

const (
	// waitTTL is the longest TTL of a session for keys that wait. That bounds how long a process
	// that died waiting delays those behind it. A claim with a longer TTL moves its key when it is
	// granted.
	waitTTL = 10 * time.Second
	// lookAgain is how often the next in line looks by itself, in case the watch misses something.
	// Others come back after a third of their place's TTL.
	lookAgain = time.Second
	// maxRounds bounds how often one Try starts over because its key or its session was removed
	// meanwhile.
	maxRounds = 5
	// maxReads bounds how often others may interfere between a read and a put that relies on it.
	maxReads = 100
)

// claim implements driver.Claim and driver.Forgetter.
type claim struct {
	d     *Driver
	req   driver.Request
	dir   string // the beginning of its keys
	value string // the value of its keys

	place *place // guarded by Driver.mu; nil: none
	tried bool   // guarded by Driver.mu; it knows its keys

	hushed bool // guarded by Driver.mu; Release has begun: Wanted is not called any more
}

// errAgain makes Try start over: the claim has another place, its place another phase, or the watch
// is live now.
var errAgain = errors.New("etcdlock: begin again")

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (g driver.Grant, err error) {
	if err := c.d.usable(ctx); err != nil {
		return g, err
	}
	if c.rule().TooHeavy() {
		return g, driver.ErrTooHeavy
	}
	if c.req.Queue {
		asking, none := c.d.lanes.Begin(ctx, c.req.Resource)
		if none != nil {
			return g, asking.End(none)
		}
		defer func() { err = asking.End(err) }()
	}
	for range maxRounds {
		if g, err = c.attempt(ctx); !errors.Is(err, errGone) && !errors.Is(err, errAgain) {
			return g, err
		}
	}
	return driver.Grant{}, fmt.Errorf("etcdlock: the key was taken away %d times: %w", maxRounds, err)
}

// attempt continues from the state of the claim. errGone means that its key or session is gone:
// begin again.
func (c *claim) attempt(ctx context.Context) (driver.Grant, error) {
	p, err := c.here(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	d := c.d
	d.mu.Lock()
	started := p.begin(c.req.TTL)
	next, sure := p.isNext(c.req.TTL, started)
	isIdle, s := p.phase == idle, p.in
	var stays *driver.Busy
	if !next {
		stays = p.stays()
	}
	d.mu.Unlock()
	defer p.done()
	if stays != nil {
		return driver.Grant{}, d.drop(p, c.stay(ctx, p, s, stays))
	}
	var resp answer
	switch {
	case next:
		if !sure {
			err = p.keep(ctx, c.req.TTL)
		}
	case isIdle:
		resp, err = p.put(ctx, s, c.req.Queue && s.ttl <= waitTTL)
	default:
		resp, err = p.readLine(ctx)
	}
	var g driver.Grant
	if err == nil && next {
		g, err = c.granted(p, started)
	} else if err == nil {
		g, err = c.decide(ctx, p, resp, started)
	}
	if !isIdle { // else another claim of its owner may have made the key since it was read
		err = d.drop(p, err)
	}
	return g, err
}

// drop records that the key of a place is gone, if err says so and nothing else ends the place: a
// release, for example, may leave the key lingering. It returns err.
func (d *Driver) drop(p *place, err error) error {
	if !errors.Is(err, errGone) {
		return err
	}
	d.mu.Lock()
	isHeld := p.phase == held
	d.mu.Unlock()
	why := errDeleted
	switch {
	case errors.Is(err, errElsewhere):
		why = errElsewhere
	case isHeld:
		why = p.lastWord(lastWordWithin)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.phase < leaving {
		p.on(lost, why)
	}
	return err
}

// decide acts on the keys that were read: a grant, a refusal, or more to do.
func (c *claim) decide(ctx context.Context, p *place, resp answer, started boottime.Instant) (driver.Grant, error) {
	for range maxReads {
		all, own := p.readQueue(resp.TxnResponse)
		before, rev := all, int64(math.MaxInt64)
		if own >= 0 {
			before, rev = all[:own], all[own].rev
		}
		if other := slices.IndexFunc(before, c.isOurs); other >= 0 {
			return driver.Grant{}, c.adopt(ctx, p, before[other])
		}
		limit, err := c.limitIn(resp)
		if err != nil {
			return driver.Grant{}, err
		}
		free := c.holdsBehind(before, limit, rev)
		switch {
		case !free && limit.doubts(rev):
			if _, err = c.d.settle(ctx, c.dir, limit); err == nil {
				resp, err = p.readLine(ctx)
			}
		case limit.decided(c.rule(), rev).TooHeavy():
			return driver.Grant{}, c.tooHeavy(ctx, p)
		case own >= 0 && free:
			if all[own].lease != p.lease(c.req.TTL) {
				err = p.keep(ctx, c.req.TTL)
			}
			if err == nil {
				return c.granted(p, started)
			}
		case own >= 0 && !p.isHere(): // another process has moved the key, and would end it
			resp, err = p.readLine(ctx)
		case own >= 0:
			return driver.Grant{}, c.wait(p, look{all, limit, resp.Header.Revision}, own, started)
		case p.revision() != 0:
			return driver.Grant{}, errGone
		case slices.ContainsFunc(all, func(e entry) bool { return e.key == p.key }):
			return driver.Grant{}, c.avoid(ctx, p)
		case free: // it holds if nobody has come since the read
			resp, err = p.put(ctx, nil, false, c.unchanged(resp.Header.Revision)...)
		case c.req.Queue:
			var s *session // its TTL is short enough for a waiter
			if s, err = c.d.session(ctx, min(c.req.TTL, waitTTL)); err == nil {
				resp, err = p.put(ctx, s, true)
			}
		default:
			return driver.Grant{}, c.refuse(p, all)
		}
		if err != nil {
			return driver.Grant{}, err
		}
	}
	return driver.Grant{}, c.avoid(ctx, p) // the key is kept out for another reason
}

// unchanged compares that no key was put and no limit lowered since revision rev.
func (c *claim) unchanged(rev int64) []clientv3.Cmp {
	cmps := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(c.dir).WithPrefix(), "<", rev+1)}
	if c.req.Mode == driver.Shared {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(c.d.limitDir(c.dir)).WithPrefix(), "<", rev+1))
	}
	return cmps
}

// rule returns the claim as the rule of the queue sees it.
func (c *claim) rule() queue.Claim {
	return queue.Claim{Mode: c.req.Mode, Limit: c.req.Limit, Weight: c.req.Weight}
}

// limitIn returns the operator's limit that resp has read. An exclusive claim needs none.
func (c *claim) limitIn(resp answer) (limit, error) {
	if !resp.limited {
		return limit{unknown: true}, nil
	}
	l, err := c.d.limitIn(c.dir, resp.TxnResponse)
	if c.req.Mode == driver.Exclusive {
		return l, nil
	}
	return l, err
}

// holdsBehind reports whether the claim, whose key was created at that revision, holds with all of
// before ahead. If so, it continues to hold: others come behind it, those ahead only leave, and a
// lowered limit counts only for later keys.
func (c *claim) holdsBehind(before []entry, l limit, rev int64) bool {
	ahead := queue.Behind(before, len(before), entry.claim)
	return ahead.Admits(l.decided(c.rule(), rev))
}

// tooHeavy refuses a claim that is heavier than its limit. It leaves nothing behind.
func (c *claim) tooHeavy(ctx context.Context, p *place) error {
	if err := c.withdraw(ctx, p); err != nil {
		return err
	}
	return driver.ErrTooHeavy
}

// withdraw deletes the key of a place that c gives up before it holds. It returns errAgain if
// another claim of its owner was granted meanwhile, or releases it.
func (c *claim) withdraw(ctx context.Context, p *place) error {
	d := c.d
	d.mu.Lock()
	if p.phase == held || !c.mayEnd(p) {
		d.mu.Unlock()
		return errAgain
	}
	p.on(release, errReleased)
	d.mu.Unlock()
	if _, _, err := p.delete(ctx, false); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.place == p {
		c.leave()
	}
	return nil
}

// granted records that p is held, by a call that started at started.
func (c *claim) granted(p *place, started boottime.Instant) (driver.Grant, error) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.phase >= leaving { // it was released or lost meanwhile
		return driver.Grant{}, errGone
	}
	if u := &p.unsure; p.phase != held && len(u.puts) > 0 && p.rev <= u.floor {
		return driver.Grant{}, p.regressed(u.floor)
	}
	p.on(yes, nil)
	p.lasts(started.Add(roundUp(c.req.TTL)))
	return p.grant(c.req.TTL), nil
}

// ttl returns the TTL of the session that the key is in. Requires Driver.mu.
func (p *place) ttl() time.Duration {
	if p.in == nil {
		return p.claim.req.TTL
	}
	return p.in.ttl
}

func (p *place) grant(ttl time.Duration) driver.Grant {
	return driver.Grant{TTL: roundUp(ttl), Fence: driver.FenceOf(p.rev)}
}

// avoid gives up a key that another process has.
func (c *claim) avoid(ctx context.Context, p *place) error {
	if err := p.keepOut(ctx); err != nil {
		return err
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if p.phase == idle { // else another claim of its owner was granted it meanwhile, or releases it
		p.spend()
		p.on(release, errDeleted)
		p.on(no, errDeleted)
		c.d.lookThrough(p.named)
	}
	return errAgain
}

// refuse refuses a claim that does not queue. It leaves nothing behind.
func (c *claim) refuse(p *place, all []entry) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if p.phase == held || p.phase == leaving { // by another claim of its owner, or by the driver, whose deletion must stay
		return errAgain
	}
	p.on(no, errDeleted) // an earlier attempt may still arrive
	return &driver.Busy{Retry: lookAgain, Holder: all[0].holder()}
}

// wait refuses a claim that has its place, by a read. It does not wait for the watch to begin: if
// the watch was not live, the claim is woken to read again when it is.
func (c *claim) wait(p *place, seen look, own int, started boottime.Instant) error {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.phase != queued || d.watch.live && !d.watch.hears(p.watch) { // that has changed meanwhile
		return errAgain
	}
	d.watch.want()
	busy := p.busy(seen.queue[:own])
	busy.Wake = p.waitFor(seen, started)
	p.lasts(d.clock.Now().Add(p.ttl()))
	return busy
}

// stay refuses a claim without a read. It keeps its place in s alive.
func (c *claim) stay(ctx context.Context, p *place, s *session, busy *driver.Busy) error {
	d := c.d
	d.mu.Lock()
	k := d.keepAlive(s)
	d.mu.Unlock()
	if err := d.await(ctx, k); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.phase != queued { // its phase has changed meanwhile
		return errAgain
	}
	p.lasts(d.clock.Now().Add(p.ttl()))
	return busy
}
