package zklock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

const (
	// placeTTL is how long a place in the queue outlives its owner's last Try, which bounds how
	// long a waiter that died in a live program delays the others. keepPlace leaves time for a late
	// Try.
	placeTTL  = 4 * time.Second
	keepPlace = 1500 * time.Millisecond
	// watchAfter is how long a lease is held before its node is watched. Shorter leases end before
	// anybody could delete the node by hand.
	watchAfter = 20 * time.Millisecond
	// timersPerTTL is how many common instants per TTL the timers of claims fire at. So a node that
	// nobody renews stays up to a fiftieth of the TTL too long.
	timersPerTTL = 50
	// againAfter is when to retry the removal of a node.
	againAfter = time.Second
)

// A phase is the state of a claim, with the data that only this phase needs. The table has the
// phase after each event. "?" means that a creation has no answer:
//
//	                        idle     queued?   queued   held     leaving?  leaving
//	creation sent           queued?  -         -        -        -         -
//	creation: yes           -        queued    -        -        -         -
//	creation: no            -        idle      -        -        -         -
//	creation: unknown       -        queued?   -        -        -         -
//	looked for: there       -        queued    -        -        leaving   -
//	looked for: not there   -        idle      -        -        idle      -
//	node or session gone    -        -         idle     leaving  -         idle
//	granted                 -        -         held     -        -         -
//	renewal: yes            idle     queued?   queued   held     leaving?  leaving
//	renewal: unknown        idle     queued?   queued   held     leaving?  leaving
//	lost                    idle     queued?   queued   leaving  leaving?  leaving
//	lease over              idle     queued?   queued   leaving  leaving?  leaving
//	given up                idle     leaving?  leaving  leaving  leaving?  leaving
//	deletion: yes           -        -         -        -        -         idle
//	deletion: no node       -        -         -        -        -         idle
//	deletion: unknown       -        -         -        -        leaving?  leaving
type phase interface {
	// due returns when the timer must do something for the claim; zero: never. Requires c.mu.
	due(c *claim) boottime.Instant
}

// idle is the phase of a claim with nothing at the ensemble.
type idle struct{}

// queued is the phase of a claim that has a node, or may have one, and was not granted yet.
type queued struct {
	wake *wake // used only during calls of the claim; nil: not waiting
}

// held is the phase of a claim that was granted.
type held struct {
	expires boottime.Instant
	watchAt boottime.Instant  // when to watch the node; zero: it is watched, or the next renewal does it
	offered chan driver.Grant // has a grant that came without a Try, until it is taken; nil: there was none
}

// leaving is the phase of a claim whose node must go, and may be gone.
type leaving struct {
	at boottime.Instant // when the timer tries to remove the node, unless a call has removed it
}

func (idle) due(*claim) boottime.Instant       { return 0 }
func (*queued) due(c *claim) boottime.Instant  { return c.placeEnds() }
func (l *leaving) due(*claim) boottime.Instant { return l.at }

// due implements phase. A grant that nobody takes lasts no longer than the place in the queue would
// have.
func (h *held) due(c *claim) boottime.Instant {
	due := h.expires
	if end := c.placeEnds(); len(h.offered) > 0 && end < due {
		due = end
	}
	if h.watchAt != 0 && h.watchAt < due {
		due = h.watchAt
	}
	return due
}

// untaken takes back a grant that came without a Try, unless it was taken. Requires the claim's mu.
func (h *held) untaken() bool {
	select {
	case <-h.offered:
		return true
	default:
		return false
	}
}

// become changes the phase. Nothing else does. Requires c.mu.
func (c *claim) become(next phase) {
	if _, ok := c.phase.(*held); ok {
		c.s.drop(c)
		c.s.recalls.drop(c)
	}
	c.phase = next
	c.arm()
}

// current returns the phase. During a call, only the end of a held lease changes it.
func (c *claim) current() phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase
}

// holds returns nil if the lease has not ended by now, and otherwise the cause of its end.
func (c *claim) holds(now boottime.Instant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ended := c.lease(now)
	return ended
}

