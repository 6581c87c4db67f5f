package redislock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
)

const (
	// placeTTL is how long a place in the queue outlives its last Try: a waiter that
	// died delays those behind it by no more. keepPlace is when to Try again to keep
	// it; two may fail.
	placeTTL  = 3 * time.Second
	keepPlace = placeTTL / 3
	// foreignPoll is how often to look whether a foreign holder has released, because
	// that wakes nobody: 14 commands a second, and noticed within a tenth of one.
	foreignPoll = 70 * time.Millisecond
	// goneTTL is how long the server refuses an attempt that comes after its claim was
	// given up. Both were sent; only a server that was stopped or a link that stood
	// still can reverse them, and then serves both at once.
	goneTTL = 30 * time.Second
	// maxExact is the first number that Lua cannot count to in steps of one.
	maxExact = 1 << 53
	// barred is the mark of an owner that was given up: no number is above it.
	barred = maxExact
	// hearWithin is how long a waiter waits for the driver's subscription. Without one
	// it comes back every retryDeaf.
	hearWithin = time.Second
	retryDeaf  = 200 * time.Millisecond
)

// claim implements driver.Claim.
type claim struct {
	d    *Driver
	req  driver.Request
	keys keys

	listener listener // guarded by the subscriber's mu

	mu    sync.Mutex // calls do not overlap, but nothing else orders their memory
	notes notes      // guarded by mu
	state
}

func (c *claim) load() state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *claim) update(f func(*state)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
}

// Replies of acquire.lua.
const (
	replyBusy = iota
	replyGranted
	replyHeld
	replyGone
	replyNoHistory
	replyTooYoung
)

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (g driver.Grant, err error) {
	for {
		g, taken, err := c.takePlain(ctx)
		if !taken && err == nil {
			g, err = c.takeOrQueue(ctx)
		}
		if !links.Again(ctx, err) {
			return g, err
		}
	}
}

// takeOrQueue is a Try by the scripts, which know of waiters.
func (c *claim) takeOrQueue(ctx context.Context) (driver.Grant, error) {
	if !c.req.Queue {
		c.d.subscriber.listen(c)
		g, busy, err := c.attempt(ctx, 0)
		if busy != nil { // without a place: nobody releases it
			c.d.subscriber.forget(c)
			if c.load().uncertain.attempt {
				c.giveBack(ctx)
			}
		}
		return c.settle(g, busy, err)
	}
	if err := c.d.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	if busy := c.d.subscriber.kept(c); busy != nil {
		return driver.Grant{}, busy
	}
	armed := c.arm()
	g, busy, err := c.attempt(ctx, armed.number)
	if busy != nil && !armed.heard {
		// It has its place, but what was told since went unheard. Look again when we hear.
		if c.d.subscriber.hear(ctx, c, hearWithin) {
			armed = c.arm()
			g, busy, err = c.attempt(ctx, armed.number)
		}
	}
	if busy != nil {
		busy.Wake, busy.Granted = armed.wake, armed.granted
		if !armed.heard {
			busy.Retry = min(busy.Retry, retryDeaf)
		}
	}
	return c.settle(g, busy, err)
}

// arm is called before an attempt reads the state: what the server tells from then on is
// for that attempt's refusal.
func (c *claim) arm() armed {
	return c.d.subscriber.arm(c, c.d.tries.Add(1))
}

// brought takes a grant that the server gave without an attempt. If it may not count, the
// next attempt finds it, and says so.
func (c *claim) brought(fence uint64) (ok bool) {
	c.update(func(now *state) {
		if ok = fence > now.floor; ok {
			now.hold(fence)
		}
	})
	if ok {
		c.d.known.saw(c.keys.lock, fence)
	}
	return ok
}

