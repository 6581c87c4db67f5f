package explore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/locktest"
)

// An asker is a client's driver whose claims ask whether others wait. It checks the calls of
// Wanted.
type asker struct {
	driver.Driver
	driver.Operator // of the Driver, or one that returns ErrUnsupported
	client          *client
}

// asking returns d as an asker for c.
func asking(d driver.Driver, c *client) driver.Driver {
	a := &asker{d, locktest.NewFaulty(d), c}
	if all, ok := d.(driver.BatchRenewer); ok {
		return &batchAsker{a, all}
	}
	return a
}

// An asked is a claim of an asker.
type asked struct {
	driver.Claim
	client *client
	req    driver.Request
	yield  chan struct{} // closed by the first call of Wanted

	told    time.Time // guarded by World.mu; last call of Wanted
	trying  bool      // guarded by World.mu; a Try is in progress, or has ended without an answer
	holds   bool      // guarded by World.mu
	over    time.Time // guarded by World.mu; when its end could first be known; zero: it has not ended
	queued  time.Time // guarded by World.mu; since when it certainly has a place; zero: it has none
	kept    time.Time // guarded by World.mu; when it last kept that place
	renewed time.Time // guarded by World.mu; when its last successful renewal was sent
}

func (a *asker) Claim(req driver.Request) (driver.Claim, error) {
	k := &asked{client: a.client, req: req, yield: make(chan struct{})}
	also := req.Wanted
	req.Wanted = func() {
		k.wanted()
		if also != nil {
			also()
		}
	}
	inner, err := a.Driver.Claim(req)
	if err != nil {
		return nil, err
	}
	k.Claim = inner
	w := a.client.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.asked = append(w.ledger.asked, k)
	return k, nil
}

// wanted checks a call of Wanted: the claim holds, or may hold already.
func (k *asked) wanted() {
	w := k.client.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkWanted(k)
	k.told = time.Now()
	if !waiting.Closed(k.yield) {
		close(k.yield)
	}
}

// checkWanted: Wanted is not called for a claim that does not hold. A call that is in progress when
// the lease ends comes at that instant. Requires World.mu.
func (w *World) checkWanted(k *asked) {
	switch {
	case k.client.process.dead:
	case !k.over.IsZero() && time.Now().After(k.over):
		w.fail("%s is wanted %v after the end of its lease", k.client.name, time.Since(k.over))
	case k.over.IsZero() && !k.holds && !k.trying:
		w.fail("%s is wanted while it only waits", k.client.name)
	}
}

func (k *asked) Try(ctx context.Context) (driver.Grant, error) {
	w, sent := k.client.world, time.Now()
	w.mu.Lock()
	k.trying, k.over = true, time.Time{}
	w.mu.Unlock()
	g, err := k.Claim.Try(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch busy, ok := errors.AsType[*driver.Busy](err); {
	case err == nil:
		k.trying, k.holds, k.queued, k.renewed = false, true, time.Time{}, sent
	case ok:
		k.trying, k.holds = busy.Granted != nil, false
		if k.kept = time.Now(); k.queued.IsZero() && k.req.Queue {
			k.queued = k.kept
			time.AfterFunc(w.harness.TTL/10, func() { w.checkRecalled(k, sent) })
		}
	case errors.Is(err, driver.ErrLost):
		k.ends()
	}
	return g, err
}

// ownerOf returns the owner of a grant. Lease.Owner forbids keeping the grant. So in scenarios that
// keep grants, it is the owner of the last claim of the client that holds, or may. Requires
// World.mu.
func (w *World) ownerOf(l *lease) string {
	if w.kept == 0 {
		return l.Lease.Owner()
	}
	for _, k := range slices.Backward(w.ledger.asked) {
		if k.client == l.client && k.req.Resource == l.Name() && k.over.IsZero() && (k.holds || k.trying) {
			return k.req.Owner
		}
	}
	return ""
}

// ends records that the claim has ended. Requires World.mu.
func (k *asked) ends() {
	k.trying, k.holds, k.queued = false, false, time.Time{}
	if k.over.IsZero() {
		k.over = time.Now()
	}
}

func (k *asked) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	sent := time.Now()
	g, err := k.Claim.Renew(ctx, ttl)
	k.isRenewed(sent, err)
	return g, err
}

func (k *asked) isRenewed(sent time.Time, err error) {
	w := k.client.world
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.checkTells(k)
		k.trying, k.holds, k.queued, k.renewed = false, true, time.Time{}, sent // it may have been granted without a Try
	case errors.Is(err, driver.ErrLost):
		k.ends()
	}
}