// lease returns the grant that is held, or why none is. Requires c.mu.
func (c *claim) lease(now boottime.Instant) (h *held, ended error) {
	h, ok := c.phase.(*held)
	switch {
	case !ok:
		return nil, cmp.Or(c.lost, errNotHeld)
	case now < h.expires:
		return h, nil
	}
	c.lost = lostFor("it has expired")
	c.become(&leaving{at: now})
	return nil, c.lost
}

// lostFor returns the cause of a lease's end.
func lostFor(reason string) error { return fmt.Errorf("%w: %s", driver.ErrLost, reason) }

var errNotHeld = lostFor("it is not held")

// lose ends the lease for cause, if it is held. It returns a function that notifies the holder. A
// caller that has not taken the grant yet learns of the end by its next Try.
//
// The node stays until the lease would have ended, or its owner gives it up. So nobody else holds
// before the holder was notified.
func (c *claim) lose(cause error) (tell func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.phase.(*held)
	if !ok {
		return func() {}
	}
	untaken := h.untaken()
	c.lost = cause
	c.become(&leaving{at: h.expires})
	return func() {
		if c.req.Lost != nil && !untaken {
			c.req.Lost(cause)
		}
	}
}

// attend keeps the place in the queue for a call of Try, however long that takes, and for
// placeTTL after it has returned.
func (c *claim) attend() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.trying--
		c.tried = c.s.d.clock.Now()
	}
}

// placeEnds returns when the place in the queue ends if nobody tries again. Requires c.mu.
func (c *claim) placeEnds() boottime.Instant {
	if c.trying > 0 {
		return c.s.d.clock.Now().Add(placeTTL)
	}
	return c.tried.Add(placeTTL)
}

// arm sets the timer for what is due. If that moves to a later instant, arm need not be called,
// because the timer checks. Requires c.mu.
func (c *claim) arm() {
	due := c.phase.due(c)
	if due == 0 {
		if c.timer != nil {
			c.timer.Stop()
		}
		return
	}
	left := due.Sub(c.s.d.clock.Now())
	if h, ok := c.phase.(*held); !ok || due != h.watchAt {
		left = c.s.together(due)
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(left, c.tick)
		return
	}
	c.timer.Reset(left)
}

// together returns the time until the first instant after end at which the timers of the session's
// claims fire together. Thousands of separate wake-ups of an idle process would cost more than
// everything else.
func (s *session) together(end boottime.Instant) time.Duration {
	step := max(s.ttl/timersPerTTL, time.Millisecond)
	late := step - time.Duration(end)%step
	return max(end.Sub(s.d.clock.Now())+late, time.Millisecond)
}

// isDue reports whether the timer has something to do now. If not, it is set for later.
func (c *claim) isDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if due := c.phase.due(c); due != 0 && due <= c.s.d.clock.Now() {
		return true
	}
	c.arm()
	return false
}

// tick is called by the claim's timer. It watches the node of a lease that lasts. It removes the
// node of a lease that nobody has renewed, or of a waiter that never came back, which the session
// would keep as long as the program runs.
func (c *claim) tick() {
	if !c.isDue() {
		return
	}
	_ = c.calls.Begin(context.Background()) // the context does not end
	defer c.calls.End()
	over, due := c.overdue()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), againAfter)
	defer cancel()
	if over {
		_ = c.leave(ctx) // it sets the timer for the next attempt itself
	} else {
		_ = c.watch(ctx) // if it fails, the next renewal watches
	}
}

// overdue is isDue for the timer once it has the claim to itself. It also reports whether the
// node has to go: nobody has renewed the lease, or taken it in time. The node of a lease that was
// lost just now is not due yet.
func (c *claim) overdue() (over, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.s.d.clock.Now()
	if at := c.phase.due(c); at == 0 || at > now {
		c.arm()
		return false, false
	}
	h, ok := c.phase.(*held)
	if !ok {
		return true, true
	}
	_, ended := c.lease(now)
	return ended != nil || c.placeEnds() <= now && h.untaken(), true
}
