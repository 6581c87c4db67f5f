// Package boottime provides a clock that continues while the machine sleeps. On Linux the
// monotonic clock of package time stops meanwhile.
//
// A reading is package time's, plus the time slept so far. A sleep moves the wall clock against
// the monotonic one, so each reading, which has both, shows whether there was one, or whether
// the wall clock was set. Only then does the package ask the kernel how long the sleep was
// (CLOCK_BOOTTIME). Waiting programs use [Clock.Watch]: the kernel cancels a timer of the
// process on each resume. Nothing is scheduled, and while nobody watches there is neither a
// goroutine nor a file.
//
// Only Linux reports sleeps. On other systems, see [Available], the clock is package time's.
package boottime

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// An Instant is a reading of a [Clock], in nanoseconds, above zero. Instants of one Clock and
// one process compare by < and ==.
type Instant int64

// Add returns the instant d later, or the last one that there is.
func (t Instant) Add(d time.Duration) Instant {
	if d > math.MaxInt64-time.Duration(t) {
		return math.MaxInt64
	}
	return t + Instant(d)
}

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Now reads the machine's clock.
func Now() Instant { return machine.Now() }

// Machine returns the machine's clock.
func Machine() *Clock { return &machine }

var machine = Clock{real: Available(), before: asleep()}

// A Clock counts sleep too. The zero Clock is for tests: it sleeps when [Clock.Sleep] is called.
type Clock struct {
	real   bool          // Machine, on a system that reports sleep
	before time.Duration // the sleep of the machine before the Clock was made
	slept  atomic.Int64  // since then; grows under mu

	mu      sync.Mutex
	watches map[*watch]struct{} // guarded by mu
	end     func()              // guarded by mu; ends the wait for resumes; nil: nothing waits
}

type watch struct{ woke func() }

// base is before all readings, so that every Instant is above zero, even in bubbles, whose time
// begins in the year 2000.
var base = time.Now().Add(-80 * 365 * 24 * time.Hour)

// Now reads the clock. In a bubble of testing/synctest it follows the bubble's time.
func (c *Clock) Now() Instant {
	now, _ := c.Read()
	return now
}

// Read reads the clock and package time's clock together.
func (c *Clock) Read() (Instant, time.Time) {
	now := time.Now()
	mono := now.Sub(base)
	if c.real {
		c.compare(now.UnixNano() - int64(mono))
	}
	return Instant(mono + c.Slept()), now
}

// Slept returns how long the clock has slept so far.
func (c *Clock) Slept() time.Duration { return time.Duration(c.slept.Load()) }

// Time returns t as a time.Time: after a sleep, the time left until it is shorter.
func (c *Clock) Time(t Instant) time.Time {
	now, as := c.Read()
	return as.Add(t.Sub(now))
}

// Sleep lets d pass without the monotonic clock. It is for tests: on a Clock of their own, or on the
// machine's in a test that is not parallel.
func (c *Clock) Sleep(d time.Duration) { c.sleptFor(c.Slept() + d) }

// Between returns the time between two readings of package time's clock, with what the machine slept
// meanwhile. Only the wall clock shows that, and it may have been set, so all that the machine has
// slept is the limit.
func Between(from, to time.Time) time.Duration {
	Now() // looks for a sleep
	awake, wall := to.Sub(from), to.Round(0).Sub(from.Round(0))
	return awake + min(max(wall-awake, 0), machine.Slept())
}

// Watch calls woke, in a goroutine of its own, after each sleep that the Clock notices, until
// stop is called. In a bubble of testing/synctest the machine's clock calls nobody, because
// waiting for the kernel would block the bubble.
func (c *Clock) Watch(woke func()) (stop func()) {
	if c.real && inBubble() {
		return func() {}
	}
	w := &watch{woke}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches == nil {
		c.watches = make(map[*watch]struct{})
	}
	c.watches[w] = struct{}{}
	if c.real && c.end == nil {
		c.end = awaitResumes(c.look)
	}
	return func() { c.remove(w) }
}

func (c *Clock) remove(w *watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watches, w)
	if len(c.watches) == 0 && c.end != nil {
		c.end()
		c.end = nil
	}
}

// least is the shortest sleep that counts. Readings of two clocks differ by less.
const least = time.Millisecond

// ahead is how far the wall clock was ahead of the monotonic one when they were last compared.
var ahead atomic.Int64

// compare checks how long the machine slept, if the clocks have moved relative to each other.
func (c *Clock) compare(now int64) {
	if moved := now - ahead.Load(); moved <= -int64(least) || moved >= int64(least) {
		if !inBubble() { // a bubble has other clocks, and its watchers are elsewhere
			c.look()
		}
		ahead.Store(now)
	}
}

// look asks the kernel how long the machine has slept.
func (c *Clock) look() { c.sleptFor(asleep() - c.before) }

// sleptFor records a new sum, and calls all watchers.
func (c *Clock) sleptFor(sum time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sum-c.Slept() < least {
		return
	}
	c.slept.Store(int64(sum))
	for w := range c.watches {
		go w.woke()
	}
}
