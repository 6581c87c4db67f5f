package locktest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

var recallCases = []Case{
	{Name: "HolderIsWanted", Needs: NeedTells, Run: holderIsWanted},
	{Name: "WantedByThoseWhoWaitAlready", Needs: NeedTells, Run: wantedByThoseWhoWaitAlready},
	{Name: "OneCallUntilARenewal", Needs: NeedTells, Run: oneCallUntilARenewal},
	{Name: "RenewalTellsOfOthers", Needs: NeedTells, Run: renewalTellsOfOthers},
	{Name: "BatchTellsOfOthers", Needs: NeedTells | NeedBatchRenewer, Run: batchTellsOfOthers},
	{Name: "SharersAreWanted", Needs: NeedTells | NeedShared, Run: sharersAreWanted},
	{Name: "ResumedHolderIsWanted", Needs: NeedTells | NeedResumes, Run: resumedHolderIsWanted},
	{Name: "NotWantedWithoutAPlace", Needs: NeedTells, Run: notWantedWithoutAPlace},
	{Name: "NotWantedAfterTheEnd", Needs: NeedTells, Run: notWantedAfterTheEnd},
}

// A wanted counts calls of Request.Wanted.
type wanted struct{ calls atomic.Int64 }

// in returns req with w as its Wanted.
func (w *wanted) in(req driver.Request) driver.Request {
	req.Wanted = func() { w.calls.Add(1) }
	return req
}

// is fails the case unless holder is notified that others wait, at the latest by a renewal.
func (w *wanted) is(t testing.TB, holder *contender, why string) {
	t.Helper()
	recalls := holder.d.Features().Recalls
	eventually(t, Margin, "Wanted called: "+why, func() bool {
		if !recalls && w.calls.Load() == 0 {
			holder.renewed(longTTL)
		}
		return w.calls.Load() > 0
	})
	w.calls.Store(0)
}

// isNot fails the case if a call has come.
func (w *wanted) isNot(t testing.TB, why string) {
	t.Helper()
	if n := w.calls.Load(); n > 0 {
		t.Errorf("Wanted was called %d times: %s", n, why)
	}
}

// holderIsWanted: a holder is notified of the first waiter that queues, and again of the next.
func holderIsWanted(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	var told wanted
	holder := holding(t, d1, told.in(request(newName(t))))
	first, second := contend(t, d2, queued(request(holder.req.Resource))), contend(t, d1, queued(request(holder.req.Resource)))
	first.busy("it is held")
	told.is(t, holder, "a waiter has queued")
	second.busy("it is held")
	told.is(t, holder, "a second waiter has queued")
	holder.released()
}

// wantedByThoseWhoWaitAlready: a new holder is notified if others wait behind it.
func wantedByThoseWhoWaitAlready(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	var told wanted
	former := holding(t, d2, request(name))
	next, behind := contend(t, d1, told.in(queued(request(name)))), contend(t, d2, queued(request(name)))
	next.busy("it is held")
	if d1.Features().Fair {
		behind.busy("it is held")
		former.released()
		next.wins(Margin, "it was released")
	} else {
		former.released()
		next.wins(Margin, "it was released")
		behind.busy("it is held")
	}
	told.is(t, next, "another waits")
	next.released()
}

// oneCallUntilARenewal: with WantedOnce one call is enough, at the grant or when another queues
// after it.
func oneCallUntilARenewal(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	var told [2]wanted
	once := func(i int) driver.Request {
		req := told[i].in(queued(request(name)))
		req.WantedOnce = true
		return req
	}
	holder := holding(t, d1, once(0))
	for range 2 {
		waiter := contend(t, d2, queued(request(name)))
		waiter.busy("it is held")
		told[0].is(t, holder, "a waiter has queued since the grant or a renewal")
		waiter.leaves()
		holder.renewed(longTTL)
		waitQuiet(&told[0])
	}
	next, behind := contend(t, d2, once(1)), contend(t, d1, queued(request(name)))
	next.busy("it is held")
	if d1.Features().Fair {
		behind.busy("it is held")
	}
	holder.released()
	next.wins(Margin, "it was released")
	if !d1.Features().Fair {
		behind.busy("it is held")
	}
	told[1].is(t, next, "another waits")
	next.released()
}

// renewalTellsOfOthers: each renewal notifies again, because a notice may have been lost.
func renewalTellsOfOthers(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	var told wanted
	holder := holding(t, d1, told.in(request(newName(t))))
	waiter := contend(t, d2, queued(request(holder.req.Resource)))
	for range 3 {
		waiter.busy("it is held") // to keep its place
		told.is(t, holder, "a waiter has queued")
		waiter.busy("it is held")
		waitQuiet(&told)
		holder.renewed(longTTL)
		eventually(t, Margin, "Wanted called with the answer to a renewal", func() bool { return told.calls.Load() > 0 })
	}
	holder.released()
}

