package explore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// resource is what the clients of a schedule contend for. other is a second resource that some of
// them use.
const resource, other = "x", "y"

// A client makes one call after another.
type client struct {
	world   *World
	process *Process
	locker  *leasehold.Locker
	name    string
	cancel  context.CancelFunc // guarded by World.mu; ends the call that waits; nil: there is none
	asks    *wish              // guarded by World.mu; what the client waits for; nil: nothing
	since   time.Time          // guarded by World.mu; when it began to wait
}

// ready waits until the explorer lets the client make its next call. It reports false if the
// schedule is over or the process is dead.
func (c *client) ready(what string) bool {
	let := make(chan struct{})
	c.world.post(&event{kind: call, process: c.process, label: c.name + " calls " + what, happen: func() { close(let) }})
	<-let
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	return !c.world.over && !c.process.dead
}

// acquire calls Acquire, or TryAcquire if wait is false. It returns nil if that failed.
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

// acquireAll calls AcquireAll for both resources. It returns nil if that failed.
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

// leases are the result of acquireAll.
type leases struct {
	*leasehold.Leases
	each []*lease
}

// releaseAll releases the leases. It repeats the call after an unknown outcome.
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

// waitsFor records what the client waits for from now on.
func (c *client) waitsFor(w *wish) {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	c.asks, c.since = w, time.Now()
}

// resume calls Resume for the lease of owner.
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

// leftAlone records that no process continues a lease. If Resume did not find that it is over, it
// ends with its TTL.
func (w *World) leftAlone(c *client, err error) {
	w.tell("%s: %v", c.name, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.untidy = w.ledger.untidy || !errors.Is(err, driver.ErrLost)
}

// leave lets another process continue the lease. From then on nothing is promised to this one.
func (c *client) leave(l *lease) *lease {
	if l != nil {
		c.world.mu.Lock()
		defer c.world.mu.Unlock()
		l.evicted = true
	}
	return l
}

// pause does nothing for the given number of TTLs.
func (c *client) pause(ttls float64) { c.waits(c.world.ttl(ttls), nil) }

// keep holds the lease for the given number of TTLs, or until it is lost.
func (c *client) keep(l *lease, ttls float64) {
	if l != nil {
		c.waits(c.world.ttl(ttls), l.Context().Done())
	}
}

// release releases the lease. It repeats the call after an unknown outcome.
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

// extend renews the lease for the given number of TTLs. Without changes, that does not fail while the
// lease lives, unless the engine has no such TTL.
func (c *client) extend(l *lease, ttls float64) {
	if l == nil || !c.ready("Extend") {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.world.harness.TTL)
	defer cancel()
	c.world.mu.Lock()
	lives := l.believes()
	l.longest = max(l.longest, ttls)
	c.world.mu.Unlock()
	err := l.Extend(ctx, c.world.ttl(ttls))
	c.world.tell("%s: Extend: %v", c.name, err)
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	if err != nil && lives && c.world.changed.IsZero() && !errors.Is(err, driver.ErrUnsupported) {
		c.world.fail("Extend of %s fails though nothing happened: %v", c.name, err)
	}
}

// outstay waits until all others have ended and their leases are over, while its own process still
// runs.
func (c *client) outstay() {
	for step := c.world.ttl(0.5); !c.world.isLast(); {
		if !c.waits(step, nil) {
			return
		}
	}
	for range 2 { // an engine without a clock counts from when something was first seen
		if !c.waits(c.world.harness.Settle+c.world.ttl(3)+c.world.setBack, nil) || c.world.left(c.locker) == "" {
			return
		}
	}
	c.world.checkOutlived(c.locker)
}

// waits waits for d, or until done is closed. It reports false if the schedule is over.
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

// look inspects the resource.
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

// evict evicts the present holder.
func (c *client) evict() {
	if !c.ready("Evict") {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.world.harness.TTL)
	defer cancel()
	state, _ := c.locker.Inspect(ctx, resource) // after an error there is nobody to evict
	for _, h := range state.Holders {
		c.world.evicts(h.Owner.Reveal())
		begun := time.Now()
		err := c.locker.Evict(ctx, resource, h.Owner.Reveal(), "explored")
		c.world.isEvicted(h.Owner.Reveal(), begun, err)
		c.world.tell("%s: Evict %s: %v", c.name, h.Owner, err)
	}
}

// A wish holds the options of a call.
type wish struct {
	shared  bool
	limit   int
	weight  int
	noRenew bool
	of      string  // name of the resource; "": resource
	ttls    int     // length of the lease in TTLs; 0: one
	atLeast float64 // AtLeast, in TTLs
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

// ttl returns a duration of n TTLs.
func (w *World) ttl(n float64) time.Duration { return time.Duration(n * float64(w.harness.TTL)) }
