package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// claim implements driver.Claim and driver.Forgetter. Each call first stops the claim's task.
type claim struct {
	d   *service
	req driver.Request

	calling sync.Mutex // held during calls; they do not overlap, but nothing else orders their memory accesses
	open    *task      // waits for other holders, or releases what may be granted late; nil: none
	caller  string     // distinguishes claims of the same owner
	calls   int64      // how many calls were made; late ones have lower numbers
	// longest is the longest TTL that was requested. No call requests a shorter one: an instance
	// that was stopped does not know what other instances have served meanwhile, and would end a
	// lease before its holder knows.
	longest time.Duration
	// silent is when the last acquire without an answer ended. unanswered is the number of the first
	// acquire or release without one. An instance may still be serving it.
	silent     time.Time
	unanswered int64 // 0: none
	removed    error // why the waiter was sent away; nil: it was not
}

// next returns the claim as the next call sends it.
func (c *claim) next() wire.Claim {
	c.calls++
	w := wire.Claim{Name: c.req.Resource, Owner: c.req.Owner, Limit: c.req.Limit, Weight: c.req.Weight, Note: c.req.Note, Call: c.calls, Answered: c.calls - 1, Caller: c.caller}
	if c.unanswered > 0 {
		w.Answered = c.unanswered - 1
	}
	if c.req.Mode == driver.Shared {
		w.Mode = wire.Shared
	}
	return w
}

// millis returns a TTL in milliseconds, rounded up to the engine's step.
func (d *service) millis(ttl time.Duration) int64 {
	step := d.features.Step
	return wire.Ceil((ttl + step - 1) / step * step)
}

// Try implements driver.Claim. After a refusal with a place, a call that waits stays open.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	wanted := false
	defer func() { c.recall(wanted) }() // after the call has ended
	defer c.begin()()
	c.listen(ctx)
	if c.removed != nil { // another instance may not know that it was removed
		return driver.Grant{}, c.removed
	}
	began := time.Now()
	c.longest = c.req.TTL
	var g wire.Grant
	err := c.d.again(ctx, func(bool) (err error) {
		g, err = c.acquire(ctx, c.d.links.Watch, 0)
		return err
	})
	r, answered := errors.AsType[*reply](err)
	switch {
	case err == nil:
		c.d.watch.add(c, g.Token)
		wanted = g.Wanted
		return grantOf(g)
	case answered && errors.Is(err, driver.ErrBusy):
		if !c.req.Queue && c.unanswered > 0 { // nobody releases what was refused without a place
			if err := c.giveUp(ctx, 0); err != nil && !errors.Is(err, driver.ErrLost) {
				return driver.Grant{}, err
			}
		}
		return driver.Grant{}, c.refused(ctx, r, began)
	}
	c.d.watch.remove(c)
	return driver.Grant{}, cmp.Or(removal(err), err)
}

// recall notifies the holder that others wait. Call it without calling held.
func (c *claim) recall(wanted bool) {
	if wanted && c.req.Wanted != nil {
		c.req.Wanted()
	}
}

// asks reports whether the service must notify the claim that others wait.
func (c *claim) asks() bool { return c.req.Wanted != nil && c.d.features.Tells }

// asksOnce reports whether one notice is enough until the next renewal.
func (c *claim) asksOnce() bool { return c.asks() && c.req.WantedOnce && c.d.abilities.WantedOnce }

// listen opens the stream of events if the claim needs it. Notice of a waiter may come before the
// answer to the acquire.
func (c *claim) listen(ctx context.Context) {
	if c.asks() {
		c.d.watch.expect(c)
	}
	if c.req.Lost != nil || c.asks() {
		c.d.watch.listen(ctx, c.d)
	}
}

// acquire makes one call that waits for at most wait.
func (c *claim) acquire(ctx context.Context, watch watching, wait time.Duration) (wire.Grant, error) {
	g := granted{claim: c}
	call := c.next()
	err := c.d.post(ctx, watch, wire.Acquire, wire.AcquireCall{Claim: call, TTL: c.d.millis(c.req.TTL), Wait: wire.Ceil(wait), Queue: c.req.Queue, Wanted: c.asks(), WantedOnce: c.asksOnce()}, &g)
	if isSilent(err) {
		c.silent = time.Now()
		c.unanswered = cmp.Or(c.unanswered, call.Call)
	}
	return g.Grant, err
}

// refused returns the refusal in r. An open call keeps the place, so the claim need not try again
// before it is answered.
func (c *claim) refused(ctx context.Context, r *reply, began time.Time) *driver.Busy {
	busy := &driver.Busy{Retry: wire.Duration(r.Retry)}
	if h := r.Holder; h != nil {
		busy.Holder = holderOf(*h)
	}
	if !c.req.Queue {
		c.d.watch.remove(c)
		return busy
	}
	w := &wait{claim: c, caller: ctx, began: began, wake: make(chan struct{}), granted: make(chan driver.Grant, 1)}
	busy.Wake, busy.Granted, busy.Retry = w.wake, w.granted, 0
	c.open = c.d.begin(w.run)
	return busy
}

