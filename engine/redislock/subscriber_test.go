package redislock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// Claims of one owner on several locks hear by themselves: a message names the owner alone.
func TestListenersOfOneOwner(t *testing.T) {
	t.Parallel()
	d, err := New(noServer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	lost := make(map[string]error)
	claimed := func(name string) *claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Queue: true, Lost: func(err error) { lost[name] = err }})
		if err != nil {
			t.Fatal(err)
		}
		return c.(*claim)
	}
	a, b := claimed("a"), claimed("b")
	first, second := a.arm(), b.arm()
	isWoken := func(wake <-chan struct{}) bool {
		select {
		case <-wake:
			return true
		default:
			return false
		}
	}
	d.subscriber.take("w1:o")
	if !isWoken(first.wake) || !isWoken(second.wake) {
		t.Error("not both are woken, whichever was meant")
	}
	first, second = a.arm(), b.arm()
	d.subscriber.take(fmt.Sprintf("g1:o%d 5000 1000 1000", first.number))
	if len(first.granted) != 1 || len(second.granted) > 0 || a.load().grant.fence != 5000 || b.load().phase == held {
		t.Errorf("a grant of one brought it %d, and the other %d", len(first.granted), len(second.granted))
	}
	d.subscriber.take("e1:owhy")
	if len(lost) > 0 {
		t.Errorf("told of an eviction of either: %v", lost)
	}
	b.Forget()
	d.subscriber.take("e1:owhy")
	if !errors.Is(lost["a"], driver.ErrEvicted) || lost["b"] != nil {
		t.Errorf("the eviction of the one that is left was told as %v", lost)
	}
	if n := len(d.subscriber.claims); n > 0 {
		t.Errorf("%d owners are listened for", n)
	}
}
