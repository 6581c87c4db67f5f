package locktest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var inspectCases = []Case{
	{Name: "FeaturesAreConstant", Run: featuresAreConstant},
	{Name: "LackingIsUnsupported", Run: lackingIsUnsupported},
	{Name: "InspectShowsHolders", Needs: NeedOperator, Run: inspectShowsHolders},
	{Name: "InspectShowsTheLastTTL", Needs: NeedOperator, Run: inspectShowsTheLastTTL},
	{Name: "InspectShowsSharers", Needs: NeedOperator | NeedShared, Run: inspectShowsSharers},
	{Name: "InspectShowsWaitersInOrder", Needs: NeedOperator | NeedFair, Run: inspectShowsWaitersInOrder},
	{Name: "EvictEndsOneLease", Needs: NeedOperator, Run: evictEndsOneLease},
	{Name: "EvictSparesOtherSharers", Needs: NeedOperator | NeedShared, Run: evictSparesOtherSharers},
	{Name: "EvictEndsWhatLingers", Needs: NeedOperator | NeedLingers, Run: evictEndsWhatLingers},
	{Name: "LingerHoldsForOthers", Needs: NeedLingers, Run: lingerHoldsForOthers},
	{Name: "LingerBesideAnotherClaim", Needs: NeedLingers | NeedResumes, Run: lingerBesideAnotherClaim},
	{Name: "LingerBesideAnotherProcess", Needs: NeedLingers | NeedResumes, Run: lingerBesideAnotherProcess},
	{Name: "AtLeast", Needs: NeedLingers, Run: atLeast},
	{Name: "AtLeastBeforeTheQueue", Needs: NeedLingers, Run: atLeastBeforeTheQueue},
	{Name: "RefusesBadNotes", Run: refusesBadNotes},
	{Name: "LongNoteIsKept", Needs: NeedOperator, Run: longNoteIsKept},
	{Name: "NoteIsReplaced", Needs: NeedNotes | NeedOperator, Run: noteIsReplaced},
}

func featuresAreConstant(t testing.TB, h Harness) {
	d := open(t, h)
	before := d.Features()
	holding(t, d, request(newName(t)))
	holding(t, d, request(newName(t))).released()
	if f := d.Features(); f != before {
		t.Errorf("Features went from %+v to %+v", before, f)
	}
	if f := open(t, h).Features(); f != before {
		t.Errorf("Features of one driver are %+v, of another %+v", before, f)
	}
	if before.Step < 0 || before.MinTTL < 0 {
		t.Errorf("Features have a negative duration: %+v", before)
	}
}

// lackingIsUnsupported: a feature that Features do not declare is refused. It is not replaced by a
// weaker one.
func lackingIsUnsupported(t testing.TB, h Harness) {
	d := open(t, h)
	f := d.Features()
	l := locker(t, d, leasehold.Options{})
	name := newName(t)
	refused := func(what string, err error) {
		if !errors.Is(err, leasehold.ErrUnsupported) {
			t.Errorf("%s: %v; want ErrUnsupported, for Features do not declare it", what, err)
		}
	}
	if !f.Shared {
		_, err := d.Claim(shared(name, 0))
		refused("Claim of a shared lease", err)
		_, err = d.Claim(shared(name, 3))
		refused("Claim of a shared lease with a limit", err)
		_, err = l.TryAcquire(bounded(t), name, leasehold.Shared())
		refused("TryAcquire of a shared lease", err)
	}
	if !f.Fencing {
		_, err := leasehold.New(d, &leasehold.Options{RequireFencing: true})
		refused("RequireFencing", err)
		c := contend(t, d, request(name))
		if g := c.granted("the resource is free"); g.Fence != 0 {
			t.Errorf("fence %d, but Features.Fencing is not declared", g.Fence)
		}
		c.released()
	}
	if !f.Resumes {
		_, err := l.Resume(bounded(t), name, newOwner())
		refused("Resume", err)
	}
	op, operates := d.(driver.Operator)
	if !operates {
		_, err := l.Inspect(bounded(t), name)
		refused("Inspect", err)
		_, err = l.Page(bounded(t), leasehold.PageOptions{})
		refused("Page", err)
		refused("Evict", l.Evict(bounded(t), name, newOwner(), ""))
	}
	if operates && !f.Raises {
		refused("RaiseFence", op.RaiseFence(bounded(t), name, driver.FenceStep))
	}
	c := contend(t, d, request(name))
	c.granted("nothing that was refused holds it")
	if !f.Notes {
		refused("Note", c.note("more"))
	}
	if !f.Bars {
		refused("Release that keeps its owner out", c.claim.Release(bounded(t), driver.End{Bar: barFor}))
	}
	if !f.Lingers {
		refused("Release that lingers", c.linger(time.Second))
	}
	c.released()
	if !f.Lingers {
		_, err := l.TryAcquire(bounded(t), name, leasehold.AtLeast(time.Second))
		refused("AtLeast", err)
	}
	contend(t, d, request(name)).granted("nothing that was refused holds it")
}

