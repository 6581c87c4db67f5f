package zklock

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// nextInQueue is a claim that waits, watches its own node, and and holds with the deletion
// that w listens to.
func nextInQueue(t *testing.T) (c *claim, w *wake) {
	t.Helper()
	s, now := testSession(t, DefaultSessionTimeout), boottime.Now()
	greeting := s.greeted(s.timeout, 77, now, false)
	s.begin()
	s.prove(77, now.Add(s.timeout/carriedAfter))
	c = newClaim(s, driver.Request{Resource: "r", Owner: "o", TTL: s.ttl, Queue: true})
	w = &wake{rung: make(chan struct{}), asked: now, granted: make(chan driver.Grant, 1), greeting: greeting}
	c.node = &own{name: "_c_" + c.guid + markLock + "0000000002", session: 77, alarm: &alarm{}, watchedOn: greeting}
	c.tried = now
	c.become(&queued{w})
	t.Cleanup(func() { c.timer.Stop() })
	return c, w
}

func TestWokenHoldsOnlyIfItIsTheNext(t *testing.T) {
	t.Parallel()
	const changed = "the node ahead was only changed"
	for why, spoil := range map[string]func(c *claim, w *wake){
		"":                                 func(*claim, *wake) {},
		changed:                            func(*claim, *wake) {},
		"it was not the next":              func(_ *claim, w *wake) { w.granted = nil },
		"it waits for another":             func(c *claim, _ *wake) { c.become(&queued{&wake{}}) },
		"its own node was disturbed":       func(c *claim, _ *wake) { c.node.alarm = nil },
		"the connection is another":        func(c *claim, _ *wake) { c.node.watchedOn = c.s.greeted(c.s.timeout, 77, boottime.Now(), false) },
		"its own was asked on another":     func(c *claim, _ *wake) { c.node.watchedOn-- },
		"the session is another":           func(c *claim, _ *wake) { c.s.event(zk.Event{Type: zk.EventSession, State: zk.StateExpired}) },
		"half of the lease is over":        func(c *claim, w *wake) { w.asked = w.asked.Add(-c.req.TTL/2 - time.Second) },
		"half of it was slept through":     func(c *claim, _ *wake) { slept(c, c.req.TTL*3/4) },
		"the session's end is near":        func(c *claim, _ *wake) { c.s.life.lasts = boottime.Now().Add(c.req.TTL / 3) },
		"a call of the claim is under way": func(c *claim, _ *wake) { c.calls.TryBegin() },
	} {
		c, w := nextInQueue(t)
		spoil(c, w)
		c.woken(w, why != changed)
		if granted := len(w.granted) > 0; granted != (why == "") || !w.hasRung() {
			t.Errorf("%s: granted %v, woken %v", why, granted, w.hasRung())
		}
	}
}

// A claim is the next only behind one of another session that leaves nothing behind.
func TestEndsAlone(t *testing.T) {
	t.Parallel()
	c, _ := nextInQueue(t)
	for what, test := range map[string]struct {
		seen content
		want bool
	}{
		"another session":           {content{details{Owner: "a"}.encode(), &zk.Stat{EphemeralOwner: 78}}, true},
		"another client":            {content{nil, &zk.Stat{EphemeralOwner: 78}}, true},
		"the same session":          {content{details{Owner: "a"}.encode(), &zk.Stat{EphemeralOwner: 77}}, false},
		"it lingers":                {content{details{Owner: "a", Lingers: true}.encode(), &zk.Stat{EphemeralOwner: 78}}, false},
		"another claim has read it": {content{}, false},
	} {
		if got := c.endsAlone(test.seen); got != test.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
