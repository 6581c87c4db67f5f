package redislock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
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

func isWoken(wake <-chan struct{}) bool {
	select {
	case <-wake:
		return true
	default:
		return false
	}
}

// A grant to one that a beat has kept counts from when that beat was sent, less the time until the last Try. By a beat
// whose answer has not come it only wakes: nobody knows when that was sent.
func TestGrantByABeat(t *testing.T) {
	t.Parallel()
	d, err := New(noServer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	e := d.subscriber
	e.clock = new(boottime.Clock)
	e.running, e.keeping, e.own.hears = true, true, true // without a server
	refuse := func(name string) (*claim, armed) {
		dc, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		c := dc.(*claim)
		a := c.arm()
		e.placed(c, false)
		return c, a
	}
	beat := func(c *claim, asked int64, missing ...any) {
		values := []any{asked, "another", missing, []any{int64(0), int64(0), int64(0), int64(0)}}
		e.beaten(e.crowds[c.keys.lock], []string{"o"}, values, e.clock.Now())
	}
	c, a := refuse("kept")
	if e.kept(c) != nil {
		t.Error("it is refused unasked before any beat")
	}
	beat(c, 7000)
	e.clock.Sleep(time.Second)
	if busy := e.kept(c); busy == nil || busy.Wake != a.wake {
		t.Fatalf("kept by a beat, its Try is refused with %+v", busy)
	}
	e.take("g1:o-7000 5000 4000 3500") // since the beat, and from now on
	select {
	case g := <-a.granted:
		if g.TTL < 2900*time.Millisecond || g.TTL > 3*time.Second {
			t.Errorf("4 s since a beat are told as %v since a Try a second later", g.TTL)
		}
	default:
		t.Error("a grant by a beat did not come")
	}
	c.Forget()

	c, a = refuse("unknown")
	beat(c, 7000)
	e.take("g1:o-8000 5000 4000 3500")
	if !isWoken(a.wake) || len(a.granted) > 0 || c.load().phase == held {
		t.Error("a grant counts by a beat that had no answer")
	}
	c.Forget()

	c, a = refuse("missing")
	beat(c, 7000, int64(1))
	if !isWoken(a.wake) || e.kept(c) != nil {
		t.Error("who has lost its place is refused unasked, or not woken")
	}
	c.Forget()

	c, _ = refuse("asleep")
	beat(c, 7000)
	e.clock.Sleep(10 * time.Second) // the beats stood still, and so did the monotonic clock
	if e.kept(c) != nil {
		t.Error("it is refused unasked when the machine has slept")
	}
}