// evict ends the lease that owner has.
func evict(t testing.TB, d driver.Driver, name, owner string) {
	t.Helper()
	if err := operator(d).Evict(bounded(t), name, owner, "it's \"conformance\""); err != nil {
		t.Fatalf("Evict: %v", err)
	}
}

// evictsNobody evicts an owner that has no lease, which must fail.
func evictsNobody(t testing.TB, d driver.Driver, name, owner, why string) {
	t.Helper()
	if err := operator(d).Evict(bounded(t), name, owner, "conformance"); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Evict: %v; want ErrLost: %s", err, why)
	}
}

// operator returns d as an Operator, for a case with NeedOperator or NeedRaises.
func operator(d driver.Driver) driver.Operator { return d.(driver.Operator) }

func inspect(t testing.TB, d driver.Driver, name string) driver.State {
	t.Helper()
	st, err := operator(d).Inspect(bounded(t), name)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	if st.Resource != name {
		t.Errorf("Inspect of %q answers for %q", name, st.Resource)
	}
	return st
}

// inspectFree checks that name has no holder and no waiter.
func inspectFree(t testing.TB, d driver.Driver, name string) {
	t.Helper()
	st := inspect(t, d, name)
	if len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("%d holders and %d waiters, want none", len(st.Holders), len(st.Waiters))
	}
}

// isSoonFree waits until a lease that has ended is no longer shown.
func isSoonFree(t testing.TB, d driver.Driver, name string) {
	t.Helper()
	eventually(t, Margin, "an expired lease is not shown", func() bool { return len(inspect(t, d, name).Holders) == 0 })
}

// shows returns what Inspect shows of an owner.
func (h Harness) shows(owner string) string {
	if h.ShownOwner == nil {
		return owner
	}
	return h.ShownOwner(owner)
}

// isHolder checks what is shown of a holder that was granted g, at about the given time.
func isHolder(t testing.TB, h Harness, shown driver.Holder, c *contender, g driver.Grant, granted time.Time) {
	t.Helper()
	if shown.Owner.Reveal() != h.shows(c.req.Owner) || shown.Mode != c.req.Mode || shown.Note != c.req.Note || shown.Fence != g.Fence && !(h.NoHolderFence && shown.Fence == 0) {
		t.Errorf("shown: owner %s mode %v note %q fence %d; want owner %s mode %v note %q fence %d",
			driver.ShortOwner(shown.Owner.Reveal()), shown.Mode, shown.Note, shown.Fence,
			driver.ShortOwner(c.req.Owner), c.req.Mode, c.req.Note, g.Fence)
	}
	held := time.Since(granted)
	const unit = time.Second // some engines count in seconds
	if shown.Held != 0 && (shown.Held < 0 || shown.Held > held+unit) {
		t.Errorf("shown as held for %v, which is %v", shown.Held, held)
	}
	if shown.Left != 0 && (shown.Left > g.TTL || shown.Left < g.TTL-g.TTL/50-held-unit) {
		t.Errorf("shown with %v left of %v after %v", shown.Left, g.TTL, held)
	}
	isTTL(t, shown, g.TTL)
}

// isTTL checks the shown TTL of a lease, which was last set to want. An engine that counts in
// seconds may have rounded it up.
func isTTL(t testing.TB, shown driver.Holder, want time.Duration) {
	t.Helper()
	if shown.TTL != 0 && (shown.TTL < want-want/50 || shown.TTL > want+time.Second || shown.TTL < shown.Left) {
		t.Errorf("shown with a TTL of %v and %v left, want %v", shown.TTL, shown.Left, want)
	}
}