func (k *asked) Release(ctx context.Context, how driver.End) error {
	w := k.client.world
	w.mu.Lock()
	k.ends()
	w.mu.Unlock()
	return k.Claim.Release(ctx, how)
}

func (k *asked) LiftFence(ctx context.Context, fence uint64) error {
	if inner, ok := k.Claim.(driver.FenceLifter); ok {
		return inner.LiftFence(ctx, fence)
	}
	return driver.ErrUnsupported
}

// behind returns a claim of another owner that had a place before since and still keeps it, or nil.
// Requires World.mu.
func (w *World) behind(k *asked, since time.Time) *asked {
	i := slices.IndexFunc(w.ledger.asked, func(o *asked) bool {
		return o != k && o.req.Resource == k.req.Resource && !o.queued.IsZero() && o.queued.Before(since) &&
			time.Since(o.kept) < w.harness.TTL && !o.client.process.dead
	})
	if i < 0 {
		return nil
	}
	return w.ledger.asked[i]
}

// healed is the number of TTLs after the last change from which on it has no effect.
const healed = 3

// checkTells: between two renewals, a holder is notified of waiters at least once, whatever was
// lost before. Requires World.mu.
func (w *World) checkTells(k *asked) {
	since := k.renewed
	if since.IsZero() || !k.holds || w.ledger.disturbed || since.Before(w.changed.Add(healed*w.harness.TTL)) {
		return
	}
	if o := w.behind(k, since); o != nil && k.told.Before(since) {
		w.fail("%s was renewed twice and not told of %s, who waits", k.client.name, o.client.name)
	}
}

// checkRecalled: without changes, a holder is notified at once of a place that o got by a Try sent
// at the given time.
func (w *World) checkRecalled(o *asked, sent time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.recalls || !w.changed.IsZero() || o.queued.IsZero() {
		return
	}
	for _, k := range w.ledger.asked {
		if k != o && k.req.Resource == o.req.Resource && k.holds && k.renewed.Before(sent) && k.told.Before(sent) {
			w.fail("%s was not told of %s, who waits", k.client.name, o.client.name)
		}
	}
}

// A batchAsker is an asker whose driver is a driver.BatchRenewer.
type batchAsker struct {
	*asker
	all driver.BatchRenewer
}

func (a *batchAsker) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	sent, inner, answered := time.Now(), make([]driver.Renewal, len(renewals)), make([]bool, len(renewals))
	for i := range renewals {
		inner[i] = driver.Renewal{Claim: renewals[i].Claim.(*asked).Claim, TTL: renewals[i].TTL, Answered: func() {
			answered[i] = true
			renewals[i].Claim.(*asked).isRenewed(sent, inner[i].Err)
			renewals[i].Answer(inner[i].Grant, inner[i].Err)
		}}
	}
	a.all.RenewAll(ctx, inner)
	for i := range renewals {
		if !answered[i] {
			renewals[i].Claim.(*asked).isRenewed(sent, inner[i].Err)
			renewals[i].Grant, renewals[i].Err = inner[i].Grant, inner[i].Err
		}
	}
}

// yields returns a script that acquires, holds until another waits and for the given number of TTLs
// more, and releases. When all others have ended, it does not wait for another.
func yields(ttls float64) func(c *client) {
	return func(c *client) {
		l := c.acquire(true, wish{})
		c.keepUntilWanted(l)
		c.keep(l, ttls)
		c.release(l)
	}
}

func (c *client) keepUntilWanted(l *lease) {
	if l == nil {
		return
	}
	wanted := c.yield(l.Owner())
	for l.Context().Err() == nil && !c.isAlone() {
		timer := time.NewTimer(c.world.ttl(0.25))
		select {
		case <-wanted:
			timer.Stop()
			c.world.tell("%s is wanted", c.name)
			return
		case <-l.Context().Done():
		case <-timer.C:
		case <-c.world.stopped:
			return
		}
		timer.Stop()
	}
}

// yield returns the channel that closes when the lease of owner is wanted.
func (c *client) yield(owner string) <-chan struct{} {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	for _, k := range c.world.ledger.asked {
		if k.req.Owner == owner && k.client == c {
			return k.yield
		}
	}
	return nil
}

// isAlone reports whether all other clients have ended, or the process of c is dead.
func (c *client) isAlone() bool {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	return c.world.running == 1 || c.process.dead
}
