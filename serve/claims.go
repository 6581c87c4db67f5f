package serve

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/onecall"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A key is what a claim is called by.
type key struct{ name, owner string }

// An order tells late calls of one caller from others.
type order struct {
	caller string
	number int64 // 0: none
	// answered: up to this number, no acquire is without an answer.
	answered int64
}

// follows reports whether a call may come after last.
func (o order) follows(last order) bool {
	return o.number == 0 || last.number == 0 || o.caller != last.caller || o.number > last.number
}

// skips reports whether the caller has made calls after last that this instance has not served.
func (o order) skips(last order) bool {
	return o.number > 0 && last.number > 0 && (o.caller != last.caller || o.number > last.number+1)
}

// A claim is what this instance knows of one: the driver's claim, which keeps its calls in
// order. It may be forgotten at any time between calls, but for an engine that ties leases to
// a session; another instance, or this one, then makes another.
type claim struct {
	key     key
	calling onecall.Gate  // whoever has begun has the turn
	driver  *watchedClaim // guarded by calling, as is what follows
	req     driver.Request
	lease   lastGrant
	// acquires: its req is from a call to acquire, which stated the mode.
	acquires bool
	cause    chan error // brings why its lease has ended, if the engine tells; nil: the driver's claim is not made
	evicted  error      // what came of it
	queued   time.Time  // when it took its place in the queue; zero: it has none
	recall   *recall    // tells its holder that others wait; nil: nobody has asked

	calls // guarded by claims.mu
}

// A lastGrant is the lease of a claim that is held, or the last one of a claim that is queued since; the zero value: none.
type lastGrant struct {
	since   time.Time
	atLeast time.Duration
	fence   uint64
	term    *term
}

// calls is what is known of those that were made on a claim, and of whether there will be more.
type calls struct {
	users   int             // those that wait for the turn or have it
	phase   phase           // changed by on
	until   time.Time       // when the claim may be forgotten, if it is kept
	last    order           // of the last one that had a number
	skipped bool            // others may have served some since the driver's claim was used
	sure    int64           // up to this number of last, no acquire may be under way at another instance
	chosen  bool            // the caller has chosen the owner, and may call again
	waiting func(why error) // ends the one that waits for other holders; nil: none does
	away    sentAway        // who has removed it from the queue
	place   queuePlace
}

// sentAway is who has removed a waiter, and why; zero: nobody has.
type sentAway struct{ by, reason string }

// isOf reports whether h is the claim's. Another service shows handles in place of owners.
func (one *claim) isOf(h driver.Holder) bool {
	return h.Owner.Reveal() == one.key.owner || h.Owner.Reveal() == wire.Handle(one.key.owner)
}

// claims are those that are in use, and those that may be soon.
type claims struct {
	mu  sync.Mutex
	all map[key]*claim // guarded by mu
	// ends are owners that were used up lately, with the numbers of their last calls, in two
	// generations, of which the older is forgotten.
	ends, former map[key]order // guarded by mu
	turned       time.Time     // guarded by mu; when ends became former
	// evicted are leases that were evicted by this instance lately, and why, in two generations as well.
	evicted, evictedBefore map[key]error // guarded by mu
	// removed are waiters that this instance has sent away lately, and why, as evicted.
	removed, removedBefore map[key]error // guarded by mu
}

const (
	// sweepEvery is how often claims are looked through for those that are over.
	sweepEvery = time.Second
	// keepPlace is how long a claim is kept that waits: above what a place outlives its last
	// attempt on any engine.
	keepPlace = 15 * time.Second
	// keepEnds and mostEnds bound what is remembered of owners that are used up: a call that
	// comes late by less than the first is refused.
	keepEnds, mostEnds = 30 * time.Second, 1 << 14
)

func (c *claims) init() {
	c.all, c.ends, c.turned = make(map[key]*claim), make(map[key]order), time.Now()
	c.evicted, c.removed = make(map[key]error), make(map[key]error)
}

var (
	errLate  = errors.New("a later call of this owner was served before")
	errUsed  = errors.New("this owner's claim has ended: take another owner for another claim")
	errStuck = errors.New("an earlier call of this owner has no answer yet")
)

// enter returns the claim that k calls, for a call of that order. A call that waits for other
// holders makes room for it. An owner whose claim has ended acquires again only if its caller
// counts its calls, so that a late call can be distinguished from a new one. leave must follow.
func (c *claims) enter(k key, now order, acquires bool) (*claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[k]
	last, used := c.usedUp(k)
	if one != nil && (one.last.number > 0 || one.phase == ended) {
		last, used = one.last, one.phase == ended
	}
	switch {
	case !now.follows(last):
		return nil, errLate
	case acquires && used && (now.number == 0 || now.caller != last.caller):
		return nil, errUsed
	}
	if one == nil {
		one = &claim{key: k, calling: onecall.New()}
		c.all[k] = one
	}
	one.skipped = one.skipped || now.skips(last)
	one.account(last, now, acquires)
	if one.last = last; now.number > 0 {
		one.last = now
	}
	one.users++
	if one.waiting != nil {
		one.waiting(errSuperseded)
	}
	return one, nil
}