// inspectShowsTheLastTTL: TTL is what the last renewal set, or unknown.
func inspectShowsTheLastTTL(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	first := renewableTTL(d)
	c := contend(t, d, lasting(request(name), first))
	g := c.granted("the resource is free")
	for range 2 {
		st := inspect(t, open(t, h), name)
		if len(st.Holders) != 1 {
			t.Fatalf("%d holders, want 1", len(st.Holders))
		}
		isTTL(t, st.Holders[0], g.TTL)
		if d.Features().SessionTTL == 0 {
			g = c.renewed(4*first + 4*time.Second)
		}
	}
}

func inspectShowsHolders(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	name := newName(t)
	inspectFree(t, d2, name)
	req := lasting(request(name), renewableTTL(d))
	req.Note = "host'; \"quoted\" π {json}\\ %s"
	holder := contend(t, d, req)
	start := time.Now()
	g := holder.granted("the resource is free")
	granted := time.Now()
	st := inspect(t, d2, name)
	if len(st.Holders) != 1 || len(st.Waiters) != 0 {
		t.Fatalf("%d holders and %d waiters, want 1 and 0", len(st.Holders), len(st.Waiters))
	}
	isHolder(t, h, st.Holders[0], holder, g, start)
	if st.Fence != 0 && st.Fence != g.Fence {
		t.Errorf("last fence %d, want %d", st.Fence, g.Fence)
	}
	if busy := contend(t, d2, request(name)).busy("it is held"); busy.Holder.Owner.Reveal() != "" {
		isHolder(t, h, busy.Holder, holder, g, start)
	}
	time.Sleep(time.Until(granted.Add(g.TTL)))
	isSoonFree(t, d2, name) // it has expired, but nobody has removed it
	other := contend(t, d2, request(name))
	other.granted("the lease is over")
	other.released()
	inspectFree(t, d, name)
}

func inspectShowsSharers(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	var sharers []*contender
	var grants []driver.Grant
	start := time.Now()
	for i := range 3 {
		c := contend(t, d, shared(name, 7-i)) // the limit of 5 counts, but each is shown with its own
		grants = append(grants, c.granted("a slot is free"))
		sharers = append(sharers, c)
	}
	st := inspect(t, open(t, h), name)
	if len(st.Holders) != len(sharers) {
		t.Fatalf("%d holders, want %d", len(st.Holders), len(sharers))
	}
	for i, shown := range st.Holders { // sorted by fence, and so in the order of their grants
		isHolder(t, h, shown, sharers[i], grants[i], start)
		if want := sharers[i].req.Limit; shown.Limit != want {
			t.Errorf("shown with a limit of %d, but it asked for %d", shown.Limit, want)
		}
	}
}

func inspectShowsWaitersInOrder(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	holding(t, d, request(name))
	start := time.Now()
	queue := line(t, h, name, 4)
	contend(t, d, request(name)).busy("it is held") // without Queue it has no place
	queue[2].busy("to ask again changes no order")
	st := inspect(t, d, name)
	if len(st.Holders) != 1 || len(st.Waiters) != len(queue) {
		queue[0].inTime()
		t.Fatalf("%d holders and %d waiters, want 1 and %d", len(st.Holders), len(st.Waiters), len(queue))
	}
	for i, w := range st.Waiters {
		if want := queue[i].req; w.Owner.Reveal() != h.shows(want.Owner) || w.Note != want.Note || w.Mode != want.Mode {
			t.Errorf("waiter %d is %q, want %q", i, w.Note, want.Note)
		}
		if w.Waited < 0 || w.Waited > time.Since(start)+time.Second {
			t.Errorf("waiter %d has waited for %v, began at most %v ago", i, w.Waited, time.Since(start))
		}
	}
	for _, c := range queue {
		c.leaves()
	}
	if st := inspect(t, d, name); len(st.Waiters) != 0 {
		t.Errorf("%d waiters after all have left", len(st.Waiters))
	}
}

