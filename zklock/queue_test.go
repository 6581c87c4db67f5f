package zklock

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
)

// nextInQueue is a claim that waits, watches its own node, and whose turn comes with the
// deletion that w listens to.
func nextInQueue(t *testing.T) (c *claim, w *wake) {
	t.Helper()
	d, err := New([]string{"h1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	greeting := d.link.greeted(d.timeout, 77, now, false)
	d.link.begin()
	d.link.prove(77, now.Add(d.timeout/carriedAfter))
	c = claimOf(d.claim(driver.Request{Resource: "r", Owner: "o", TTL: d.ttl, Queue: true}))
	c.own("_c_" + c.guid + markLock + "0000000002")
	c.session, c.watched, c.watchedOn = 77, &alarm{}, greeting
	c.arm(now.Add(placeTTL))
	t.Cleanup(func() { c.timer.Stop() })
	w = &wake{rung: make(chan struct{}), asked: now, granted: make(chan driver.Grant, 1), greeting: greeting}
	c.wake = w
	return c, w
}

func TestWokenIsGrantedInItsTurnOnly(t *testing.T) {
	t.Parallel()
	const changed = "the node ahead was only changed"
	for why, spoil := range map[string]func(c *claim, w *wake){
		"":                                 func(*claim, *wake) {},
		changed:                            func(*claim, *wake) {},
		"it was not the next":              func(_ *claim, w *wake) { w.granted = nil },
		"it waits for another":             func(c *claim, _ *wake) { c.wake = &wake{} },
		"its own node was disturbed":       func(c *claim, _ *wake) { c.watched = nil },
		"the connection is another":        func(c *claim, _ *wake) { c.watchedOn = c.d.link.greeted(c.d.timeout, 77, time.Now(), false) },
		"its own was asked on another":     func(c *claim, _ *wake) { c.watchedOn-- },
		"the session is another":           func(c *claim, _ *wake) { c.d.link.event(zk.Event{Type: zk.EventSession, State: zk.StateExpired}) },
		"half of the lease is over":        func(c *claim, w *wake) { w.asked = w.asked.Add(-c.req.TTL/2 - time.Second) },
		"the session's end is near":        func(c *claim, _ *wake) { c.d.link.lasts = time.Now().Add(c.req.TTL / 3) },
		"a call of the claim is under way": func(c *claim, _ *wake) { c.begin() },
	} {
		c, w := nextInQueue(t)
		spoil(c, w)
		c.woken(w, why != changed)
		if granted := len(w.granted) > 0; granted != (why == "") || !w.hasRung() {
			t.Errorf("%s: granted %v, woken %v", why, granted, w.hasRung())
		}
	}
}
