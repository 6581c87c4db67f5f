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
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// An order is the position of a call among its caller's calls. It distinguishes late calls from new
// ones.
type order struct {
	caller string
	number int64 // 0: none
	// answered: each acquire with a number up to this one has been answered, and each release if the
	// owner is used again.
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

// A claim is what this instance knows about one claim of a client. It wraps the driver's claim,
// which keeps the calls in order. Between calls it may be forgotten at any time, and this or
// another instance creates it again. The exception is an engine that ties leases to a session.
type claim struct {
	key     lease
	owner   string
	calling onecall.Gate  // the caller that has begun has the turn
	driver  *watchedClaim // guarded by calling, like the fields up to recall
	entry   int64         // the number, in entries, of the call that has the turn
	req     driver.Request
	lease   lastGrant
	// acquires: req is from a call to acquire, so its mode was requested, and driver knows the owner's
	// lease, if there was one.
	acquires bool
	cause    chan report // receives the reason why the lease has ended, if the engine reports it; nil: there is no driver's claim
	evicted  error       // the reason that cause has received
	doubt    error       // of an attempt that may have got a lease; nil: none is in doubt
	queued   time.Time   // when it took its place in the queue; zero: it has none
	unwanted bool        // nobody knows its owner, and a release had no answer
	recall   *recall     // notifies the holder that others wait; nil: it has not asked for that

	calls // guarded by claims.mu
}

// A lastGrant is the lease of a claim that is held. For a queued claim it is the last lease before.
// The zero value means that there is none.
type lastGrant struct {
	since   time.Time // before the grant, or the first renewal here
	ours    bool      // this instance granted it, and knows of no call of its owner elsewhere since
	atLeast time.Duration
	fence   uint64
	term    *term
}

// calls records the calls on a claim, and whether more may follow.
type calls struct {
	users   int             // calls that wait for the turn or have it
	entries int64           // calls that have entered
	phase   phase           // changed by on
	until   time.Time       // when the claim may be forgotten, if it is kept
	last    order           // of the last numbered call
	skipped bool            // other instances may have served calls since the driver's claim was last used
	sure    int64           // no call numbered up to this one, as order.answered counts, may be in flight at another instance
	chosen  bool            // the caller knows the owner, and may call again
	waiting func(why error) // ends the call that waits for other holders; nil: none does
	begun   uint64          // the fence of the last lease that began here; 0: none did
	began   time.Time       // when the answer came that told of it
	place   queuePlace
}

// isOf reports whether h holds by this claim.
func (one *claim) isOf(h driver.Holder) bool { return wire.HandleOf(h.Owner) == one.key.handle }

// claims are the claims of this instance: those with calls, and those that are kept for later
// calls.
type claims struct {
	mu  sync.Mutex
	all map[lease]*claim // guarded by mu
	// ends are owners that were used up recently, with the orders of their last calls.
	ends recent[order] // guarded by mu
	// evicted are the leases of owners that this instance has evicted recently, without the owner.
	evicted recent[pastEviction] // guarded by mu
	// removed are waiters that this instance has removed recently.
	removed recent[*removal] // guarded by mu
}

const (
	// sweepEvery is how often claims that are over are forgotten.
	sweepEvery = time.Second
	// keepPlace is how long a waiting claim is kept after its last attempt. No engine keeps a place
	// for so long.
	keepPlace = 15 * time.Second
	// keepEnds and mostEnds limit how long, and how many, used-up owners are remembered. A call
	// that is late by less than keepEnds is refused. Removals and evictions have the same limits.
	keepEnds, mostEnds = 30 * time.Second, 1 << 14
)

func (c *claims) init() {
	c.all = make(map[lease]*claim)
	c.turnOver(time.Now())
}

var (
	errLate  = errors.New("a later call of this owner was served before")
	errUsed  = errors.New("this owner's claim has ended: take another owner for another claim")
	errStuck = errors.New("an earlier call of this owner has no answer yet")
)

// enter returns the claim of name and owner for a call of the given order, and the call's number
// among those that have entered. An earlier call of the claim does not wait for other holders from
// now on. If the owner's claim has ended, the owner may acquire again only if no earlier call can be
// in flight elsewhere: a late release would end the new lease. leave must follow.
func (c *claims) enter(name, owner string, now order, acquires bool) (*claim, int64, error) {
	k := lease{name, wire.Handle(owner)}
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[k]
	last, used := c.ends.get(k)
	if one != nil && (one.last.number > 0 || one.phase == ended) {
		last, used = one.last, one.phase == ended
	}
	var sure int64
	if one != nil {
		sure = one.sure
	}
	sure = now.sure(sure, last, acquires)
	switch {
	case !now.follows(last):
		return nil, 0, errLate
	case acquires && used && (now.number == 0 || now.caller != last.caller || sure < now.number):
		return nil, 0, errUsed
	}
	if one == nil {
		one = &claim{key: k, owner: owner, calling: onecall.New()}
		c.all[k] = one
	}
	one.chosen = one.chosen || !acquires // run says it for an acquire
	one.skipped = one.skipped || now.skips(last)
	one.sure = sure
	if one.last = last; now.number > 0 {
		one.last = now
	}
	one.users++
	one.entries++
	if one.waiting != nil {
		one.waiting(errSuperseded)
	}
	return one, one.entries, nil
}

// sure returns the claim's next sure when a call of this order enters. Earlier calls cannot be in
// flight elsewhere if they were answered or came to this instance. If a caller's first call is not an
// acquire, it continues another caller's claim, whose calls are unknown.
func (o order) sure(known int64, last order, acquires bool) int64 {
	switch {
	case o.number == 0:
		return known
	case last.number == 0 || last.caller != o.caller:
		known = 0
	default:
		known = max(known, last.answered) // from the owner's previous claim
	}
	if known = max(known, o.answered); known >= o.number-1 && (acquires || o.number > 1) {
		return o.number
	}
	return known
}

// mayBeLate reports whether another instance may still serve an acquire of the owner.
func (c *claims) mayBeLate(one *claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return one.sure < one.last.number
}

// leave ends what enter has begun, and gives up the turn. The last caller to leave a claim that has
// ended removes it. If calls of its owner may follow, the owner is remembered.
//
// If known, the engine's driver knows of the claim. Then the last caller, who would remove it, gives up
// nothing: leave returns false, and the caller forgets the driver's claim first.
func (c *claims) leave(one *claim, known bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known && one.users == 1 && one.phase == unknown {
		return false
	}
	one.calling.End()
	if one.users--; one.users > 0 || one.phase.isKept() {
		return true
	}
	if delete(c.all, one.key); one.phase == ended && one.chosen {
		one.last.answered = one.sure
		c.ends.put(one.key, one.last)
	}
	return true
}

// quits is leave for a caller without the turn. If it is the last caller, it gets the turn, and leave
// must follow.
func (c *claims) quits(one *claim) (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.users > 1 {
		one.users--
		return false
	}
	return one.calling.TryBegin() // it succeeds, because there is no other user
}

// on records an event of a claim.
func (c *claims) on(one *claim, e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.on(e)
}

// lasts records that a claim has, or may have, a lease or a place, which ends at until unless the
// claim renews it.
func (c *claims) lasts(one *claim, e event, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.on(e)
	one.until = until
}

// lasting reports whether the claim may still have its lease or its place in the queue.
func (c *claims) lasting(one *claim, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return one.lasts(now)
}

// lasts reports what lasting does. Requires claims.mu.
func (one *claim) lasts(now time.Time) bool {
	return one.phase.isKept() && one.phase != lost && now.Before(one.until)
}

// holds reports whether the claim may still have its lease.
func (c *claims) holds(one *claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return one.phase == held && one.lasts(time.Now())
}

// outlasted reports whether the claim's lease or place is over in any case.
func (c *claims) outlasted(one *claim, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.After(one.until)
}

// hasSkipped reports whether other instances may have served calls on the claim since the last call
// of hasSkipped.
func (c *claims) hasSkipped(one *claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	skipped := one.skipped
	one.skipped = false
	return skipped
}

// isLate reports whether a later call of its caller has entered since the call with this order.
func (c *claims) isLate(one *claim, now order) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.number > 0 && now.caller == one.last.caller && now.number < one.last.number
}