func evictEndsOneLease(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder, waiter := contend(t, d, request(name)), contend(t, d2, queued(request(name)))
	evictsNobody(t, d2, name, holder.req.Owner, "nobody holds it")
	g := holder.granted("the resource is free")
	waiter.busy("it is held")
	for _, owner := range []string{newOwner(), waiter.req.Owner, holder.req.Owner[:8], ""} {
		evictsNobody(t, d2, name, owner, "another owner holds it")
	}
	holder.renewed(longTTL)
	evict(t, d2, name, holder.req.Owner)
	st := inspect(t, d, name)
	// An engine with a queue may already show the next holder.
	if slices.ContainsFunc(st.Holders, func(shown driver.Holder) bool { return shown.Owner.Reveal() != h.shows(waiter.req.Owner) }) {
		t.Errorf("Inspect after Evict: %d holders", len(st.Holders))
	}
	if g.Fence != 0 && st.Fence != 0 && st.Fence <= g.Fence {
		t.Errorf("last fence %d after the eviction of the holder with %d: it was not raised", st.Fence, g.Fence)
	}
	for _, e := range st.Evicted { // an engine may report no evictions
		if e.Owner.Reveal() != h.shows(holder.req.Owner) || e.Fence != g.Fence || !strings.Contains(e.Reason, "conformance") {
			t.Errorf("Inspect after Evict tells of the eviction of %v with fence %d for %q; want %v, %d", e.Owner, e.Fence, e.Reason, driver.OwnerOf(holder.req.Owner), g.Fence)
		}
	}
	holder.lost("it was evicted")
	holder.nothingToRelease("it was evicted")
	waiter.follows(Margin, "the holder was evicted")
	evictsNobody(t, d2, name, holder.req.Owner, "its holder was evicted before")
	waiter.renewed(longTTL)
}

func evictSparesOtherSharers(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	evicted, spared := holding(t, d, shared(name, 2)), contend(t, d, shared(name, 2))
	spared.granted("one of two slots is free")
	evict(t, open(t, h), name, evicted.req.Owner)
	spared.renewed(longTTL)
	evicted.lost("it was evicted")
	spared.renewed(longTTL)
	contend(t, d, shared(name, 2)).granted("one slot became free")
	contend(t, d, shared(name, 2)).busy("both slots are taken")
}

// evictEndsWhatLingers: an eviction with an empty owner ends a hold that lingers.
func evictEndsWhatLingers(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	requests := []driver.Request{request(newName(t))}
	if d.Features().Shared {
		requests = append(requests, shared(newName(t), 0))
	}
	for _, req := range requests {
		holder := contend(t, d, req)
		g := holder.granted("the resource is free")
		if err := holder.linger(longTTL); err != nil {
			t.Fatalf("Linger: %v", err)
		}
		if st := inspect(t, d2, req.Resource); len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() != "" {
			t.Errorf("shown during Linger: %d holders; want one without an owner", len(st.Holders))
		}
		evictsNobody(t, d2, req.Resource, holder.req.Owner, "its lease lingers without an owner")
		evict(t, d2, req.Resource, "") // the hold that lingers
		inspectFree(t, d, req.Resource)
		next := request(req.Resource)
		if g2 := contend(t, d, next).granted("what lingered was ended"); g.Fence != 0 && g2.Fence <= g.Fence {
			t.Errorf("fence %d after %d", g2.Fence, g.Fence)
		}
		evictsNobody(t, d2, req.Resource, "", "nothing lingers where a holder is")
	}
}

func lingerHoldsForOthers(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	least := renewableTTL(d)
	holder := contend(t, d, request(newName(t)))
	successor := contend(t, d2, queued(request(holder.req.Resource)))
	g := holder.granted("the resource is free")
	if c := contend(t, d, request(newName(t))); !errors.Is(c.linger(least), driver.ErrLost) {
		t.Error("Linger without a hold; want ErrLost")
	}
	before := time.Now()
	if err := holder.linger(least); err != nil {
		t.Fatalf("Linger: %v", err)
	}
	after := time.Now()
	holder.lost("it has given up its grant for an ownerless hold")
	holder.nothingToRelease("it has given up its grant for an ownerless hold")
	if err := holder.linger(longTTL); !errors.Is(err, driver.ErrLost) {
		t.Errorf("second Linger: %v; want ErrLost", err)
	}
	if st, ok := d.(driver.Operator); ok {
		if st, err := st.Inspect(bounded(t), holder.req.Resource); err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() == h.shows(holder.req.Owner) {
			t.Errorf("Inspect during Linger: %d holders, error %v; want one that is not the former owner", len(st.Holders), err)
		}
	}
	holder.busy("even its former owner must wait")
	g2, _, granted := successor.wins(time.Until(after)+h.over(least)+Margin, "the lingering hold is over")
	if took := granted.Sub(before); took < least-least/50 {
		t.Errorf("somebody was granted after %v of %v", took, least)
	}
	if g.Fence != 0 && g2.Fence <= g.Fence {
		t.Errorf("fence %d after Linger, %d before", g2.Fence, g.Fence)
	}
}

