package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// placeTTL is how long a place in the queue outlives its last Try: a waiter that
	// died delays those behind it by no more. keepPlace is when to Try again to keep
	// it; two may fail.
	placeTTL  = 3 * time.Second // prelude.lua and inspect.lua have it too
	keepPlace = placeTTL / 3
	// foreignPoll is how often to look whether a foreign holder has released, because
	// that wakes nobody: 14 commands a second, and noticed within a tenth of one.
	foreignPoll = 70 * time.Millisecond
	// goneTTL is how long the server refuses an attempt that comes after its claim was
	// given up. Both were sent; only a server that was stopped or a link that stood
	// still can reverse them, and then serves both at once.
	goneTTL = 30 * time.Second
	// hearWithin is how long a waiter waits for the driver's subscription. Without one
	// it comes back every retryDeaf.
	hearWithin = time.Second
	retryDeaf  = 200 * time.Millisecond
)

// claim implements driver.Claim and driver.Lingerer.
type claim struct {
	d    *Driver
	req  driver.Request
	keys keys

	mu sync.Mutex // calls do not overlap, but nothing else orders their memory
	known
}

// known is what a claim knows of itself, guarded by its mu.
type known struct {
	attempt int           // counts the times it was given up; tells late attempts from new ones
	tries   int           // counts the attempts; tells to which one a grant that is brought belongs
	pending bool          // the release before this attempt has an unknown outcome: it may still come
	unsure  bool          // an attempt has an unknown outcome, or may come once more
	queued  bool          // it may be granted at any time, as it was refused with a place
	fence   uint64        // of the grant; 0: unknown
	ttl     time.Duration // the last one that was granted
	clock   uint64        // the server's time in its last answer to a renewal of this grant, in us; 0: none
	told    time.Time     // when that answer came; without one, the grant
	late    lateRenewals
	plain   bool // the grant was plain, and may be given up so
	// refreshed is when the grant's history was last written or extended.
	refreshed time.Time
	floor     uint64 // the largest fence this driver had seen before the claim could be granted
}

func (c *claim) load() known {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

func (c *claim) update(f func(*known)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.known)
}

// Replies of acquire.lua.
const (
	replyBusy = iota
	replyGranted
	replyHeld
	replyGone
	replyNoHistory
	replyForgetful
)

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	if g, taken, err := c.takePlain(ctx); taken || err != nil {
		return g, err
	}
	if !c.req.Queue {
		c.d.ear.listen(&c.req)
		g, busy, err := c.attempt(ctx)
		if busy != nil { // without a place: nobody releases it
			c.d.ear.forget(c.req.Owner)
			if c.load().unsure {
				c.giveBack(ctx)
			}
		}
		return c.settle(g, busy, err)
	}
	turn := c.arm()
	g, busy, err := c.attempt(ctx)
	if busy != nil && !turn.heard {
		// It has its place, but what was told since went unheard. Look again when we hear.
		if c.d.ear.hear(ctx, c.req.Owner, hearWithin) {
			turn = c.arm()
			g, busy, err = c.attempt(ctx)
		}
	}
	if busy != nil {
		busy.Wake, busy.Granted = turn.wake, turn.granted
		if !turn.heard {
			busy.Retry = min(busy.Retry, retryDeaf)
		}
	}
	return c.settle(g, busy, err)
}

// arm is called before an attempt reads the state: what the server tells from then on is
// for that attempt's refusal.
func (c *claim) arm() turn {
	c.update(func(now *known) { now.tries++ })
	return c.d.ear.arm(c, c.load().tries)
}

// brought takes a grant that the server gave without an attempt. If it may not count, the
// next attempt finds it, and says so.
func (c *claim) brought(fence uint64) (ok bool) {
	c.update(func(now *known) {
		if ok = fence > now.floor; ok {
			now.queued = false
			now.granted(fence, c.req.TTL)
		}
	})
	if ok {
		c.d.fences.saw(c.keys.lock, fence)
	}
	return ok
}

// settle turns what an attempt has brought into the answer of Try.
func (c *claim) settle(g driver.Grant, busy *driver.Busy, err error) (driver.Grant, error) {
	switch {
	case err != nil:
		c.d.ear.disarm(c.req.Owner)
		return driver.Grant{}, err
	case busy != nil:
		return driver.Grant{}, busy
	}
	c.d.ear.disarm(c.req.Owner)
	return g, nil
}

