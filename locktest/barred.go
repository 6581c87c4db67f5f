package locktest

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

var barredCases = []Case{
	{Name: "BarredOwnerIsRefused", Needs: NeedBars, Run: barredOwnerIsRefused},
	{Name: "BarredElsewhereIsRefused", Needs: NeedBars | NeedResumes, Run: barredElsewhereIsRefused},
	{Name: "BarredOwnerLeavesNoPlace", Needs: NeedBars, Run: barredOwnerLeavesNoPlace},
	{Name: "BarredSharerIsRefused", Needs: NeedBars | NeedShared, Run: barredSharerIsRefused},
	{Name: "BarredAfterEvictionIsRefused", Needs: NeedBars | NeedOperator, Run: barredAfterEvictionIsRefused},
	{Name: "BarredLingererIsRefused", Needs: NeedBars | NeedLingers, Run: barredLingererIsRefused},
	{Name: "BarredForAsLongAsAsked", Needs: NeedBars, Run: barredForAsLongAsAsked},
}

// barFor is longer than any case takes.
const barFor = time.Minute

// bar makes the release of the claim bar its owner.
func (c *contender) bar() { c.end.Bar = barFor }

// staysOut fails unless a new claim of the same owner is refused while others hold the resource.
func (c *contender) staysOut(d driver.Driver, why string) {
	c.t.Helper()
	if _, err := contend(c.t, d, c.req).try(); !errors.Is(err, driver.ErrBarred) && !errors.Is(err, driver.ErrBusy) {
		c.t.Errorf("Try of an owner that was given up: %v; want ErrBarred, or busy: %s", err, why)
	}
}

// isBarred fails unless a new claim of the same owner, in another process, is refused.
func (c *contender) isBarred(d driver.Driver, why string) {
	c.t.Helper()
	if _, err := contend(c.t, d, c.req).try(); !errors.Is(err, driver.ErrBarred) {
		c.t.Errorf("Try of an owner that was given up: %v; want ErrBarred: %s", err, why)
	}
}

// barredOwnerIsRefused: after an owner was barred, a late Try of it is granted nothing, whatever
// the owner had.
func barredOwnerIsRefused(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	holder := holding(t, d1, request(newName(t)))
	holder.bar()
	holder.released()
	holder.isBarred(d2, "it has released, and nobody holds")
	next := contend(t, d2, request(holder.req.Resource))
	next.granted("it was released, and another owner asks")
	holder.staysOut(d1, "somebody else holds")
	next.renewed(longTTL)
	next.released()
	holder.isBarred(d2, "nobody holds any more")
	contend(t, d1, request(holder.req.Resource)).granted("what is barred leaves nothing")

	never := contend(t, d1, request(newName(t)))
	never.bar()
	never.nothingToRelease("it never asked")
	never.isBarred(d2, "it was given up before its attempt came")
	contend(t, d1, request(never.req.Resource)).granted("nobody holds it")
}

func barredElsewhereIsRefused(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	resumed := holding(t, d1, request(newName(t)))
	other := contend(t, d2, resumed.req) // it does not know of the grant
	other.bar()
	other.released()
	other.isBarred(d1, "another process has released it")
}

// barredOwnerLeavesNoPlace: a barred owner has no place in the queue, so it is not granted later
// either.
func barredOwnerLeavesNoPlace(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder, waiter := holding(t, d1, request(name)), contend(t, d1, queued(request(name)))
	waiter.busy("it is held")
	waiter.bar()
	_ = waiter.release() // it had a place if the engine has queues
	waiter.staysOut(d2, "it has left the queue, and somebody holds")
	holder.released()
	waiter.isBarred(d2, "nobody holds, and it has left")
	next := contend(t, d1, request(name))
	next.wins(Margin, "who was given up waits no more")
	waiter.staysOut(d2, "another holds")
	next.renewed(longTTL)
}

func barredSharerIsRefused(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	one, other := holding(t, d1, shared(name, 2)), contend(t, d1, shared(name, 2))
	other.granted("two may share it")
	one.bar()
	one.released()
	one.isBarred(d2, "it has released its share")
	contend(t, d2, shared(name, 2)).granted("a share is free")
	other.renewed(longTTL)
}

// barredAfterEvictionIsRefused: the release finds nothing, because an operator has ended the lease.
// It bars the owner nevertheless.
func barredAfterEvictionIsRefused(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	holder := holding(t, d1, request(newName(t)))
	evict(t, d2, holder.req.Resource, holder.req.Owner)
	holder.bar()
	holder.nothingToRelease("it was evicted")
	holder.isBarred(d2, "it was given up after its eviction")
	contend(t, d1, request(holder.req.Resource)).granted("nobody holds it")
}

func barredLingererIsRefused(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	holder := holding(t, d1, request(newName(t)))
	holder.bar()
	const rest = time.Second
	began := time.Now()
	if err := holder.linger(rest); err != nil {
		t.Errorf("Linger: %v", err)
	}
	holder.staysOut(d2, "it has given up its lease, which lingers")
	next := contend(t, d2, request(holder.req.Resource))
	next.wins(time.Until(began.Add(h.over(rest)))+Margin, "what lingered is over")
	next.released()
	holder.isBarred(d1, "nobody holds any more")
}

// barredForAsLongAsAsked: a bar lasts for its length from the Release on, not for the shorter TTL of
// the claim.
func barredForAsLongAsAsked(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	ttl := shortTTL(d1)
	holder := holding(t, d1, lasting(request(newName(t)), ttl))
	never := contend(t, d1, lasting(request(newName(t)), ttl))
	before := time.Now()
	for _, c := range []*contender{holder, never} {
		c.end.Bar = ttl + 5*aWhile/2
		if err := c.release(); err != nil && !errors.Is(err, driver.ErrLost) { // ErrLost: a busy machine let it expire
			t.Fatalf("Release: %v", err)
		}
	}
	end := before.Add(holder.end.Bar * 49 / 50) // clocks run at different rates
	for ; ; time.Sleep(aWhile / 4) {
		for i, c := range []*contender{holder, never} {
			_, err := contend(t, d2, c.req).try()
			switch now := time.Now(); {
			case now.After(end):
				return
			case !errors.Is(err, driver.ErrBarred):
				t.Fatalf("Try of %s, %v after it was barred for %v: %v; want ErrBarred",
					[]string{"a holder", "an owner that never asked"}[i], now.Sub(before), c.end.Bar, err)
			}
		}
	}
}
