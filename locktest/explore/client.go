package explore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// resource is what the clients of a schedule contend for, and other what some do beside it.
const resource, other = "x", "y"

// A client makes one call after the other.
type client struct {
	world   *World
	process *Process
	locker  *leasehold.Locker
	name    string
	cancel  context.CancelFunc // guarded by World.mu; ends the call that waits, nil: none does
	asks    *wish              // guarded by World.mu; what it waits for; nil: nothing
	since   time.Time          // guarded by World.mu; when it began to
}

// ready waits until the explorer lets the client make its next call; false: there is none.
func (c *client) ready(what string) bool {
	let := make(chan struct{})
	c.world.post(&event{kind: call, process: c.process, label: c.name + " calls " + what, happen: func() { close(let) }})
	<-let
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	return !c.world.over && !c.process.dead
}

// acquire is Acquire, or TryAcquire if wait is false; nil: it has none.
func (c *client) acquire(wait bool, w wish) *lease {
	if !c.ready("Acquire") {
		return nil
	}
	ctx, end := c.mayCancel()
	defer end()
	called, asked, unanswered := time.Now(), c.world.asks(), c.process.unanswered()
	ask := c.locker.Acquire
	if !wait {
		ask = c.locker.TryAcquire
	}
	c.waitsFor(&w)
	got, err := ask(ctx, w.resource(), w.options(c.world.harness.TTL)...)
	c.waitsFor(nil)
	if err != nil {
		c.world.refused(c, wait, w.user(), called, unanswered, err)
		return nil
	}
	return c.world.begins(&lease{Lease: got, client: c, wish: w, called: called}, asked)
}

// acquireAll is AcquireAll of both resources; nil: it has none.
func (c *client) acquireAll() *leases {
	if !c.ready("AcquireAll") {
		return nil
	}
	ctx, end := c.mayCancel()
	defer end()
	called, asked, unanswered, w := time.Now(), c.world.asks(), c.process.unanswered(), wish{}
	c.waitsFor(&w)
	got, err := c.locker.AcquireAll(ctx, []string{other, resource})
	c.waitsFor(nil)
	if err != nil {
		c.world.refused(c, true, w.user(), called, unanswered, err)
		return nil
	}
	all := &leases{Leases: got}
	for _, name := range got.Names() {
		all.each = append(all.each, c.world.begins(&lease{Lease: got.Lease(name), client: c, wish: wish{of: name}, called: called}, asked))
	}
	return all
}

// leases are those of one acquireAll.
type leases struct {
	*leasehold.Leases
	each []*lease
}

// releaseAll gives the leases up, and once more where the outcome is not known.
func (c *client) releaseAll(all *leases) {
	if all == nil || !c.ready("Release") {
		return
	}
	for range 2 {
		asked, lost := time.Now(), make([]bool, len(all.each))
		for i, l := range all.each {
			lost[i] = l.lost()
		}
		err, known := all.Release(context.Background()), true
		for i, l := range all.each {
			known = c.world.releases(l, asked, lost[i], err) && known
		}
		if known {
			return
		}
	}
}

// waitsFor notes what the client waits for from now on.
func (c *client) waitsFor(w *wish) {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	c.asks, c.since = w, time.Now()
}

// resume is Resume of what owner has.
func (c *client) resume(owner string, from *lease) *lease {
	if !c.ready("Resume") {
		return nil
	}
	ctx, end := c.mayCancel()
	defer end()
	called, asked := time.Now(), c.world.asks()
	got, err := c.locker.Resume(ctx, resource, owner)
	if err != nil {
		c.world.leftAlone(c, err)
		return nil
	}
	return c.world.begins(&lease{Lease: got, client: c, resumes: from, called: called}, asked)
}