// grantOf returns the grant in g. Its TTL counts from before the call.
func grantOf(g wire.Grant) (driver.Grant, error) {
	fence, err := strconv.ParseUint(g.Token, 10, 64)
	if err != nil || g.TTL <= 0 || g.Waited < 0 {
		return driver.Grant{}, errors.New("httplock: a grant that cannot be read")
	}
	return driver.Grant{TTL: wire.Duration(g.TTL), Fence: fence}, nil
}

// Renew implements driver.Claim. With a shorter TTL than before, the engine keeps the lease for the
// longer one.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	wanted := false
	defer func() { c.recall(wanted) }() // after the call has ended
	defer c.begin()()
	c.longest = max(c.longest, ttl)
	c.resumes()
	g, err := c.renew(ctx)
	if err != nil {
		if errors.Is(err, driver.ErrLost) {
			c.d.watch.remove(c)
		}
		return driver.Grant{}, err
	}
	c.listen(ctx) // a resumed lease has never tried
	c.d.watch.add(c, g.Token)
	g.TTL = min(g.TTL, c.d.millis(ttl))
	wanted = g.Wanted
	return grantOf(g)
}

// renew renews for the longest TTL.
func (c *claim) renew(ctx context.Context) (wire.Grant, error) {
	g := granted{claim: c}
	err := c.d.again(ctx, func(bool) error {
		return c.d.post(ctx, c.d.links.Watch, wire.Renew, wire.RenewCall{Claim: c.next(), TTL: c.d.millis(c.longest), Wanted: c.asks(), WantedOnce: c.asksOnce()}, &g)
	})
	return g.Grant, err
}

// resumes is called before a call about an earlier grant. If it is the first call, another process
// has acquired the lease, and may not know the outcome of all its calls.
func (c *claim) resumes() {
	if c.calls == 0 {
		c.calls, c.unanswered = 1, 1
	}
}

// Forget implements driver.Forgetter.
func (c *claim) Forget() {
	defer c.begin()()
	c.d.watch.remove(c)
}

// If an acquire had no answer, an instance may still be serving it, and may grant it after another
// instance has served the release. If the engine does not refuse such an owner, the claim releases
// again. An instance that is not slow has noticed within againAfter that the caller has left.
// Within lateAfter it has noticed in any case, or the engine has ended the call.
const againAfter, lateAfter = 50 * time.Millisecond, 2 * time.Second

// Release implements driver.Claim.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	if err := how.Check(c.d.features); err != nil {
		return err
	}
	defer c.begin()()
	c.resumes()
	c.d.watch.remove(c)
	return c.giveUp(ctx, how.Linger)
}

// giveUp releases, and keeps out acquires that had no answer.
func (c *claim) giveUp(ctx context.Context, linger time.Duration) error {
	err := c.release(ctx, linger)
	if c.d.abilities.Bars || c.silent.IsZero() || time.Since(c.silent) > lateAfter || err != nil && !errors.Is(err, driver.ErrLost) {
		return err
	}
	if pause.For(ctx, againAfter) != nil {
		return err
	}
	if again := c.release(ctx, 0); again == nil {
		err = nil
	}
	c.open = c.d.begin(c.releaseLate)
	return err
}

func (c *claim) release(ctx context.Context, linger time.Duration) error {
	return c.d.again(ctx, func(again bool) error {
		call := c.next()
		err := c.d.post(ctx, c.d.links.WatchLate, wire.Release, wire.ReleaseCall{Claim: call, Linger: wire.Ceil(linger)}, &done{})
		if isSilent(err) {
			c.unanswered = cmp.Or(c.unanswered, call.Call)
		}
		if again && errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrEvicted) {
			return fmt.Errorf("%w to a release, which may have been served", errSilent)
		}
		return err
	})
}

// releaseLate releases once more, unless the claim is used again before that.
func (c *claim) releaseLate(ctx context.Context) {
	if pause.For(ctx, lateAfter) == nil {
		_ = c.release(ctx, 0) // if it fails, what is left ends with its TTL
	}
}

// begin begins a call and stops the claim's task. The caller must call end.
func (c *claim) begin() (end func()) {
	c.calling.Lock()
	if c.open != nil {
		c.open.stop()
		c.open = nil
	}
	return c.calling.Unlock
}

// Note implements driver.Claim.
func (c *claim) Note(ctx context.Context, note string) error {
	defer c.begin()()
	return c.d.again(ctx, func(bool) error {
		w := c.next()
		w.Note = note
		return c.d.post(ctx, c.d.links.Watch, wire.Note, w, &done{})
	})
}
