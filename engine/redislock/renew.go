package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
)

// refreshHistory is how often a renewal also extends the history, which other renewals leave alone.
// It is far below historyTTL. The machine's sleep is not counted, and need not be: a lease that
// outlives a sleep has a longer TTL, and with a TTL above historyTTL/2 each renewal extends the
// history.
const refreshHistory = time.Hour

// historyWait is how long a renewal waits for its history.
const historyWait = 250 * time.Millisecond

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (g driver.Grant, err error) {
	if err := errors.Join(c.d.usable(ctx), c.d.checkTTL(ttl)); err != nil {
		return driver.Grant{}, err
	}
	if !c.renewedByLock() {
		return c.renewWhole(ctx, ttl)
	}
	r := driver.Renewal{Claim: c, TTL: ttl}
	if rest := c.d.renewTogether(ctx, []*driver.Renewal{&r}); len(rest) > 0 {
		g, err := c.renewWhole(ctx, ttl)
		if r.Grant.TTL > 0 && errors.Is(err, ErrMoving) {
			return r.Grant, nil // a renewal after the move will shorten it
		}
		return g, err
	}
	if r.Err == nil && c.historyIsDue(ttl) {
		r.Err = c.refreshHistory(ctx, ttl)
	}
	return r.Grant, r.Err
}

// shortenAttempts is how often to try to shorten a lease whose end changes meanwhile.
const shortenAttempts = 4

// renewWhole renews a lease of any kind, with its history. A lease may end later than asked: the
// caller asked for less than before, or the server's clock was set back. It is then shortened, but
// only if it still ends when the last answer said. A call that arrives late, or twice, finds
// another end and does nothing. If the end changes all the time, the lease is left as it is: it is
// renewed.
func (c *claim) renewWhole(ctx context.Context, ttl time.Duration) (g driver.Grant, err error) {
	ends := int64(0)
	for range shortenAttempts {
		known := ends
		g, ends, err = c.sendRenew(ctx, ttl, known)
		for links.Again(ctx, err) {
			g, ends, err = c.sendRenew(ctx, ttl, known)
		}
		if err != nil || ends == 0 {
			break
		}
	}
	return g, err
}

// sendRenew renews a lease, and shortens it if it ends at known. If the lease ends later than
// asked, ends is when, in ms of the server's clock; otherwise it is 0.
func (c *claim) sendRenew(ctx context.Context, ttl time.Duration, known int64) (g driver.Grant, ends int64, err error) {
	d, was := c.d, c.load()
	if was.gone { // without an answer, the owner may hold by this renewal
		c.update(func(now *state) { now.gone = false })
	}
	r, err := c.runRenew(ctx, ttl, known)
	switch {
	case err != nil:
		return g, 0, err
	case r.fence == 0:
		return g, 0, c.lost(ctx)
	case r.acknowledged < d.o.Replicas:
		// A failover could bring the former expiry back, so the former deadline stands.
		return g, 0, fmt.Errorf("%w: %d of %d", ErrReplicas, r.acknowledged, d.o.Replicas)
	}
	c.update(func(now *state) {
		adopted := now.grant.adopted || was.grant.fence == 0
		now.hold(r.fence)
		now.grant.adopted = adopted
	})
	d.known.saw(c.keys.lock, r.fence)
	d.subscriber.listen(c)
	if r.wanted {
		c.wanted()
	}
	return granted(ttl, r.fence), r.ends, nil
}

// renewed is the reply of renew.lua.
type renewed struct {
	fence        uint64 // 0: the owner does not hold the lock
	ends         int64  // when the lease ends, in ms of the server's clock, if that is later than asked; otherwise 0
	wanted       bool   // others wait, and the claim wants to know
	acknowledged int
}

// runRenew runs renew.lua once.
func (c *claim) runRenew(ctx context.Context, ttl time.Duration, known int64) (renewed, error) {
	d, k := c.d, c.keys
	kinds := []byte{kindHistory, kindDetails, kindShares, kindLimits, kindWeights}
	if c.req.Wanted != nil {
		kinds = append(kinds, kindQueue)
	}
	renew := d.pipelines.newCall(scriptRenew)
	renew.durable, renew.leaves = true, leavesSoon
	renew.keys(k, c.req.Owner, kinds...)
	renew.args(c.req.Owner, ttl, c.channel(), c.req.Note, int64(c.load().grant.fence), d.historyLife(ttl), known)
	reply, err := d.ask(ctx, k.lock, renew)
	if err != nil {
		return renewed{}, err
	}
	values, err := reply.slice(1)
	if err != nil {
		return renewed{}, err
	}
	r := renewed{fence: uint64(number(values[0])), acknowledged: reply.acknowledged}
	if len(values) > 2 {
		r.ends, r.wanted = number(values[1]), number(values[2]) == 1
	}
	return r, nil
}

// lost ends the claim after a renewal that found nobody, or another, in place of the lease. It
// returns the reason.
func (c *claim) lost(ctx context.Context) error {
	fence := c.load().grant.fence
	c.update(func(now *state) { now.become(over) })
	c.d.subscriber.forget(c)
	return c.why(ctx, fence)
}

// renewedByLock reports whether a renewal needs only the lock key.
func (c *claim) renewedByLock() bool {
	return c.req.Mode == driver.Exclusive && c.load().grant.fence != 0
}

// historyIsDue reports whether the history must be extended, because it could expire before the
// lease or soon.
func (c *claim) historyIsDue(ttl time.Duration) bool {
	return time.Since(c.load().grant.refreshed) >= refreshHistory || ttl > historyTTL/2
}

// refreshHistory renews the lease once more, with its history. It waits for historyWait at most; if
// it fails, the next renewal extends the history. It returns an error only if the lease was lost.
func (c *claim) refreshHistory(ctx context.Context, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, historyWait)
	defer cancel()
	if _, err := c.renewWhole(ctx, ttl); errors.Is(err, driver.ErrLost) {
		return err
	}
	return nil
}