// leftAlone notes that nobody goes on with a lease: what Resume did not find is over, and else it ends with
// its TTL.
func (w *World) leftAlone(c *client, err error) {
	w.tell("%s: %v", c.name, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.untidy = w.ledger.untidy || !errors.Is(err, driver.ErrLost)
}

// leave has the lease go on in another process.
func (c *client) leave(l *lease) *lease {
	if l != nil {
		c.world.evicts(l.Owner())
	}
	return l
}

// pause does nothing for so many TTLs.
func (c *client) pause(ttls float64) { c.waits(c.world.ttl(ttls), nil) }

// keep holds the lease for so many TTLs, if it is not lost before.
func (c *client) keep(l *lease, ttls float64) {
	if l != nil {
		c.waits(c.world.ttl(ttls), l.Context().Done())
	}
}

// release gives the lease up, and once more where the outcome is not known.
func (c *client) release(l *lease) {
	if l == nil || !c.ready("Release") {
		return
	}
	for range 2 {
		asked, lost := time.Now(), l.lost()
		err := l.Release(context.Background())
		if c.world.releases(l, asked, lost, err) {
			return
		}
	}
}

// extend restarts the lease for so many TTLs.
func (c *client) extend(l *lease, ttls float64) {
	if l == nil || !c.ready("Extend") {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.world.harness.TTL)
	defer cancel()
	err := l.Extend(ctx, c.world.ttl(ttls))
	c.world.tell("%s: Extend: %v", c.name, err)
}

// outstay waits until all others have gone, and what they have left is over, though this process goes on.
func (c *client) outstay() {
	for step := c.world.ttl(0.5); !c.world.isLast(); {
		if !c.waits(step, nil) {
			return
		}
	}
	for range 2 { // an engine without a clock counts from when something was seen
		if !c.waits(c.world.harness.Settle+c.world.ttl(3)+c.world.setBack, nil) || c.world.left(c.locker) == "" {
			return
		}
	}
	c.world.checkOutlived(c.locker)
}

// waits reports whether the schedule is not over after d, or when done is closed.
func (c *client) waits(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return true
	case <-c.world.stopped:
		return false
	}
}

// look asks who holds.
func (c *client) look() {
	if !c.ready("Inspect") {
		return
	}
	ctx, end := c.mayCancel()
	defer end()
	ctx, cancel := context.WithTimeout(ctx, c.world.harness.TTL)
	defer cancel()
	state, err := c.locker.Inspect(ctx, resource)
	c.world.tell("%s: Inspect: %d hold, %d wait, %v", c.name, len(state.Holders), len(state.Waiters), err)
}

// evict ends the lease of whoever holds.
func (c *client) evict() {
	if !c.ready("Evict") {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.world.harness.TTL)
	defer cancel()
	state, _ := c.locker.Inspect(ctx, resource) // without an answer there is nobody to evict
	for _, h := range state.Holders {
		c.world.evicts(h.Owner.Reveal())
		begun := time.Now()
		err := c.locker.Evict(ctx, resource, h.Owner.Reveal(), "explored")
		c.world.isEvicted(h.Owner.Reveal(), begun, err)
		c.world.tell("%s: Evict %s: %v", c.name, h.Owner, err)
	}
}

// wish is what a client asks for.
type wish struct {
	shared  bool
	limit   int
	weight  int
	noRenew bool
	of      string  // "": of resource
	ttls    int     // how long a lease, in TTLs; 0: one
	atLeast float64 // for how many TTLs it lingers at least
}

func (w wish) resource() string { return cmp.Or(w.of, resource) }

func (w wish) options(ttl time.Duration) (some []leasehold.Option) {
	switch {
	case w.limit > 0:
		some = append(some, leasehold.Limit(w.limit))
	case w.shared:
		some = append(some, leasehold.Shared())
	}
	if w.weight > 0 {
		some = append(some, leasehold.Weight(w.weight))
	}
	if w.noRenew {
		some = append(some, leasehold.NoRenew())
	}
	if w.atLeast > 0 {
		some = append(some, leasehold.AtLeast(time.Duration(w.atLeast*float64(ttl))))
	}
	if w.ttls > 0 {
		some = append(some, leasehold.TTL(ttl*time.Duration(w.ttls)))
	}
	return some
}

// ttl is so many TTLs.
func (w *World) ttl(n float64) time.Duration { return time.Duration(n * float64(w.harness.TTL)) }
