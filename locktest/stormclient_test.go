package locktest_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

var stormNames = []string{"x", "y"}

// A stormClient makes one call after the other.
type stormClient struct {
	storm  *storm
	name   string
	locker *leasehold.Locker
	rng    *rand.Rand
}

// chance is true once in n times.
func (c *stormClient) chance(n int) bool { return c.rng.IntN(n) == 0 }

// pause is for up to d, and often for next to nothing: then leases are handed over.
func (c *stormClient) pause(d time.Duration) {
	if c.chance(2) {
		d /= 500
	}
	time.Sleep(time.Duration(c.rng.Int64N(int64(d))))
}

// context is that of a call, which may end soon.
func (c *stormClient) context() (context.Context, context.CancelFunc) {
	if c.storm.calm || !c.chance(4) {
		return context.WithCancel(c.storm.ctx)
	}
	return context.WithTimeout(c.storm.ctx, time.Duration(c.rng.Int64N(int64(stormTTL))))
}

// resource is mostly the one that all want.
func (c *stormClient) resource() string {
	if c.chance(5) {
		return stormNames[1]
	}
	return stormNames[0]
}

// lock acquires, holds and releases some times.
func (c *stormClient) lock() {
	for range 2 + c.rng.IntN(5) {
		l := c.acquire()
		if l == nil {
			continue
		}
		c.hold(l)
		c.release(l)
		if c.chance(2) {
			c.pause(stormTTL / 2)
		}
	}
}

func (c *stormClient) acquire() *stormLease {
	l := &stormLease{who: c.name, noRenew: c.chance(4)}
	var opts []leasehold.Option
	switch c.rng.IntN(5) {
	case 0:
		l.shared = true
		opts = append(opts, leasehold.Shared())
	case 1:
		l.shared, l.limit = true, 2
		opts = append(opts, leasehold.Limit(2))
	}
	if l.noRenew {
		opts = append(opts, leasehold.NoRenew())
	}
	ask, waits := c.locker.Acquire, true
	if c.chance(5) {
		ask, waits = c.locker.TryAcquire, false
	}
	ctx, cancel := c.context()
	defer cancel()
	name, asked := c.resource(), c.storm.begun()
	c.storm.tell("%s acquires %s, %+v, waits: %v", c.name, name, *l, waits)
	var err error
	if l.Lease, err = ask(ctx, name, opts...); err != nil {
		c.refused(waits, err)
		return nil
	}
	c.storm.begins(l, asked)
	return l
}

func (c *stormClient) refused(waited bool, err error) {
	c.storm.tell("%s: %v", c.name, err)
	if c.storm.calm && c.storm.ctx.Err() == nil && (waited || !errors.Is(err, leasehold.ErrBusy)) {
		c.storm.fail("%s gets nothing, though nothing happened: %v", c.name, err)
	}
}

// hold keeps l for a while, and may extend it.
func (c *stormClient) hold(l *stormLease) {
	for range c.rng.IntN(3) {
		c.pause(stormTTL)
		if c.chance(2) {
			c.extend(l)
		}
	}
	c.pause(stormTTL)
}

func (c *stormClient) extend(l *stormLease) {
	ctx, cancel := c.context()
	defer cancel()
	d := stormTTL/2 + time.Duration(c.rng.Int64N(int64(stormTTL)))
	err := l.Extend(ctx, d)
	c.storm.tell("%s extends by %v: %v", c.name, d, err)
}

// release gives l up, and once more where the outcome is not known.
func (c *stormClient) release(l *stormLease) {
	over := l.Context().Err() != nil // the first Release ends the context, whatever comes of it
	for range 2 {
		ctx, cancel := c.context()
		err := l.Release(ctx)
		cancel()
		c.storm.tell("%s releases: %v", c.name, err)
		switch {
		case err == nil && over:
			c.storm.fail("Release of %s says released, of a lease that had ended", c.name)
		case err != nil && c.storm.calm && !l.noRenew:
			c.storm.fail("Release of %s fails, though nothing happened: %v", c.name, err)
		}
		if err == nil || errors.Is(err, leasehold.ErrLost) {
			return
		}
	}
}

// evict ends whatever lease there is, some times.
func (c *stormClient) evict() {
	for range 1 + c.rng.IntN(3) {
		c.pause(2 * stormTTL)
		state, err := c.locker.Inspect(c.storm.ctx, stormNames[0])
		if err != nil || len(state.Holders) == 0 {
			continue
		}
		holder := state.Holders[c.rng.IntN(len(state.Holders))]
		owner := holder.Owner.Reveal()
		c.storm.evicting(grantOf(stormNames[0], holder.Token))
		err = c.locker.Evict(c.storm.ctx, stormNames[0], owner, "storm")
		c.storm.tell("%s evicts %s: %v", c.name, driver.ShortOwner(owner), err)
	}
}

// close closes its Locker, whatever is under way.
func (c *stormClient) close() {
	c.pause(4 * stormTTL)
	c.storm.tell("%s closes", c.name)
	c.locker.Close()
}

// A stormDriver is slow on both ways, and loses requests and answers. What was not served when its caller
// has gone never is.
type stormDriver struct {
	*memory.Driver
	storm *storm

	mu  sync.Mutex
	rng *rand.Rand // guarded by mu
}

var errLostMessage = errors.New("locktest_test: a message was lost")

// way is one way of a message.
func (d *stormDriver) way(ctx context.Context) error {
	d.mu.Lock()
	took, calm := time.Duration(d.rng.Int64N(int64(5*time.Millisecond))), d.storm.calm
	if d.rng.IntN(20) == 0 && !calm {
		took *= 200
	}
	lost := d.rng.IntN(30) == 0 && !calm
	d.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if lost {
		return errLostMessage
	}
	return nil
}

// carry has a call served.
func carry[T any](ctx context.Context, d *stormDriver, serve func() (T, error)) (answer T, err error) {
	var none T
	if err := d.way(ctx); err != nil {
		return none, err
	}
	answer, err = serve()
	if lost := d.way(ctx); lost != nil {
		return none, lost
	}
	return answer, err
}

func (d *stormDriver) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return &stormClaim{c, d}, err
}

type stormClaim struct {
	driver.Claim
	d *stormDriver
}

func (c *stormClaim) Try(ctx context.Context) (driver.Grant, error) {
	return carry(ctx, c.d, func() (driver.Grant, error) { return c.Claim.Try(ctx) })
}

func (c *stormClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	return carry(ctx, c.d, func() (driver.Grant, error) { return c.Claim.Renew(ctx, ttl) })
}

func (c *stormClaim) Release(ctx context.Context, how driver.End) error {
	_, err := carry(ctx, c.d, func() (struct{}, error) { return struct{}{}, c.Claim.Release(ctx, how) })
	return err
}