// termOf returns the term of the lease with that token, if this instance has granted or renewed it.
// calls means that a call on the claim is in progress, which may change that.
func (c *claims) termOf(k lease, of string) (t *term, calls bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch one := c.all[k]; {
	case one == nil:
		return nil, false
	case one.users > 0:
		return nil, true
	case token(one.lease.fence) == of:
		return one.lease.term, false
	}
	return nil, false
}

// beganBy returns a time by which the lease with that token had begun, if it was first granted or
// renewed here; zero: unknown.
func (c *claims) beganBy(k lease, of string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[k]; one != nil && one.begun > 0 && token(one.begun) == of {
		return one.began
	}
	return time.Time{}
}

// has reports whether a claim exists, with calls or kept for later ones.
func (c *claims) has(k lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[k] != nil
}

func (c *claims) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// turnOver turns over what is remembered for long enough. Requires mu.
func (c *claims) turnOver(now time.Time) {
	c.ends.turnOver(now)
	c.evicted.turnOver(now)
	c.removed.turnOver(now)
}

// sweep forgets claims that are over, until ctx ends.
func (c *claims) sweep(ctx context.Context, forget func(*claim)) {
	for pause.For(ctx, sweepEvery) == nil {
		now := time.Now()
		for _, one := range c.over(now) {
			if ctx.Err() == nil && c.close(one, now) {
				forget(one)
				c.drop(one)
			}
		}
	}
}