// settle turns what an attempt has brought into the answer of Try.
func (c *claim) settle(g driver.Grant, busy *driver.Busy, err error) (driver.Grant, error) {
	if busy != nil {
		return driver.Grant{}, busy
	}
	c.d.subscriber.disarm(c)
	if err != nil {
		return driver.Grant{}, err
	}
	c.d.subscriber.unplaced(c)
	return g, nil
}

// attempt has the script run once: a grant, a refusal, or an error. try is the number of a Try that waits.
func (c *claim) attempt(ctx context.Context, try int64) (driver.Grant, *driver.Busy, error) {
	d, k := c.d, c.keys
	if err := d.usable(ctx); err != nil {
		return driver.Grant{}, nil, err
	}
	was := c.load()
	seen := d.known.of(k.lock).fence
	if !was.mayBeGranted() {
		was.floor = seen
	}
	if was.uncertain.attempt { // that one's number is to be smaller
		was.releases++
	}
	// Unknown until there is an answer, also when the answer is that of another attempt.
	c.update(func(now *state) {
		now.releases = was.releases
		now.asked, now.uncertain.attempt, now.floor, now.grant.plain = true, true, was.floor, false
	})
	reply, err := c.sendTry(ctx, was, try)
	if err != nil {
		return driver.Grant{}, nil, explain(err)
	}
	values, err := reply.slice(1)
	if err != nil {
		return driver.Grant{}, nil, err
	}
	unserved := func() { c.update(func(now *state) { now.uncertain = was.uncertain }) }
	switch number(values[0]) {
	case replyTooYoung:
		unserved()
		return driver.Grant{}, nil, d.tooYoung(values)
	case replyNoHistory:
		unserved()
		return driver.Grant{}, nil, fmt.Errorf("%w: %q", ErrNoFenceHistory, c.req.Resource)
	case replyBusy:
		busy, err := c.refusal(values)
		if err != nil {
			return driver.Grant{}, nil, err
		}
		c.update(func(now *state) {
			now.uncertain = uncertain{attempt: was.uncertain.attempt}
			now.refuse(was, c.req.Queue)
		})
		c.d.subscriber.placed(c, number(values[1]) == 1)
		return driver.Grant{}, busy, nil
	case replyGranted, replyHeld:
		if len(values) > 2 && number(values[2]) == 0 {
			d.known.contended(k.lock, false)
		}
		fence := uint64(number(values[1]))
		adopts := false // what another claim of this owner was granted, whose lease it stays
		switch {
		case number(values[0]) == replyGranted:
			was.floor = seen // by this very attempt
		case !was.mayBeGranted() && was.grant.fence == 0:
			if fence < seen {
				c.update(func(now *state) { now.uncertain = uncertain{} })
				return driver.Grant{}, nil, c.regressed(seen, fence)
			}
			was.floor, adopts = 0, true
		}
		err := c.accept(ctx, fence, was, reply)
		if adopts && err == nil { // it is released by its fence, as what is resumed is
			c.update(func(now *state) { now.grant.adopted = true })
		}
		return granted(c.req.TTL, fence), nil, err
	}
	// Another has ended what this owner held, an operator or who resumed it. This attempt is of after that. A mark
	// that no number can follow was damaged: to ask again would bring it again.
	if len(values) > 1 && number(values[1]) == barred {
		unserved()
		return driver.Grant{}, nil, driver.ErrBarred
	}
	if len(values) < 2 || number(values[1]) < int64(was.releases) || number(values[1]) > barred {
		return driver.Grant{}, nil, alienReply(values)
	}
	unserved()
	c.update(func(now *state) { now.releases = int(number(values[1])) + 1 })
	return c.attempt(ctx, try)
}