// attempt has the script run once: a grant, a refusal, or an error.
func (c *claim) attempt(ctx context.Context) (driver.Grant, *driver.Busy, error) {
	d, k := c.d, c.keys
	if err := d.usable(ctx); err != nil {
		return driver.Grant{}, nil, err
	}
	was := c.load()
	seen := d.fences.last(k.lock)
	if !was.unsure && !was.queued { // else it may have been granted earlier
		was.floor = seen
	}
	pending := ""
	if was.pending {
		pending = fmt.Sprint(was.attempt - 1)
	}
	// Unknown until there is an answer, also when the answer is that of another attempt.
	c.update(func(now *known) { now.unsure, now.floor = true, was.floor })
	turn := ""
	if c.req.Queue {
		turn = d.ear.turnChannel(k.lock)
	}
	c.update(func(now *known) { now.plain = false })
	all := []string{
		k.lock, k.companion(kindHistory), k.gone(c.req.Owner), k.companion(kindQueue),
		k.companion(kindDetails), k.companion(kindShares), k.companion(kindLimits),
	}
	all = append(all, d.markOfMemory()...)
	all = append(all, k.companion(kindRest))
	args := []any{
		c.req.Owner, millis(c.req.TTL), modeName(c.req.Mode), c.req.Limit, flag(c.req.Queue), c.channel(), c.req.Note,
		d.historyLife(c.req.TTL), flag(d.history), was.attempt, turn,
		millis(d.memory), pending, millis(goneTTL), was.tries, flag(d.grantsUnasked()),
	}
	reply, err := c.d.links.of(k.lock).runAcknowledged(ctx, c.d.replicas, scriptAcquire, all, append(append(args, d.memorySeen()...), millis(d.rest))...)
	if err != nil {
		return driver.Grant{}, nil, explain(err)
	}
	values, err := slice(reply.cmd, 1)
	if err != nil {
		return driver.Grant{}, nil, err
	}
	c.update(func(now *known) { now.pending = false })
	switch number(values[0]) {
	case replyForgetful:
		c.update(func(now *known) { now.unsure, now.pending = was.unsure || reply.repeated, was.pending })
		return driver.Grant{}, nil, d.forgetful(values)
	case replyBusy:
		busy, err := c.refusal(values)
		if err != nil {
			return driver.Grant{}, nil, err
		}
		c.update(func(now *known) {
			now.unsure = was.unsure || reply.repeated
			if now.fence == was.fence { // else a grant was brought before this answer
				now.fence, now.queued = 0, c.req.Queue
			}
		})
		return driver.Grant{}, busy, nil
	case replyGranted, replyHeld:
		if len(values) > 2 && number(values[2]) == 0 {
			d.crowds.left(k.lock)
		}
		if number(values[0]) == replyGranted {
			was.floor = seen // by this very attempt
		}
		fence := uint64(number(values[1]))
		err := c.accept(ctx, fence, was, reply)
		return c.granted(c.req.TTL, fence), nil, err
	case replyNoHistory:
		c.update(func(now *known) { now.unsure, now.pending = was.unsure || reply.repeated, was.pending })
		return driver.Grant{}, nil, fmt.Errorf("%w: %q", ErrNoFenceHistory, c.req.Resource)
	}
	return driver.Grant{}, nil, fmt.Errorf("redislock: an attempt came after its claim was given up")
}

// accept takes a grant, or gives it up when too few replicas have it or its fence went back.
func (c *claim) accept(ctx context.Context, fence uint64, was known, reply answer) error {
	if fence <= was.floor && fence != was.fence {
		c.giveBack(ctx)
		return fmt.Errorf("%w: from %d to %d on %q", ErrFenceRegressed, was.floor, fence, c.req.Resource)
	}
	if reply.acknowledged < c.d.replicas {
		c.giveBack(ctx)
		return fmt.Errorf("%w: %d of %d", ErrReplicas, reply.acknowledged, c.d.replicas)
	}
	c.update(func(now *known) {
		now.unsure, now.queued = was.unsure || reply.repeated, false
		now.granted(fence, c.req.TTL)
	})
	c.d.fences.saw(c.keys.lock, fence)
	return nil
}

// giveBack releases a grant that must not count. Should it fail, the caller's own
// Release, or the TTL, does it.
func (c *claim) giveBack(ctx context.Context) {
	_ = c.end(ctx, 0) // the error that comes with it tells more
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
			Owner: text(values[4]), Mode: modeOf(text(values[5])), Fence: driver.FenceOf(max(number(values[6]), 0)),
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

// granted notes a grant.
func (k *known) granted(fence uint64, ttl time.Duration) {
	if fence != k.fence {
		k.clock, k.told = 0, time.Now()
	}
	k.fence, k.ttl, k.refreshed = fence, ttl, time.Now()
}

func (c *claim) granted(ttl time.Duration, fence uint64) driver.Grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return driver.Grant{TTL: roundUp(c.atMost(ttl)), Fence: driver.FenceOf(fence)}
}

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context) error { return c.end(ctx, 0) }

// Linger implements driver.Lingerer.
func (c *claim) Linger(ctx context.Context, d time.Duration) error { return c.end(ctx, millis(d)) }

func (c *claim) end(ctx context.Context, linger int64) error {
	d, k := c.d, c.keys
	d.ear.forget(c.req.Owner)
	was := c.load()
	late := "" // an attempt that may still come
	if was.unsure || was.pending {
		late = fmt.Sprint(was.attempt)
	}
	c.update(func(now *known) { now.attempt, now.pending, now.plain, now.queued = was.attempt+1, true, false, false })
	if was.plain && late == "" && linger == 0 {
		if given, err := c.givePlain(ctx); given || err != nil {
			if err == nil {
				c.update(func(now *known) { now.pending, now.fence = false, 0 })
			}
			return err
		}
	}
	reply, err := d.run(ctx, scriptRelease, []string{
		k.lock, k.companion(kindHistory), k.gone(c.req.Owner), k.companion(kindQueue),
		k.companion(kindDetails), k.companion(kindShares), k.companion(kindLimits), k.companion(kindRest),
	}, c.req.Owner, max(linger, 0), late, millis(goneTTL), was.attempt, millis(d.rest), millis(restEvery))
	if err != nil {
		return err
	}
	given, err := reply.Int64()
	if err != nil {
		return fmt.Errorf("redislock: alien reply to release: %w", err)
	}
	c.update(func(now *known) { now.pending, now.unsure, now.fence = false, false, 0 })
	if given == 0 {
		return fmt.Errorf("%w: it expired, or its key was deleted or taken over", driver.ErrLost)
	}
	return nil
}

// channel is where the server tells this driver that the lease was ended by force.
func (c *claim) channel() string {
	if c.req.Lost == nil {
		return ""
	}
	return c.d.ear.channel()
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

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// slice is a reply with at least n values.
func slice(cmd *redis.Cmd, n int) ([]any, error) {
	values, err := cmd.Slice()
	if err != nil || len(values) < n {
		return nil, alienReply(values)
	}
	return values, nil
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