// account notes which calls before this one cannot be under way elsewhere: those that had answers, and those that came
// here. A caller that does not begin with an acquire has the claim of another, of whose calls nothing is known. Requires
// claims.mu.
func (one *claim) account(last, now order, acquires bool) {
	if now.number == 0 {
		return
	}
	if last.number == 0 || last.caller != now.caller {
		one.sure = 0
	} else {
		one.sure = max(one.sure, last.answered) // of the owner's former claim
	}
	if one.sure = max(one.sure, now.answered); one.sure >= now.number-1 && (acquires || now.number > 1) {
		one.sure = now.number
	}
}

// mayBeLate reports whether an acquire of the owner may be under way at another instance, and be served late there.
func (c *claims) mayBeLate(one *claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return one.sure < one.last.number
}

// usedUp tells the last call of an owner whose claim has ended. Requires mu.
func (c *claims) usedUp(k key) (last order, used bool) {
	if last, used = c.ends[k]; !used {
		last, used = c.former[k]
	}
	return last, used
}

// leave is for who has entered and does not have the turn. A claim that has ended goes with
// the last who leaves it, and its owner is remembered if others may call again.
func (c *claims) leave(one *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.users--; one.users > 0 || one.phase.isKept() {
		return
	}
	if delete(c.all, one.key); one.phase != ended || !one.chosen {
		return
	}
	one.last.answered = one.sure
	if c.ends[one.key] = one.last; len(c.ends) >= mostEnds {
		c.turnOver(time.Now())
	}
}

// on is for what has happened to a claim.
func (c *claims) on(one *claim, e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.on(e)
}

// lasts is for what has given a claim a lease or a place, which ends by then unless it is renewed.
func (c *claims) lasts(one *claim, e event, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.on(e)
	one.until = until
}

// outlasted reports whether what the claim had is over in any case.
func (c *claims) outlasted(one *claim, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.After(one.until)
}

// hasSkipped reports, once, whether other instances may have served calls since it was asked last.
func (c *claims) hasSkipped(one *claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	skipped := one.skipped
	one.skipped = false
	return skipped
}

// isLate reports whether a later call of its caller has come since a call of that order has entered.
func (c *claims) isLate(one *claim, now order) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.number > 0 && now.caller == one.last.caller && now.number < one.last.number
}

// inUse reports whether a call on a claim is under way.
func (c *claims) inUse(k key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[k]
	return one != nil && one.users > 0
}

// has reports whether there is a claim, in use or kept.
func (c *claims) has(k key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[k] != nil
}

func (c *claims) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// turnOver begins another generation of ends. Requires mu.
func (c *claims) turnOver(now time.Time) {
	c.former, c.ends, c.turned = c.ends, make(map[key]order), now
	c.evictedBefore, c.evicted = c.evicted, make(map[key]error)
	c.removedBefore, c.removed = c.removed, make(map[key]error)
}

// sweep forgets claims that are over, until ctx ends.
func (c *claims) sweep(ctx context.Context, forget func(*claim)) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			now := time.Now()
			for _, one := range c.over(now) {
				if c.close(one, now) {
					forget(one)
					c.drop(one)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// over are those that may be forgotten.
func (c *claims) over(now time.Time) (all []*claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		if one.isOver(now) {
			all = append(all, one)
		}
	}
	if now.Sub(c.turned) > keepEnds {
		c.turnOver(now)
	}
	return all
}

// isOver requires claims.mu.
func (one *claim) isOver(now time.Time) bool { return one.users == 0 && now.After(one.until) }

// close takes the turn of a claim that is over still. Calls that come now wait: what they were
// granted would be given up with what was there before. drop follows.
func (c *claims) close(one *claim, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !one.isOver(now) {
		return false
	}
	one.users++
	return one.calling.TryBegin() // nobody has the turn
}

// drop forgets a claim, but for calls that have come meanwhile, which begin anew.
func (c *claims) drop(one *claim) {
	one.driver, one.acquires, one.evicted, one.queued = nil, false, nil, time.Time{}
	defer one.calling.End() // at last: what a call is granted then is not to be forgotten here
	c.mu.Lock()
	defer c.mu.Unlock()
	one.on(onForget)
	if one.users--; one.users == 0 {
		delete(c.all, one.key)
	}
}

// forget is for a claim that nobody has called for its TTL. Where the engine ties it to this
// instance's session, nobody else can have it, and it is given up: the session would keep it.
// Elsewhere another instance may have renewed it, and only the driver here lets go of it.
func (s *Server) forget(one *claim) {
	if one.driver == nil {
		return
	}
	if s.features.Resumes {
		one.driver.Forget()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	_ = one.driver.Release(ctx, driver.End{}) // should it fail, it ends with the session
}

// take waits for the turn, within bounds.
func take(ctx context.Context, one *claim) error {
	bounded, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	err := one.calling.Begin(bounded)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errGone
	}
	return errStuck
}

// use makes the driver's claim unless there is one. wanted: its holder asks to hear that others wait. Requires the turn.
func (s *Server) use(one *claim, req driver.Request, wanted bool) (err error) {
	if one.driver == nil {
		one.cause = make(chan error, 1)
		req.Lost = s.hears(one.key, one.cause)
		if one.recall = nil; wanted && s.features.Tells {
			one.recall = s.newRecall(one.key, req.Mode)
			req.Wanted = one.recall.comes
		}
		one.req = req
		one.driver, err = s.claim(req)
	}
	return err
}

// newOwner is 160 random bits.
func newOwner() string {
	var random [20]byte
	rand.Read(random[:]) // never fails: it ends the program instead
	return base32.StdEncoding.EncodeToString(random[:])
}
