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
		c.leave(one)
	}
	c.mu.Lock()
	removed, _ := c.removedHere(waiter, order{})
	c.mu.Unlock()
	if evicted := c.evictedHere(lease{"n", "evicted"}); removed == nil || evicted == nil {
		t.Errorf("removed: %v, evicted: %v", removed, evicted)
	}
}
