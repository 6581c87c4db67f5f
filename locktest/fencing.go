package locktest

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var fencingCases = []Case{
	{Name: "FenceGrows", Needs: NeedFencing, Run: fenceGrows},
	{Name: "FenceGrowsAfterExpiry", Needs: NeedFencing, Run: fenceGrowsAfterExpiry},
	{Name: "FenceGrowsAfterEviction", Needs: NeedFencing | NeedOperator, Run: fenceGrowsAfterEviction},
	{Name: "FenceIsTheGrants", Needs: NeedFencing, Run: fenceIsTheGrants},
	{Name: "FenceLeavesRoomForHandOvers", Needs: NeedFencing, Run: fenceLeavesRoomForHandOvers},
	{Name: "RaisedFenceStays", Needs: NeedFencing | NeedRaises, Run: raisedFenceStays},
	{Name: "RaisedFenceLeavesRoom", Needs: NeedFencing | NeedRaises, Run: raisedFenceLeavesRoom},
	{Name: "RaisedFenceSparesTheHolder", Needs: NeedFencing | NeedRaises, Run: raisedFenceSparesTheHolder},
	{Name: "NestedHoldsShareTheToken", Run: nestedHoldsShareTheToken},
	{Name: "TokensGrow", Alone: true, Run: tokensGrow},
	{Name: "TokensAreOneScale", Needs: NeedFencing | NeedOperator, Run: tokensAreOneScale},
}

// rises checks that the fences of one resource grow.
type rises struct {
	t    testing.TB
	last uint64
}

func (r *rises) to(fence uint64, after string) {
	r.t.Helper()
	if fence <= r.last {
		r.t.Errorf("fence %d after %s, %d before", fence, after, r.last)
	}
	r.last = max(fence, r.last)
}

// fenceGrows: fences grow from grant to grant, across owners and processes.
func fenceGrows(t testing.TB, h Harness) {
	drivers := []driver.Driver{open(t, h), open(t, h)}
	name := newName(t)
	fence := rises{t: t}
	for i := range 20 {
		c := contend(t, drivers[i%2], request(name))
		fence.to(c.granted("it was released").Fence, "Release")
		c.released()
	}
	// A returning owner gets a new grant.
	c := contend(t, drivers[0], request(name))
	for range 3 {
		fence.to(c.granted("it was released").Fence, "Release by the same owner")
		c.released()
	}
}

func fenceGrowsAfterExpiry(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	fence := rises{t: t}
	short := lasting(request(name), shortTTL(d1))
	first, second := contend(t, d1, short), contend(t, d2, request(name))
	g := first.granted("the resource is free")
	fence.to(g.Fence, "nothing")
	g2, _, _ := second.wins(h.over(g.TTL)+Margin, "the lease is over")
	fence.to(g2.Fence, "expiry")
	// A holder that was paused gets no larger fence while another holds the resource.
	first.lost("it expired and somebody else holds it")
	first.busy("it expired and somebody else holds it")
	second.released()
	short.Owner = newOwner()
	g = contend(t, d2, short).granted("it was released")
	fence.to(g.Fence, "release")
	g, _, _ = first.wins(h.over(g.TTL)+Margin, "the lease is over")
	fence.to(g.Fence, "expiry, by the first owner")
}

func fenceGrowsAfterEviction(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	fence := rises{t: t}
	for range 3 {
		c := contend(t, d, request(name))
		fence.to(c.granted("its holder was evicted").Fence, "eviction")
		evict(t, d, name, c.req.Owner)
	}
}

// fenceIsTheGrants: a grant keeps its fence, whatever else happens to the resource.
func fenceIsTheGrants(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder, waiter := contend(t, d, request(name)), contend(t, d2, queued(request(name)))
	g := holder.granted("the resource is free")
	if g.Fence == 0 {
		t.Error("fence 0, but Features.Fencing is declared")
	}
	for range 3 {
		waiter.busy("it is held")
		sameGrant(t, g, holder.renewed(longTTL), "its renewal")
		sameGrant(t, g, holder.granted("held by itself is not busy"), "its repetition")
	}
	holder.released()
	g2, _, _ := waiter.wins(Margin, "it was released")
	fence := rises{t: t, last: g.Fence}
	fence.to(g2.Fence, "waiting for it")
}

// fenceLeavesRoomForHandOvers: tokens of a grant lie between its fence and the next one, and fit in
// a BIGINT, in which guards store them.
func fenceLeavesRoomForHandOvers(t testing.TB, h Harness) {
	const room = math.MaxInt64 - 1<<60
	d, name := open(t, h), newName(t)
	for range 3 {
		c := contend(t, d, request(name))
		g := c.granted("the resource is free")
		if g.Fence%driver.FenceStep != 0 {
			t.Errorf("fence %d is no multiple of %d", g.Fence, driver.FenceStep)
		}
		if g.Fence > room {
			t.Errorf("fence %d; it will soon be above %d, and tokens overflow", g.Fence, uint64(room))
		}
		c.released()
	}
}

func raisedFenceStays(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	c := contend(t, d, request(name))
	fence := rises{t: t}
	fence.to(c.granted("the resource is free").Fence, "nothing")
	c.released()
	for _, by := range []uint64{1_000_000_000, 0, 5} {
		raised := fence.last + by
		if err := operator(open(t, h)).RaiseFence(bounded(t), name, raised); err != nil {
			t.Fatalf("RaiseFence: %v", err)
		}
		fence.last = raised
		fence.to(c.granted("it was released").Fence, "RaiseFence")
		c.released()
	}
	if err := operator(d).RaiseFence(bounded(t), name, 1); err != nil {
		t.Fatalf("RaiseFence: %v", err)
	}
	fence.to(c.granted("it was released").Fence, "RaiseFence to less than it was")
	c.released()
}