// sendTry sends an attempt of a claim that is as was.
func (c *claim) sendTry(ctx context.Context, was state, number int64) (answer, error) {
	d, k := c.d, c.keys
	kinds := []byte{kindHistory, kindGone, kindQueue, kindDetails, kindShares, kindLimits, kindRest, kindBeats}
	wake, pending, fresh := "", "", "" // pending is of calls that may still come
	if c.req.Queue {
		wake = d.subscriber.wakeChannel(k.lock)
	}
	if was.mayBeServed() {
		pending = fmt.Sprint(was.releases - 1)
	}
	if d.o.MinUptime > 0 {
		kinds, fresh = append(kinds, kindMemory), strings.ToLower(rand.Text())
	}
	memory, known := d.seen.now()
	try := d.pipelines.newCall(scriptAcquire)
	try.durable, try.leaves = true, leavesSoon
	try.keys(k, c.req.Owner, kinds...)
	try.args(c.req.Owner, c.req.TTL, modeName(c.req.Mode), c.req.Limit, c.req.Queue, c.channel(), c.req.Note,
		d.historyLife(c.req.TTL), d.o.RequireFenceHistory, was.releases, wake, d.o.MinUptime, pending, goneTTL,
		number, d.grantsUnasked(), fresh, memory, known.Milliseconds(), d.o.Rest, placeTTL)
	return d.pipelines.ask(ctx, k.lock, try)
}

// accept takes a grant, or gives it up when too few replicas have it or its fence went back.
func (c *claim) accept(ctx context.Context, fence uint64, was state, reply answer) error {
	if fence <= was.floor && fence != was.grant.fence {
		c.giveBack(ctx)
		return c.regressed(was.floor, fence)
	}
	if reply.acknowledged < c.d.o.Replicas {
		c.giveBack(ctx)
		return fmt.Errorf("%w: %d of %d", ErrReplicas, reply.acknowledged, c.d.o.Replicas)
	}
	c.update(func(now *state) {
		now.uncertain = uncertain{attempt: was.uncertain.attempt}
		now.hold(fence)
	})
	c.d.known.saw(c.keys.lock, fence)
	return nil
}

func (c *claim) regressed(from, to uint64) error {
	return fmt.Errorf("%w: from %d to %d on %q", ErrFenceRegressed, from, to, c.req.Resource)
}

// giveBack releases a grant that must not count. Should it fail, the caller's own
// Release, or the TTL, does it.
func (c *claim) giveBack(ctx context.Context) {
	_ = c.end(ctx, driver.End{}) // the error that comes with it tells more
}

// refusal says who is in the way and when to come back if nothing wakes the caller.
func (c *claim) refusal(values []any) (*driver.Busy, error) {
	if len(values) < 4 {
		return nil, alienReply(values)
	}
	first, foreign, left := number(values[1]) == 1, number(values[2]) == 1, ms(values[3])
	busy := &driver.Busy{Retry: left}
	if len(values) >= 9 {
		busy.Holder = driver.Holder{
			Owner: driver.OwnerOf(text(values[4])), Mode: modeOf(text(values[5])), Fence: driver.FenceOf(max(number(values[6]), 0)),
			Held: ms(values[7]), Left: left, Note: text(values[8]),
		}
	}
	soon := keepPlace
	if foreign && (first || !c.req.Queue) {
		soon = foreignPoll
	}
	if busy.Retry == 0 || c.req.Queue && !first || busy.Retry > soon && (c.req.Queue || foreign) {
		busy.Retry = soon
	}
	return busy, nil
}

// granted is the grant that the caller may count on.
func granted(ttl time.Duration, fence uint64) driver.Grant {
	return driver.Grant{TTL: roundUp(ttl), Fence: driver.FenceOf(fence)}
}

// Forget implements driver.Forgetter.
func (c *claim) Forget() { c.d.subscriber.forget(c) }

// errUntold is of a release that was sent twice, of which the second found nothing.
var errUntold = errors.New("redislock: the first of two attempts had no answer, and may have released it")

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	err := c.end(ctx, how)
	for links.Again(ctx, err) {
		if err = c.end(ctx, how); errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrEvicted) {
			err = errUntold
		}
	}
	return err
}