// over returns the claims that may be forgotten.
func (c *claims) over(now time.Time) (all []*claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		if one.isOver(now) {
			all = append(all, one)
		}
	}
	c.turnOver(now)
	return all
}

// isOver reports whether the claim may be forgotten. Requires claims.mu.
func (one *claim) isOver(now time.Time) bool { return one.users == 0 && now.After(one.until) }

// close takes the turn of a claim, if it is still over. New calls then wait: whatever they acquired
// would be given up with the old lease. drop must follow.
func (c *claims) close(one *claim, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !one.isOver(now) {
		return false
	}
	one.users++
	return one.calling.TryBegin() // it succeeds, because there was no user
}

// drop forgets a claim. Calls that have come meanwhile start from the beginning.
func (c *claims) drop(one *claim) {
	one.driver, one.acquires, one.evicted, one.queued = nil, false, nil, time.Time{}
	c.mu.Lock()
	defer c.mu.Unlock()
	one.on(onForget)
	one.calling.End() // after that, so that no grant to a later call is forgotten here
	if one.users--; one.users == 0 {
		delete(c.all, one.key)
	}
}

// forget ends the driver's claim, for example once nobody has called for its TTL. If the engine ties
// leases to this instance's session, nobody else can use the lease; it is released, because the
// session would keep it. So is a lease that nobody else can use because nobody knows its owner. Otherwise
// another instance may have renewed the lease, so it stays, and only this driver forgets it.
func (s *Server) forget(one *claim) {
	switch {
	case one.driver == nil:
	case s.mayForget(one):
		if one.unwanted && !one.lease.since.IsZero() { // a place has ended by now
			s.end(one)
		}
		one.driver.Forget()
	default:
		s.end(one)
	}
}

// mayForget reports whether another claim, maybe of another instance, can use the lease of this one.
func (s *Server) mayForget(one *claim) bool { return s.features.Resumes || one.driver.forgets() }

// end releases whatever the driver's claim has, which nobody is to use.
func (s *Server) end(one *claim) {
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	_ = one.driver.Release(ctx, driver.End{}) // if it fails, the lease ends with its TTL or the session
}

// take waits for the turn, for at most callBound.
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

// use creates the driver's claim if there is none. wanted means that the holder asks for notices of
// waiters. Requires the turn.
func (s *Server) use(one *claim, req driver.Request, wanted bool) (err error) {
	if one.driver == nil {
		one.cause = make(chan report, 1)
		req.Lost = s.hears(one.key, one.cause)
		if one.recall = nil; wanted && s.features.Tells {
			one.recall = s.newRecall(one, req.Mode)
			req.Wanted = one.recall.comes
		}
		one.req = req
		one.driver, err = s.claim(req)
	}
	return err
}

// newOwner returns 160 random bits in base32.
func newOwner() string {
	var random [20]byte
	rand.Read(random[:]) // never fails: it would end the program instead
	return base32.StdEncoding.EncodeToString(random[:])
}