// waitQuiet waits until no calls have come for a while, and resets the count.
func waitQuiet(told *wanted) {
	for {
		time.Sleep(100 * time.Millisecond)
		if told.calls.Swap(0) == 0 {
			return
		}
	}
}

// batchTellsOfOthers: RenewAll notifies as single renewals do.
func batchTellsOfOthers(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	batch := d1.(driver.BatchRenewer)
	var told [2]wanted
	var holders [2]*contender
	for i := range holders {
		holders[i] = holding(t, d1, told[i].in(request(newName(t))))
	}
	waiter := contend(t, d2, queued(request(holders[0].req.Resource)))
	waiter.busy("it is held")
	told[0].is(t, holders[0], "a waiter has queued")
	waiter.busy("it is held")
	waitQuiet(&told[0])
	renewals := make([]driver.Renewal, len(holders))
	for i, c := range holders {
		renewals[i] = driver.Renewal{Claim: c.claim, TTL: longTTL}
	}
	batch.RenewAll(bounded(t), renewals)
	for _, r := range renewals {
		if r.Err != nil {
			t.Fatalf("RenewAll: %v", r.Err)
		}
	}
	eventually(t, Margin, "Wanted called with the answer to a batch", func() bool { return told[0].calls.Load() > 0 })
	told[1].isNot(t, "nobody waits for the other resource of the batch")
	holders[0].released()
}

// sharersAreWanted: all sharers are notified of a waiter that cannot join them.
func sharersAreWanted(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	var told [2]wanted
	one, other := holding(t, d1, told[0].in(shared(name, 0))), holding(t, d2, told[1].in(shared(name, 0)))
	waiter := contend(t, d2, queued(request(name)))
	waiter.busy("it is held")
	told[0].is(t, one, "a writer has queued")
	waiter.busy("it is held")
	told[1].is(t, other, "a writer has queued")
}

// resumedHolderIsWanted: a resumed holder is notified by its renewals at the latest.
func resumedHolderIsWanted(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	first := holding(t, d1, request(newName(t)))
	var told wanted
	again := contend(t, d2, told.in(first.req))
	again.renewed(longTTL)
	waiter := contend(t, d1, queued(request(first.req.Resource)))
	waiter.busy("it is held")
	again.renewed(longTTL)
	eventually(t, Margin, "Wanted called of a lease that was resumed", func() bool { return told.calls.Load() > 0 })
}

// notWantedWithoutAPlace: Wanted is not called for the claim's own place, a Try without a place, a
// waiter for another resource, or while the claim only waits.
func notWantedWithoutAPlace(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name, elsewhere := newName(t), newName(t)
	var first, next wanted
	former := holding(t, d2, first.in(request(name)))
	contend(t, d1, request(name)).busy("it is held")
	other := holding(t, d2, request(elsewhere))
	contend(t, d1, queued(request(elsewhere))).busy("it is held")
	former.renewed(longTTL)
	waiter := contend(t, d1, next.in(queued(request(name))))
	time.Sleep(aWhile / 2) // for calls that must not come
	first.isNot(t, "a Try passed by, and others wait for another resource")
	waiter.busy("it is held")
	behind := contend(t, d2, queued(request(name)))
	behind.busy("it is held")
	time.Sleep(aWhile / 2)
	next.isNot(t, "it only waits")
	behind.leaves()
	former.released()
	waiter.wins(Margin, "it was released")
	waitQuiet(&next) // a call for the waiter that left may still come
	waiter.renewed(longTTL)
	contend(t, d2, request(name)).busy("it is held")
	time.Sleep(aWhile / 2)
	next.isNot(t, "it has queued itself, and a Try passed by")
	waiter.released()
	other.released()
}

// notWantedAfterTheEnd: Wanted is not called after the lease has ended, even if others wait for the
// next holder.
func notWantedAfterTheEnd(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	var told wanted
	former := holding(t, d1, told.in(request(name)))
	waiter := contend(t, d2, queued(request(name)))
	waiter.busy("it is held")
	told.is(t, former, "a waiter has queued")
	former.released()
	waiter.wins(Margin, "it was released")
	waitQuiet(&told)
	behind := contend(t, d1, queued(request(name)))
	behind.busy("it is held")
	waiter.renewed(longTTL)
	time.Sleep(aWhile / 2) // for calls that must not come
	told.isNot(t, "its lease was released")
}
