package locktest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var sharedCases = []Case{
	{Name: "SharersTogetherWriterAlone", Needs: NeedShared, Run: sharersTogetherWriterAlone},
	{Name: "LimitIsNeverPassed", Needs: NeedShared, Run: limitIsNeverPassed},
	{Name: "SmallestLimitCounts", Needs: NeedShared, Run: smallestLimitCounts},
	{Name: "SharerExpiresAlone", Needs: NeedShared, Run: sharerExpiresAlone},
	{Name: "SharerReleasesAlone", Needs: NeedShared, Run: sharerReleasesAlone},
	{Name: "ExclusiveAfterCrashedSharer", Needs: NeedShared, Run: exclusiveAfterCrashedSharer},
	{Name: "AnotherClaimOfASharer", Needs: NeedShared | NeedResumes, Run: anotherClaimOfASharer},
	{Name: "SharedFencesGrow", Needs: NeedShared | NeedFencing, Run: sharedFencesGrow},
	{Name: "QueuedWriterStopsReaders", Needs: NeedShared | NeedFair, Run: queuedWriterStopsReaders},
	{Name: "QueuedReadersFollowWriter", Needs: NeedShared | NeedFair, Run: queuedReadersFollowWriter},
	{Name: "SemaphoreUnderLoad", Needs: NeedShared, Alone: true, Run: semaphoreUnderLoad},
}

// sharersTogetherWriterAlone: any number of sharers hold at once. They exclude exclusive claims,
// and are excluded by them.
func sharersTogetherWriterAlone(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	var sharers []*contender
	for i := range 5 {
		s := contend(t, []driver.Driver{d1, d2}[i%2], shared(name, 0))
		s.granted("only sharers hold it, without a limit")
		sharers = append(sharers, s)
	}
	writer := contend(t, d2, request(name))
	for _, s := range sharers {
		writer.busy("sharers hold it")
		s.released()
	}
	writer.granted("the last sharer released")
	contend(t, d1, shared(name, 0)).busy("an exclusive lease excludes sharers")
	contend(t, d2, shared(name, 7)).busy("an exclusive lease excludes sharers")
	contend(t, d1, request(name)).busy("it is held exclusively")
	writer.released()
	sharers[0].granted("the writer released")
}

// limitIsNeverPassed: of 20 claims of several processes that try at once, as many as the limit are
// granted.
func limitIsNeverPassed(t testing.TB, h Harness) {
	const limit, contenders = 3, 20
	drivers := []driver.Driver{open(t, h), open(t, h), open(t, h), open(t, h)}
	for range 5 {
		name := newName(t)
		if n := winners(t, drivers, contenders, func() driver.Request { return shared(name, limit) }); n != limit {
			t.Fatalf("%d of %d were granted, the limit is %d", n, contenders, limit)
		}
		contend(t, drivers[0], request(name)).busy("sharers hold it")
	}
}

// smallestLimitCounts: the smallest limit of all live holders and of the claim itself counts.
func smallestLimitCounts(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	holding(t, d, shared(name, 5)) // it keeps its lease
	narrow := contend(t, d, shared(name, 2))
	narrow.granted("one holds it, two may")
	contend(t, d, shared(name, 5)).busy("two hold it, and one of them asked for at most two")
	contend(t, d, shared(name, 0)).busy("two hold it, and one of them asked for at most two")
	narrow.released()
	contend(t, d, shared(name, 1)).busy("one holds it, and it asks for at most one")
	contend(t, d, shared(name, 5)).granted("one holds it, five may")
	contend(t, d, shared(name, 0)).granted("two hold it, five may")
}

// sharerExpiresAlone: after a sharer crashed, its own slot is free after its TTL, and no other.
// Another sharer keeps renewing meanwhile.
func sharerExpiresAlone(t testing.TB, h Harness) {
	const limit = 2
	d1, d2 := open(t, h), open(t, h)
	ttl := renewableTTL(d1)
	name := newName(t)
	alive, crashed := contend(t, d1, shared(name, limit)), contend(t, d2, lasting(shared(name, limit), ttl))
	next := contend(t, d2, queued(shared(name, limit)))
	alive.granted("the resource is free")
	before := time.Now()
	g := crashed.granted("one of two slots is free")
	for granted := false; !granted; time.Sleep(50 * time.Millisecond) {
		alive.renewed(longTTL)
		asked := time.Now()
		switch _, err := next.try(); {
		case err == nil:
			granted = true
		case !errors.Is(err, driver.ErrBusy):
			t.Fatalf("Try: %v", err)
		case asked.Sub(before) > h.over(g.TTL)+followWithin:
			t.Fatalf("a crashed sharer still has its slot after %v, TTL %v", asked.Sub(before), g.TTL)
		}
	}
	if took := time.Since(before); took < g.TTL-g.TTL/50 {
		t.Errorf("a third sharer was granted after %v, the others' TTL is %v", took, g.TTL)
	}
	alive.renewed(longTTL)
	contend(t, d1, shared(name, limit)).busy("only the crashed sharer's slot became free")
	crashed.lost("it expired")
	crashed.nothingToRelease("it expired")
	contend(t, d1, shared(name, limit)).busy("a late Release must free no other's slot")
	alive.renewed(longTTL)
}

