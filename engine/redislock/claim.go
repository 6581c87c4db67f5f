package redislock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
)

const (
	// placeTTL is how long a place in the queue outlives its last Try. That bounds how long a dead
	// waiter delays those behind it. keepPlace is when to call Try again to keep the place; two
	// tries may fail.
	placeTTL  = 3 * time.Second
	keepPlace = placeTTL / 3
	// foreignPoll is the polling interval for foreign holders, whose release notifies nobody. It
	// costs 14 commands a second, and notices a release within a tenth of a second.
	foreignPoll = 70 * time.Millisecond
	// goneTTL is how long the server refuses an attempt that arrives after its claim was given up.
	// The attempt was sent first. Only a stopped server or a stalled link can reverse them, and
	// then the server gets both at once.
	goneTTL = 30 * time.Second
	// maxExact is the first number that Lua may fail to count exactly.
	maxExact = 1 << 53
	// barred is the mark of a barred owner. No attempt has a greater number.
	barred = maxExact
	// subscribeTimeout is how long a new waiter waits for the driver's subscription. Without one it
	// then polls every retryUnsubscribed.
	subscribeTimeout  = time.Second
	retryUnsubscribed = 200 * time.Millisecond
)

// claim implements driver.Claim.
type claim struct {
	d    *Driver
	req  driver.Request
	keys keys

	listener listener // guarded by the subscriber's mu

	mu    sync.Mutex // calls do not overlap, but nothing else synchronises them
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

// Replies of acquire.lua, the first value of each.
const (
	replyBusy = iota
	replyGranted
	replyHeld
	replyGone
	replyNoHistory
	replyTooYoung
	replyTooHeavy
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

// takeOrQueue is a Try by the scripts that respect waiters.
func (c *claim) takeOrQueue(ctx context.Context) (driver.Grant, error) {
	if !c.req.Queue {
		c.d.subscriber.listen(c)
		g, busy, err := c.attempt(ctx, 0)
		return c.settleWithoutPlace(ctx, g, busy, err)
	}
	if err := c.d.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	if busy := c.d.subscriber.kept(c); busy != nil {
		return driver.Grant{}, busy
	}
	armed := c.arm()
	g, busy, err := c.attempt(ctx, armed.number)
	if busy != nil && !armed.heard && !armed.again {
		// The claim has its place, but may have missed messages. Try again once subscribed.
		if c.d.subscriber.hear(ctx, c, subscribeTimeout) {
			armed = c.arm()
			g, busy, err = c.attempt(ctx, armed.number)
		}
	}
	if busy != nil {
		busy.Wake, busy.Granted = armed.wake, armed.granted
		if !armed.heard {
			busy.Retry = min(busy.Retry, retryUnsubscribed)
		}
	}
	return c.settle(g, busy, err)
}

// arm must be called before an attempt reads the state. Messages that come after arm then count for
// that attempt's refusal.
func (c *claim) arm() armed {
	return c.d.subscriber.arm(c, c.d.tries.Add(1))
}

// receiveGrant accepts a grant that the server gave without an attempt. If it may not count, the
// next attempt finds and reports it.
func (c *claim) receiveGrant(fence uint64) (ok bool) {
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

// settleWithoutPlace is settle for a Try that does not queue. A refusal then leaves no place to
// release.
func (c *claim) settleWithoutPlace(ctx context.Context, g driver.Grant, busy *driver.Busy, err error) (driver.Grant, error) {
	if busy != nil {
		c.d.subscriber.forget(c)
		if c.load().uncertain.attempt {
			c.giveBack(ctx)
		}
	}
	return c.settle(g, busy, err)
}

// settle turns the result of an attempt into the result of Try.
func (c *claim) settle(g driver.Grant, busy *driver.Busy, err error) (driver.Grant, error) {
	if busy != nil {
		return driver.Grant{}, busy
	}
	c.d.subscriber.disarm(c)
	if err != nil {
		return driver.Grant{}, err
	}
	c.d.subscriber.dropPlace(c)
	return g, nil
}

// attempt runs the script once and returns a grant, a refusal, or an error. try is the number of
// a Try that waits.
func (c *claim) attempt(ctx context.Context, try int64) (driver.Grant, *driver.Busy, error) {
	if err := c.d.usable(ctx); err != nil {
		return driver.Grant{}, nil, err
	}
	before := c.beginAttempt()
	reply, err := c.d.pipelines.ask(ctx, c.keys.lock, c.newTry(before.state, try))
	return c.attempted(ctx, try, before, reply, err)
}

// before is what was known when an attempt was sent.
type before struct {
	state
	seen uint64 // the largest fence that the driver had seen
}

// beginAttempt is called before an attempt is sent.
func (c *claim) beginAttempt() before {
	was, seen := c.load(), c.d.known.of(c.keys.lock).fence
	if !was.mayBeGranted() {
		was.floor = seen
	}
	if was.uncertain.attempt { // this attempt needs a greater number than the uncertain one
		was.releases++
	}
	// The outcome is unknown until an answer comes, even if that is the answer to another attempt.
	c.update(func(now *state) {
		now.releases = was.releases
		now.asked, now.uncertain.attempt, now.floor, now.grant.plain = true, true, was.floor, false
	})
	return before{was, seen}
}

// attempted handles the answer to an attempt.
func (c *claim) attempted(ctx context.Context, try int64, before before, reply answer, err error) (driver.Grant, *driver.Busy, error) {
	d, k, was, seen := c.d, c.keys, before.state, before.seen
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
	case replyTooHeavy:
		unserved()
		c.update(func(now *state) { now.refuse(was, false) })
		c.d.subscriber.dropPlace(c)
		return driver.Grant{}, nil, driver.ErrTooHeavy
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
		// Whether the grant belongs to another claim of this owner: none of this claim's attempts can
		// have brought it.
		adopts := was.grant.fence == 0 && (!was.mayBeGranted() || fence <= was.floor && !mayHaveBrought(was, values))
		switch {
		case number(values[0]) == replyGranted:
			was.floor, adopts = seen, false // granted by this attempt
		case adopts:
			if c.req.Mode == driver.Exclusive && fence < seen { // later sharers have greater fences
				c.update(func(now *state) { now.uncertain = uncertain{attempt: was.uncertain.attempt} })
				return driver.Grant{}, nil, c.regressed(seen, fence)
			}
			was.floor = 0
		}
		err := c.accept(ctx, fence, was, reply)
		if err == nil && len(values) > 2 && number(values[2]) == 1 {
			c.wanted()
		}
		if adopts && err == nil { // release it by its fence, as a resumed lease
			c.update(func(now *state) { now.grant.adopted = true })
		}
		return granted(c.req.TTL, fence), nil, err
	}
	// The mark was left by an operator, or by a process that resumed the lease and ended it. This
	// attempt was made later, so it is sent again with a greater number. A mark above all numbers
	// is damaged: another attempt would find it again.
	if len(values) > 1 && number(values[1]) == barred {
		unserved()
		return driver.Grant{}, nil, driver.ErrBarred
	}
	if len(values) < 2 || number(values[1]) < int64(was.releases) || number(values[1]) > barred {
		return driver.Grant{}, nil, unexpectedReply(values)
	}
	unserved()
	c.update(func(now *state) { now.releases = int(number(values[1])) + 1 })
	return c.attempt(ctx, try)
}

// mayHaveBrought reports whether an uncertain attempt may have brought a sharer's grant with a fence
// that is not above the floor. Only a server that has gone back gives such fences: the last one that
// it has given is then below the floor, too, until the floor is raised or its clock has passed it.
func mayHaveBrought(was state, granted []any) bool {
	if !was.uncertain.attempt || len(granted) < 4 {
		return false
	}
	last := uint64(number(granted[3]))
	return last > 0 && last < was.floor // 0: the history was lost since
}

// newTry returns an attempt by a claim in state was. number is the number of the Try.
func (c *claim) newTry(was state, number int64) *call {
	d, k := c.d, c.keys
	kinds := []byte{kindHistory, kindGone, kindQueue, kindDetails, kindShares, kindLimits, kindRest, kindBeats, kindWeights, kindMost}
	wake, pending, fresh := "", "", "" // pending is the last number of calls that may still arrive
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
	try.args(c.req.Owner, c.req.TTL, modeName(&c.req), c.req.Limit, c.req.Queue, c.channel(), c.req.Note,
		d.historyLife(c.req.TTL), d.o.RequireFenceHistory, was.releases, wake, d.o.MinUptime, pending, goneTTL,
		number, d.grantsUnasked(), fresh, memory, known.Milliseconds(), d.o.Rest, placeTTL)
	return try
}

// accept accepts a grant, or gives it up if too few replicas acknowledged it or its fence went
// back.
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

// giveBack releases a grant that must not count. If it fails, the caller's Release or the TTL
// ends the grant.
func (c *claim) giveBack(ctx context.Context) {
	_ = c.end(ctx, driver.End{}) // the caller returns a better error
}

// refusal returns who holds the lock, and when to retry if nothing wakes the caller.
func (c *claim) refusal(values []any) (*driver.Busy, error) {
	if len(values) < 4 {
		return nil, unexpectedReply(values)
	}
	first, foreign, left := number(values[1]) == 1, number(values[2]) == 1, ms(values[3])
	busy := &driver.Busy{Retry: left}
	if len(values) >= 9 {
		busy.Holder = driver.Holder{
			Owner: driver.OwnerOf(text(values[4])), Mode: modeOf(text(values[5])), Weight: weightOf(text(values[5])), Fence: driver.FenceOf(max(number(values[6]), 0)),
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

// granted returns the grant that the caller may rely on.
func granted(ttl time.Duration, fence uint64) driver.Grant {
	return driver.Grant{TTL: roundUp(ttl), Fence: driver.FenceOf(fence)}
}

// Forget implements driver.Forgetter.
func (c *claim) Forget() { c.d.subscriber.forget(c) }

// errMaybeReleased is the error of a release that was sent twice: the first had no answer, and the
// second found nothing.
var errMaybeReleased = errors.New("redislock: the first of two attempts had no answer, and may have released it")

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	return c.endAgain(ctx, how, c.end(ctx, how))
}

// endAgain repeats a release that failed with err, if no answer came at all.
func (c *claim) endAgain(ctx context.Context, how driver.End, err error) error {
	for links.Again(ctx, err) {
		if err = c.end(ctx, how); errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrEvicted) {
			err = errMaybeReleased
		}
	}
	return err
}

func (c *claim) end(ctx context.Context, how driver.End) error {
	if was := c.load(); was.isGone() && how.Bar == 0 {
		return errReleased // what listens now is the owner's next claim
	}
	c.d.subscriber.forget(c)
	if was := c.load(); was.knowsNothing() {
		return c.releaseUnknownGrant(ctx, how)
	}
	l := c.leave(how)
	if l.plain {
		if given, err := c.givePlain(ctx); given || err != nil {
			return err
		}
	}
	return c.endWhole(ctx, how, l)
}

// A parting is what a release needs to know of the claim's state before it.
type parting struct {
	plain bool   // give.lua suffices
	late  string // the number of an attempt that may still arrive, or all; "": none
	which int64
	fence uint64
}

// leave is called before a release is sent. It returns what the release needs to know.
func (c *claim) leave(how driver.End) parting {
	was := c.load()
	l := parting{which: int64(was.releases), fence: was.grant.fence}
	switch {
	case was.grant.adopted:
		l.late, l.which = all, int64(was.grant.fence)
	case was.mayBeServed():
		l.late = fmt.Sprint(was.releases)
	}
	c.update(func(now *state) {
		now.become(leaving)
		now.releases, now.uncertain.release, now.grant.plain = was.releases+1, true, false
	})
	l.plain = was.grant.plain && l.late == "" && how == (driver.End{})
	return l
}

// endWhole releases by the script that serves all cases.
func (c *claim) endWhole(ctx context.Context, how driver.End, l parting) error {
	given, err := c.sendRelease(ctx, how, l.late, l.which)
	return c.ended(ctx, l.fence, given, err)
}

// ended handles the answer to release.lua about the grant with that fence.
func (c *claim) ended(ctx context.Context, fence uint64, given int64, err error) error {
	if err != nil {
		return err
	}
	c.update(func(now *state) { now.released(given > replyNothing) })
	if given <= replyNothing {
		return c.why(ctx, fence)
	}
	return nil
}

// releaseUnknownGrant releases the grant or place of another claim of the owner, for example in
// another process. It first asks which grant that is, so that a late release does not end a
// later lease of the owner.
func (c *claim) releaseUnknownGrant(ctx context.Context, how driver.End) error {
	c.update(func(now *state) {
		now.become(leaving)
		now.uncertain.release = true
	})
	for range endAttempts {
		r, err := c.runRenew(ctx, time.Millisecond, 0) // shorter than any lease, so it renews nothing
		if err != nil {
			return err
		}
		given, err := c.sendRelease(ctx, how, all, int64(r.fence))
		if err != nil || given != replyAnother {
			return c.ended(ctx, r.fence, given, err)
		}
	}
	return fmt.Errorf("redislock: what the owner of %q holds changes all the time", c.req.Resource)
}

// endAttempts is how often releaseUnknownGrant tries again if the owner is granted the lock in
// between.
const endAttempts = 3

// all is what a release has in place of the number of an attempt: it ends what other claims of the
// owner hold.
const all = "all"

// Replies of release.lua.
const (
	replyAnother = iota - 1 // the owner's present lease was granted later
	replyNothing
	replyGiven
	replyGivenOn
)

// sendRelease runs release.lua once.
func (c *claim) sendRelease(ctx context.Context, how driver.End, late string, which int64) (int64, error) {
	reply, err := c.d.ask(ctx, c.keys.lock, c.newRelease(how, late, which))
	return c.released(reply, err)
}

func (c *claim) newRelease(how driver.End, late string, which int64) *call {
	d, k := c.d, c.keys
	release := d.pipelines.newCall(scriptRelease)
	release.leaves = leavesLate
	release.keys(k, c.req.Owner, kindHistory, kindGone, kindQueue, kindDetails, kindShares, kindLimits, kindRest, kindBeats, kindWeights, kindMost)
	release.args(c.req.Owner, max(how.Linger, 0), late, goneTTL, which, d.o.Rest, restEvery, how.Bar, placeTTL)
	return release
}

// released reads the answer to release.lua.
func (c *claim) released(reply answer, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	given, err := reply.integer("release")
	if err == nil && given != replyAnother {
		c.d.subscriber.dropPlace(c)
	}
	if given == replyGivenOn {
		c.d.known.contended(c.keys.lock, true)
	}
	return given, err
}

// channel returns the channel for the end of the lease, and for waiters if the claim wants to know
// of them; "": the claim wants neither.
func (c *claim) channel() string {
	switch {
	case c.req.Wanted != nil:
		return c.d.subscriber.recalls
	case c.req.Lost != nil:
		return c.d.subscriber.channel
	}
	return ""
}

// wanted notifies the holder that others wait, if it wants to know. Call it without mutexes.
func (c *claim) wanted() {
	if c.req.Wanted != nil {
		c.req.Wanted()
	}
}

// roundUp returns the TTL that the server uses.
func roundUp(d time.Duration) time.Duration { return time.Duration(millis(d)) * time.Millisecond }

// modeName returns the mode as scripts write it: x, or s and the weight. A weight of 1 is left out.
func modeName(req *driver.Request) string {
	switch {
	case req.Mode == driver.Exclusive:
		return "x"
	case req.Weight > 1:
		return fmt.Sprint("s", req.Weight)
	}
	return "s"
}

func modeOf(name string) driver.Mode {
	if strings.HasPrefix(name, "s") {
		return driver.Shared
	}
	return driver.Exclusive
}

// weightOf returns the weight in the name of a mode, or 0 if the mode is exclusive.
func weightOf(name string) int {
	if modeOf(name) == driver.Exclusive {
		return 0
	}
	n, _ := strconv.Atoi(name[1:]) // a damaged weight counts as 1
	return max(n, 1)
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func unexpectedReply(values []any) error {
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