func (c *claim) end(ctx context.Context, how driver.End) error {
	c.d.subscriber.forget(c)
	was := c.load()
	if was.knowsNothing() {
		return c.endForAnother(ctx, how)
	}
	late := "" // an attempt that may still come
	which := int64(was.releases)
	switch {
	case was.grant.adopted:
		late, which = all, int64(was.grant.fence)
	case was.mayBeServed():
		late = fmt.Sprint(was.releases)
	}
	c.update(func(now *state) {
		now.become(leaving)
		now.releases, now.uncertain.release, now.grant.plain = was.releases+1, true, false
	})
	if was.grant.plain && late == "" && how == (driver.End{}) {
		if given, err := c.givePlain(ctx); given || err != nil {
			if err == nil {
				c.update((*state).released)
			}
			return err
		}
	}
	given, err := c.sendRelease(ctx, how, late, which)
	if err != nil {
		return err
	}
	c.update((*state).released)
	if given <= replyNothing {
		return c.why(ctx, was.grant.fence)
	}
	return nil
}

// endForAnother ends what another claim of the owner was granted, such as that of another process, or its place. It first
// looks what that is, so that a release which comes late ends no later lease of the owner.
func (c *claim) endForAnother(ctx context.Context, how driver.End) error {
	c.update(func(now *state) {
		now.become(leaving)
		now.uncertain.release = true
	})
	for range endAttempts {
		fence, _, _, err := c.runRenew(ctx, time.Millisecond, 0) // every lease lasts longer
		if err != nil {
			return err
		}
		given, err := c.sendRelease(ctx, how, all, int64(fence))
		switch {
		case err != nil:
			return err
		case given == replyAnother:
			continue
		}
		c.update((*state).released)
		if given == replyNothing {
			return c.why(ctx, fence)
		}
		return nil
	}
	return fmt.Errorf("redislock: what the owner of %q holds changes all the time", c.req.Resource)
}

// endAttempts are how often what is to end is looked for, when the owner is granted the lock in between.
const endAttempts = 3

// all is the number of the attempts of an owner's other claims.
const all = "all"

// Replies of release.lua.
const (
	replyAnother = iota - 1 // what the owner holds was granted since
	replyNothing
	replyGiven
	replyGivenOn
)

// sendRelease has release.lua run once.
func (c *claim) sendRelease(ctx context.Context, how driver.End, late string, which int64) (int64, error) {
	d, k := c.d, c.keys
	release := d.pipelines.newCall(scriptRelease)
	release.leaves = leavesLate
	release.keys(k, c.req.Owner, kindHistory, kindGone, kindQueue, kindDetails, kindShares, kindLimits, kindRest, kindBeats)
	release.args(c.req.Owner, max(how.Linger, 0), late, goneTTL, which, d.o.Rest, restEvery, how.Bar, placeTTL)
	reply, err := d.ask(ctx, k.lock, release)
	if err != nil {
		return 0, err
	}
	given, err := reply.integer("release")
	if err == nil && given != replyAnother {
		d.subscriber.unplaced(c)
	}
	if given == replyGivenOn {
		d.known.contended(k.lock, true)
	}
	return given, err
}

// channel is where the server tells this driver that the lease was ended by force.
func (c *claim) channel() string {
	if c.req.Lost == nil {
		return ""
	}
	return c.d.subscriber.channel()
}

// roundUp is what the server makes of a TTL.
func roundUp(d time.Duration) time.Duration { return time.Duration(millis(d)) * time.Millisecond }

func modeName(m driver.Mode) string {
	if m == driver.Shared {
		return "s"
	}
	return "x"
}

func modeOf(name string) driver.Mode {
	if name == "s" {
		return driver.Shared
	}
	return driver.Exclusive
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func alienReply(values []any) error {
	return fmt.Errorf("redislock: alien reply of %d values: %w", len(values), driver.ErrCorrupt)
}

func number(v any) int64 {
	n, _ := v.(int64)
	return n
}

func text(v any) string {
	s, _ := v.(string)
	return s
}
