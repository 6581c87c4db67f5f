package zklock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A session that ended in a sleep has ended, and so have its leases.
func TestSessionEndsInASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, clock := testSession(t, 9*time.Second), new(boottime.Clock)
		s.d.clock = clock
		s.greeted(s.timeout, 77, clock.Now(), false)
		c := newClaim(s, driver.Request{Resource: "a", Owner: "one", TTL: s.ttl})
		c.node = &own{name: nodeOf(c), session: 77, alarm: &alarm{}}
		c.become(&held{expires: clock.Now().Add(c.req.TTL)})
		clock.Sleep(s.timeout + time.Millisecond)
		if !s.mustHaveExpired(77) {
			t.Error("the session goes on after a sleep of more than its timeout")
		}
		if err := c.holds(clock.Now()); err == nil {
			t.Error("the lease goes on")
		}
		if g, err := c.granted(clock.Now(), s.proof().lasts, nil, 0); err == nil {
			t.Errorf("granted for %v", g.TTL)
		}
		c.forget()
	})
}

// slept has c's machine sleep for d.
func slept(c *claim, d time.Duration) {
	c.s.d.clock = new(boottime.Clock)
	c.s.d.clock.Sleep(d)
}