// raisedFenceLeavesRoom: a fence that leaves no room for later ones is refused, and changes
// nothing. Guards store tokens in a BIGINT.
func raisedFenceLeavesRoom(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	c := contend(t, d, request(name))
	for _, to := range []uint64{math.MaxUint64, math.MaxInt64, math.MaxInt64 - driver.FenceStep + 1} {
		if err := operator(d).RaiseFence(bounded(t), name, to); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("RaiseFence to %d: %v; want ErrUnsupported", to, err)
		}
	}
	fence := rises{t: t}
	for range 2 {
		g := c.granted("the resource is free")
		if g.Fence > driver.MaxRaise || g.Fence%driver.FenceStep != 0 {
			t.Errorf("fence %d after RaiseFence to what leaves no room", g.Fence)
		}
		fence.to(g.Fence, "a fence that was refused")
		c.released()
	}
}

// raisedFenceSparesTheHolder: the holder's grant keeps its fence.
func raisedFenceSparesTheHolder(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	holder, next := contend(t, open(t, h), request(name)), contend(t, d, request(name))
	g := holder.granted("the resource is free")
	raised := rises{t: t, last: g.Fence + 1_000_000_000}
	if err := operator(d).RaiseFence(bounded(t), name, raised.last); err != nil {
		t.Fatalf("RaiseFence: %v", err)
	}
	sameGrant(t, g, holder.renewed(longTTL), "its renewal after RaiseFence")
	sameGrant(t, g, holder.granted("held by itself is not busy"), "its repetition after RaiseFence")
	holder.released()
	raised.to(next.granted("it was released").Fence, "RaiseFence while it was held")
	next.released()
}

// nestedHoldsShareTheToken: a holder acquires again with its lease's context. Both leases have the
// same grant, which ends with the last of them.
func nestedHoldsShareTheToken(t testing.TB, h Harness) {
	l, other := locker(t, open(t, h), leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	outer := acquire(t, l, name)
	if lease, err := l.Acquire(outer.Context(), name); lease != nil || !errors.Is(err, leasehold.ErrDeadlock) {
		t.Fatalf("Acquire by the holder itself: %s, %v; want ErrDeadlock", describe(lease), err)
	}
	inner, err := l.Acquire(outer.Context(), name, leasehold.Reentrant())
	if err != nil {
		t.Fatalf("Acquire by the holder itself with Reentrant: %v", err)
	}
	if inner.Token() != outer.Token() {
		t.Errorf("token %d inside, %d outside", inner.Token(), outer.Token())
	}
	release(t, inner)
	mustBeBusy(t, other, name, "the outer lease holds it")
	if err := outer.Context().Err(); err != nil {
		t.Errorf("the outer lease ended with the inner one: %v", err)
	}
	release(t, outer)
	mustBeFree(t, other, name, "both leases were released")
}

// tokensGrow: tokens grow across hand-overs in a process and grants to another. An engine without
// fencing has no tokens, and New refuses it if RequireFencing is set.
func tokensGrow(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	if l, err := leasehold.New(d1, &leasehold.Options{RequireFencing: true}); d1.Features().Fencing {
		if err != nil {
			t.Fatalf("New with RequireFencing: %v", err)
		}
		_ = l.Close() // never fails
	} else {
		if !errors.Is(err, leasehold.ErrUnsupported) {
			t.Errorf("New with RequireFencing on an engine without: %v; want ErrUnsupported", err)
		}
		lease := acquire(t, locker(t, d1, leasehold.Options{}), name)
		if lease.Token() != 0 {
			t.Errorf("token %d of an engine without fencing; want 0", lease.Token())
		}
		release(t, lease)
		return
	}
	var history History
	lockers := []*leasehold.Locker{locker(t, d1, leasehold.Options{}), locker(t, d2, leasehold.Options{})}
	atOnce(t, 30, func(i int) error {
		lease, err := lockers[i%2].Acquire(bounded(t), name)
		if err != nil {
			return err
		}
		done := history.Believe(lease)
		time.Sleep(rand.N(time.Millisecond))
		done()
		return lease.Release(bounded(t))
	})
	if err := history.Check(); err != nil {
		t.Error(err)
	}
	if history.Len() != 30 {
		t.Errorf("%d leases of 30", history.Len())
	}
}

// tokensAreOneScale: tokens of leases, fences that others are shown, and values that a guard has
// stored can be compared.
func tokensAreOneScale(t testing.TB, h Harness) {
	d := open(t, h)
	l, other, name := locker(t, d, leasehold.Options{}), locker(t, open(t, h), leasehold.Options{}), newName(t)
	lease := acquire(t, l, name)
	st, err := other.Inspect(bounded(t), name)
	if err != nil || len(st.Holders) != 1 {
		t.Fatalf("Inspect: %d holders, %v", len(st.Holders), err)
	}
	shown := st.Holders[0].Token
	if shown != lease.Token() && !(h.NoHolderFence && shown == 0) {
		t.Errorf("a lease with token %d is shown with %d", lease.Token(), shown)
	}
	if st.Token != 0 && st.Token < lease.Token() {
		t.Errorf("the last token is %d, but %d is held", st.Token, lease.Token())
	}
	release(t, lease)
	if !d.Features().Raises {
		return
	}
	seen := lease.Token() + 5*driver.FenceStep + 3 // as stored by a guard, from a lease that was handed over
	if err := operator(d).RaiseFence(bounded(t), name, seen); err != nil {
		t.Fatalf("RaiseFence to a token: %v", err)
	}
	lease = acquire(t, other, name)
	if lease.Token() <= seen {
		t.Errorf("token %d after RaiseFence to %d", lease.Token(), seen)
	}
	release(t, lease)
}
