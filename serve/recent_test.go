package serve

import (
	"strconv"
	"testing"
)

// However many owners end meanwhile, a waiter that was removed and a lease that was evicted stay
// known.
func TestRemovalsAndEvictionsAreKeptBesideManyEnds(t *testing.T) {
	t.Parallel()
	var c claims
	c.init()
	enter := func(owner string, acquires bool) *claim {
		one, _, err := c.enter("n", owner, order{}, acquires)
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	waiter := enter("waiter", true)
	waiter.waiting = func(error) {}
	c.remove("n", "waiter", &removal{reason: "wrong branch"})
	c.evicts(lease{"n", "evicted"}, 0, "maintenance")
	for i := range 2*mostEnds + 1 {
		one := enter(strconv.Itoa(i), false)
		c.on(one, onEnd)
		if !c.quits(one) {
			t.Fatal("another has entered the claim")
		}
		c.leave(one, false)
	}
	c.mu.Lock()
	removed, _ := c.removedHere(waiter, order{})
	c.mu.Unlock()
	if evicted := c.evictedHere(lease{"n", "evicted"}); removed == nil || evicted == nil {
		t.Errorf("removed: %v, evicted: %v", removed, evicted)
	}
}

// The last caller does not remove a claim before the driver has forgotten it. Until then, other
// callers may enter the claim and leave.
func TestLastToLeaveForgetsFirst(t *testing.T) {
	t.Parallel()
	var c claims
	c.init()
	enter := func() *claim {
		one, _, err := c.enter("n", "o", order{}, true)
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	one := enter()
	if !one.calling.TryBegin() || enter() != one {
		t.Fatal("the second caller does not wait for the first")
	}
	if !c.leave(one, true) {
		t.Error("it is left to the first of two callers to forget the claim")
	}
	if !one.calling.TryBegin() || c.leave(one, true) {
		t.Fatal("the last caller has removed what the driver knows of")
	}
	if enter() != one || c.quits(one) {
		t.Error("a caller that comes and goes has another claim, or the turn")
	}
	if c.leave(one, true) {
		t.Fatal("the last caller has removed what the driver knows of, once another has gone")
	}
	if !c.leave(one, false) || len(c.all) > 0 {
		t.Errorf("%d claims stay", len(c.all))
	}
}