// lingerBesideAnotherClaim: another claim of the owner has resumed a lease that now lingers. A
// Release by that claim does not end the hold.
func lingerBesideAnotherClaim(t testing.TB, h Harness) {
	d := open(t, h)
	holder := holding(t, d, request(newName(t)))
	again := contend(t, d, holder.req)
	again.renewed(longTTL)
	if err := holder.linger(longTTL); err != nil {
		t.Fatalf("Linger: %v", err)
	}
	again.nothingToRelease("another claim of its owner has given up the grant")
	contend(t, open(t, h), request(holder.req.Resource)).busy("it lingers")
}

// lingerBesideAnotherProcess: two processes share a lease that now lingers. Whichever of them left
// it, the other neither ends nor shortens the hold.
func lingerBesideAnotherProcess(t testing.TB, h Harness) {
	d, d2, d3 := open(t, h), open(t, h), open(t, h)
	for _, makerLeaves := range []bool{true, false} {
		for _, lingers := range []bool{false, true} {
			holder := holding(t, d, request(newName(t)))
			again := contend(t, d2, holder.req)
			again.renewed(longTTL)
			first, second := holder, again
			if !makerLeaves {
				first, second = again, holder
			}
			if err := first.linger(longTTL); err != nil {
				t.Fatalf("Linger: %v", err)
			}
			if !lingers {
				second.nothingToRelease("another process of its owner has given up the grant")
			} else if err := second.linger(renewableTTL(d)); !errors.Is(err, driver.ErrLost) {
				t.Errorf("Linger: %v; want ErrLost: another process of its owner has given up the grant", err)
			}
			contend(t, d3, request(holder.req.Resource)).busy("it lingers")
		}
	}
}

func (c *contender) linger(d time.Duration) error {
	c.t.Helper()
	return within(c.t, "Linger", callLimit, c.lingerOnce(d))
}

// lingerOnce returns a call that leaves a hold without an owner for d.
func (c *contender) lingerOnce(d time.Duration) func(ctx context.Context) error {
	how := c.end
	how.Linger = d
	return func(ctx context.Context) error { return c.claim.Release(ctx, how) }
}

// atLeast: after an early Release the resource stays held. After a late one it is free at once.
func atLeast(t testing.TB, h Harness) {
	d := open(t, h)
	least := renewableTTL(d)
	l, other := locker(t, d, leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})
	limit := h.over(least) + promptly
	if took := atBest(limit, func() time.Duration { return heldForAtLeast(t, l, other, least) }); took > limit {
		t.Errorf("free after %v at best, want %v", took, least)
	}
	name := newName(t)
	late := acquire(t, l, name+"-late", leasehold.AtLeast(10*time.Millisecond))
	time.Sleep(20 * time.Millisecond)
	release(t, late)
	mustBeFree(t, other, name+"-late", "it was held for long enough")
}

// heldForAtLeast returns how long a resource stays held after an immediate Release.
func heldForAtLeast(t testing.TB, l, other *leasehold.Locker, least time.Duration) time.Duration {
	t.Helper()
	name := newName(t)
	start := time.Now()
	release(t, acquire(t, l, name, leasehold.AtLeast(least)))
	early, err := other.TryAcquire(bounded(t), name)
	if took := time.Since(start); !errors.Is(err, leasehold.ErrBusy) && took < least-least/50 {
		t.Fatalf("TryAcquire after %v: %s, %v; want ErrBusy: it is held for longer than its holder needed", took, describe(early), err)
	}
	if early != nil {
		release(t, early) // it was late, so the resource was free
	}
	lease := acquire(t, l, name)
	took := time.Since(start)
	if took < least-least/50 {
		t.Errorf("free after %v, want %v", took, least)
	}
	release(t, lease)
	return took
}

// atLeastBeforeTheQueue: after an early Release, waiters continue to wait.
func atLeastBeforeTheQueue(t testing.TB, h Harness) {
	d := open(t, h)
	least := renewableTTL(d)
	waiting := make(chan struct{}, 1)
	l := locker(t, d, leasehold.Options{})
	next := locker(t, open(t, h), leasehold.Options{Trace: queues(waiting)})
	name := newName(t)
	start := time.Now()
	lease := acquire(t, l, name, leasehold.AtLeast(least))
	granted := acquiring(bounded(t), next, name)
	queuedUp(t, waiting)
	release(t, lease)
	got := <-granted
	if took := time.Since(start); took < least-least/50 {
		t.Errorf("who waited was granted after %v of %v", took, least)
	}
	if err := got.release(); err != nil {
		t.Errorf("Acquire or Release of a waiter: %v", err)
	}
}