// anotherClaimOfASharer: a sharer asks again in another process, which has seen a later sharer's
// grant. It gets its own grant.
func anotherClaimOfASharer(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	first := contend(t, d1, shared(newName(t), 0))
	g := first.granted("the resource is free")
	holding(t, d2, shared(first.req.Resource, 0))
	again := contend(t, d2, first.req)
	sameGrant(t, g, again.granted("its owner holds it"), "the owner's next attempt")
	again.released()
	first.lost("another claim of the owner released it")
}

func sharerReleasesAlone(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	first, second, third := holding(t, d, shared(name, 2)), contend(t, d, shared(name, 2)), contend(t, d, shared(name, 2))
	second.granted("one of two slots is free")
	third.busy("both slots are taken")
	first.released()
	first.nothingToRelease("it was released")
	second.renewed(longTTL)
	third.granted("one slot was released")
	first.busy("both slots are taken again")
	second.renewed(longTTL)
}

// exclusiveAfterCrashedSharer: the slots of crashed sharers are free after the TTL. A writer that
// comes then is alone.
func exclusiveAfterCrashedSharer(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	crashed := contend(t, d, lasting(shared(name, 2), shortTTL(d)))
	before := time.Now()
	g := crashed.granted("the resource is free")
	after := time.Now()
	writer := contend(t, open(t, h), queued(request(name)))
	_, _, granted := writer.wins(h.over(g.TTL)+Margin, "the sharer's lease is over")
	if granted.Sub(before) < g.TTL-g.TTL/50 || granted.Sub(after) > h.over(g.TTL)+Margin {
		t.Errorf("the writer was granted %v after a shared lease of %v", granted.Sub(before), g.TTL)
	}
	crashed.lost("it expired and a writer holds it")
	crashed.nothingToRelease("it expired and a writer holds it")
	contend(t, d, shared(name, 2)).busy("a writer holds it")
	writer.renewed(longTTL)
}

// sharedFencesGrow: each sharer has its own fence, above the fences of earlier grants.
func sharedFencesGrow(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	fence := rises{t: t}
	var sharers []*contender
	for range 3 {
		s := contend(t, d, shared(name, 0))
		g := s.granted("only sharers hold it")
		fence.to(g.Fence, "another sharer's grant")
		sameGrant(t, g, s.granted("held by itself is not busy"), "its repetition")
		sharers = append(sharers, s)
	}
	for _, s := range sharers {
		s.released()
	}
	fence.to(contend(t, d, request(name)).granted("it was released").Fence, "sharers")
}

// queuedWriterStopsReaders: no reader is granted before a queued writer. Otherwise a stream of
// readers could keep it out forever.
func queuedWriterStopsReaders(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	reader, writer := holding(t, d1, shared(name, 0)), contend(t, d2, queued(request(name)))
	writer.busy("a reader holds it")
	later, passing := contend(t, d1, queued(shared(name, 0))), contend(t, d1, shared(name, 0))
	inLine(writer, later)
	passing.line = later.line
	later.busy("a writer waits")
	passing.busy("a writer waits")
	reader.renewed(longTTL)
	reader.released()
	later.busy("the writer's turn comes first")
	writer.wins(Margin, "the last reader released")
	later.busy("a writer holds it")
	writer.released()
	later.wins(Margin, "the writer released")
}

// queuedReadersFollowWriter: after a writer, all queued readers up to the next writer are granted.
func queuedReadersFollowWriter(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	writer := holding(t, d1, request(name))
	first, second, next := contend(t, d1, queued(shared(name, 0))), contend(t, d2, queued(shared(name, 0))), contend(t, d2, queued(request(name)))
	first.busy("a writer holds it")
	second.busy("a writer holds it")
	next.busy("a writer holds it")
	writer.released()
	first.follows(Margin, "the writer released")
	second.follows(Margin, "the writer released, and readers go together")
	next.busy("readers hold it")
	first.released()
	next.busy("a reader holds it")
	second.released()
	next.follows(Margin, "the last reader released")
}

// semaphoreUnderLoad: 24 callers in three processes are served, three at a time.
func semaphoreUnderLoad(t testing.TB, h Harness) {
	const limit, callers = 3, 24
	name := newName(t)
	var lockers []*leasehold.Locker
	for range 3 {
		lockers = append(lockers, locker(t, open(t, h), leasehold.Options{}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*callLimit)
	defer cancel()
	var inside atomic.Int32
	atOnce(t, callers, func(i int) error {
		return lockers[i%len(lockers)].Do(ctx, name, func(context.Context) error {
			defer inside.Add(-1)
			if n := inside.Add(1); n > limit {
				return errors.New("more holders than the limit")
			}
			time.Sleep(5 * time.Millisecond)
			return nil
		}, leasehold.Limit(limit))
	})
}
