package locktest

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var ttlCases = []Case{
	{Name: "RefusesBadTTLs", Run: refusesBadTTLs},
	{Name: "TTLsAreRoundedUp", Needs: NeedTTLChange, Run: ttlsAreRoundedUp},
	{Name: "ExpiresAfterItsTTL", Run: expiresAfterItsTTL},
	{Name: "RenewRestartsTheTTL", Needs: NeedTTLChange | NeedShortening, Run: renewRestartsTheTTL},
	{Name: "TryRestartsTheTTL", Run: tryRestartsTheTTL},
}

func refusesBadTTLs(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	l := locker(t, d, leasehold.Options{})
	bad := []time.Duration{-time.Second, -1, 0}
	if least := d.Features().MinTTL; least > 0 {
		bad = append(bad, least-1)
	}
	for _, ttl := range bad {
		lease, err := l.TryAcquire(bounded(t), name, leasehold.TTL(ttl))
		if lease != nil || !errors.Is(err, leasehold.ErrInvalidOption) {
			t.Fatalf("TTL(%v): %s, %v; want ErrInvalidOption", ttl, describe(lease), err)
		}
		if ttl != 0 { // 0 means the default in Options
			if l, err := leasehold.New(d, &leasehold.Options{TTL: ttl}); err == nil {
				_ = l.Close() // never fails
				t.Errorf("Options.TTL %v was accepted", ttl)
			}
		}
	}
	lease := acquire(t, l, name)
	for _, ttl := range bad {
		if err := lease.Extend(bounded(t), ttl); !errors.Is(err, leasehold.ErrInvalidOption) {
			t.Errorf("Extend(%v): %v; want ErrInvalidOption", ttl, err)
		}
	}
	release(t, lease)
}

// oddTTLs returns TTLs that are not multiples of any unit that an engine counts in.
func oddTTLs(f driver.Features) []time.Duration {
	least := leastTTL(f)
	base := roundUp(least, f.Step)
	return []time.Duration{
		least, least + 1, least + 300*time.Microsecond, least + time.Millisecond - 1,
		base + f.Step/2 + 1, base + 999_999_999, base + 1500*time.Millisecond + 1, longTTL + 1,
	}
}

// leastTTL returns the shortest TTL that a caller may request. On an engine without MinTTL, a
// shorter lease would have ended on its arrival.
func leastTTL(f driver.Features) time.Duration { return max(f.MinTTL, time.Millisecond) }

// ttlsAreRoundedUp: a granted TTL is at least as long as requested, and longer by less than a step.
func ttlsAreRoundedUp(t testing.TB, h Harness) {
	d := open(t, h)
	f := d.Features()
	step := max(f.Step, time.Millisecond) // databases count in it, and it makes no difference
	for _, ttl := range oddTTLs(f) {
		c := contend(t, d, lasting(request(newName(t)), ttl))
		if g := c.granted("the resource is free"); g.TTL >= ttl+step {
			t.Errorf("granted for %v, asked for %v: more than a Step (%v) longer", g.TTL, ttl, f.Step)
		}
		if g, err := c.renew(longTTL + ttl); errors.Is(err, driver.ErrLost) {
			continue // such a short one may have ended meanwhile
		} else if err != nil {
			t.Errorf("Renew: %v", err)
		} else if want := longTTL + ttl; g.TTL < want || g.TTL >= want+step {
			t.Errorf("renewed for %v, asked for %v: Step is %v", g.TTL, want, f.Step)
		}
	}
}

// expiresAfterItsTTL: nobody is granted before the TTL has passed, except for 2 percent because
// clocks run at different rates. Soon after it somebody is.
func expiresAfterItsTTL(t testing.TB, h Harness) {
	d := open(t, h)
	least := leastTTL(d.Features())
	late := time.Duration(math.MaxInt64)
	for _, ttl := range []time.Duration{least, least + 900*time.Microsecond, shortTTL(d), shortTTL(d) + 450*time.Millisecond} {
		holder := contend(t, d, lasting(request(newName(t)), ttl))
		successor := contend(t, open(t, h), queued(request(holder.req.Resource)))
		before := time.Now()
		g := holder.granted("the resource is free")
		late = min(late, succeeds(h, holder, successor, g.TTL, before, time.Now()))
	}
	if late > aWhile {
		t.Errorf("somebody else was granted %v after the end of a lease, at best", late)
	}
}

// succeeds lets successor try until it is granted. That must be a TTL after the holder's lease
// began, which was between before and after. It returns how late the grant was.
func succeeds(h Harness, holder, successor *contender, ttl time.Duration, before, after time.Time) (late time.Duration) {
	t := holder.t
	t.Helper()
	_, asked, granted := successor.wins(time.Until(after)+h.over(ttl)+Margin, "the lease is over")
	if least := ttl - ttl/50; granted.Sub(before) < least {
		t.Errorf("somebody else was granted %v after a lease of %v had begun, want %v", granted.Sub(before), ttl, least)
	}
	holder.lost("it expired and somebody else holds it")
	successor.released()
	return asked.Sub(after) - h.over(ttl)
}

func renewRestartsTheTTL(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := shortTTL(d) + 450*time.Millisecond // no whole second
	holder := holding(t, d, lasting(request(newName(t)), longTTL))
	before := time.Now()
	g := holder.renewed(ttl) // a shorter TTL than before counts from now
	after := time.Now()
	successor := contend(t, open(t, h), queued(request(holder.req.Resource)))
	succeeds(h, holder, successor, g.TTL, before, after)
}

// tryRestartsTheTTL: a holder's Try restarts the whole TTL, because its caller counts from then.
func tryRestartsTheTTL(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := shortTTL(d) + 500*time.Millisecond
	holder := holding(t, d, lasting(request(newName(t)), ttl))
	time.Sleep(ttl / 2)
	before := time.Now()
	g := holder.granted("held by itself is not busy")
	after := time.Now()
	successor := contend(t, open(t, h), queued(request(holder.req.Resource)))
	succeeds(h, holder, successor, g.TTL, before, after)
}
