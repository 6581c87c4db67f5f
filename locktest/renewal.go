package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
)

var renewalCases = []Case{
	{Name: "RenewKeepsTheGrant", Run: renewKeepsTheGrant},
	{Name: "RenewAfterExpiryRevivesNothing", Run: renewAfterExpiryRevivesNothing},
	{Name: "RenewAfterTakeover", Run: renewAfterTakeover},
	{Name: "RenewWithoutHold", Run: renewWithoutHold},
	{Name: "RenewalOutlivesTheTTL", Run: renewalOutlivesTheTTL},
	{Name: "RenewalStopsAtRelease", Run: renewalStopsAtRelease},
	{Name: "RenewalStopsAtLoss", Run: renewalStopsAtLoss},
	{Name: "MaxHoldAndNoRenewEnd", Run: maxHoldAndNoRenewEnd},
	{Name: "HungRenewalLeavesTimeForAnother", Run: hungRenewalLeavesTimeForAnother},
	{Name: "RenewalWithoutReplyKeepsTheDeadline", Run: renewalWithoutReplyKeepsTheDeadline},
	{Name: "ExtendMovesTheDeadline", Needs: NeedTTLChange, Run: extendMovesTheDeadline},
	{Name: "BatchRenewsAsOneByOne", Needs: NeedBatchRenewer, Run: batchRenewsAsOneByOne},
	{Name: "Resume", Needs: NeedResumes, Run: resume},
	{Name: "AnotherClaimOfTheOwner", Needs: NeedResumes, Run: anotherClaimOfTheOwner},
	{Name: "ResumeAfterHandOver", Needs: NeedResumes | NeedFencing, Run: resumeAfterHandOver},
}

// renewKeepsTheGrant: a lease that is renewed for longer than its TTL keeps its grant, and nobody
// else is granted.
func renewKeepsTheGrant(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	ttl := renewableTTL(d)
	holder := contend(t, d, lasting(request(newName(t)), ttl))
	other := contend(t, d2, request(holder.req.Resource))
	g := holder.granted("the resource is free")
	for end := time.Now().Add(ttl + ttl/2); time.Now().Before(end); time.Sleep(ttl / 6) {
		sameGrant(t, g, holder.renewed(ttl), "its renewal")
		other.busy("it is renewed")
	}
	holder.released()
	other.granted("it was released")
}

// renewAfterExpiryRevivesNothing: a lease that has expired cannot be renewed, even if nobody took
// the resource.
func renewAfterExpiryRevivesNothing(t testing.TB, h Harness) {
	d := open(t, h)
	holder := contend(t, d, lasting(request(newName(t)), shortTTL(d)))
	g := holder.granted("the resource is free")
	time.Sleep(h.over(g.TTL) + 50*time.Millisecond)
	holder.lost("it expired, although nobody took over")
	holder.lost("ErrLost is final")
	contend(t, open(t, h), request(holder.req.Resource)).granted("a renewal after the end holds nothing")
	holder.nothingToRelease("it expired, and was not revived")
}

func renewAfterTakeover(t testing.TB, h Harness) {
	d := open(t, h)
	holder := contend(t, d, lasting(request(newName(t)), shortTTL(d)))
	g := holder.granted("the resource is free")
	successor := contend(t, open(t, h), lasting(request(holder.req.Resource), renewableTTL(d)))
	s, _, _ := successor.wins(h.over(g.TTL)+Margin, "the lease is over")
	holder.lost("it expired and somebody else holds it")
	sameGrant(t, s, successor.renewed(longTTL), "the successor's renewal")
	holder.busy("somebody else holds it")
}

func renewWithoutHold(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	c, waiter := contend(t, d, request(name)), contend(t, d, queued(request(name)))
	c.lost("it never asked")
	c.granted("a renewal of nothing holds nothing")
	waiter.busy("it is held")
	waiter.lost("it waits")
	c.released()
	c.lost("it was released")
	waiter.wins(Margin, "a renewal after Release holds nothing")
}

// renewalOutlivesTheTTL: renewals keep a lease for longer than its TTL, even after the context of
// Acquire has ended. A machine that is too busy to renew in time gets longer leases.
func renewalOutlivesTheTTL(t testing.TB, h Harness) {
	d := open(t, h)
	other := open(t, h)
	for ttl := renewableTTL(d); outlives(t, d, other, ttl); ttl *= 2 {
	}
}

// outlives holds a lease for longer than its TTL. It reports whether the lease ended after
// a call here took so long that renewals were late, too.
func outlives(t testing.TB, d, o driver.Driver, ttl time.Duration) (late bool) {
	other := locker(t, o, leasehold.Options{})
	l := locker(t, d, leasehold.Options{TTL: ttl})
	name := newName(t)
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	last := time.Now()
	lease, err := l.Acquire(ctx, name)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	cancel()
	token := lease.Token()
	for end := time.Now().Add(5 * ttl / 2); time.Now().Before(end); time.Sleep(ttl / 10) {
		taken, err := other.TryAcquire(bounded(t), name)
		ended := lease.Context().Err() != nil || time.Until(lease.Deadline()) <= 0
		late, last = late || time.Since(last) > ttl/4, time.Now()
		switch {
		case ended && late:
			if taken != nil {
				release(t, taken)
			}
			return true
		case taken != nil || !errors.Is(err, leasehold.ErrBusy):
			t.Fatalf("TryAcquire: %v, %v; want ErrBusy: it is renewed", describe(taken), err)
		case ended:
			t.Fatalf("the lease ended: %v", context.Cause(lease.Context()))
		}
		if left := time.Until(lease.Deadline()); left > ttl {
			t.Errorf("deadline in %v, TTL is %v", left, ttl)
		}
		if lease.Token() != token {
			t.Errorf("token went from %d to %d", token, lease.Token())
		}
	}
	release(t, lease)
	mustBeFree(t, other, name, "it was released")
	return false
}

func renewalStopsAtRelease(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	ttl := renewableTTL(link)
	lease := acquire(t, locker(t, link, leasehold.Options{TTL: ttl}), newName(t))
	eventually(t, ttl, "a renewal", func() bool { return link.Calls(OpRenew) > 0 })
	release(t, lease)
	if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrReleased) {
		t.Errorf("cause of a released lease's context: %v; want ErrReleased", cause)
	}
	renewals := link.Calls(OpRenew)
	time.Sleep(ttl)
	if n := link.Calls(OpRenew); n > renewals {
		t.Errorf("%d renewals after Release", n-renewals)
	}
}

func renewalStopsAtLoss(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	ttl := renewableTTL(link)
	link.Always(OpRenew, LoseRequest)
	l := locker(t, link, leasehold.Options{TTL: ttl})
	renewals, before := 0, 0
	for try := 0; renewals < 2 && try < 4; try++ { // a process that is kept from running tries less often
		before = link.Calls(OpRenew)
		lease := acquire(t, l, newName(t))
		ended(t, lease, lease.Deadline())
		renewals = link.Calls(OpRenew) - before
	}
	if renewals < 2 || renewals > 100 {
		t.Errorf("%d renewals tried before the deadline, while each failed at once", renewals)
	}
	time.Sleep(ttl / 2)
	if n := link.Calls(OpRenew) - before; n > renewals+1 { // one may have been in flight
		t.Errorf("%d renewals after the loss", n-renewals)
	}
}

// maxHoldAndNoRenewEnd: leases with MaxHold or NoRenew end, although the engine would renew them.
func maxHoldAndNoRenewEnd(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := renewableTTL(d)
	l, other := locker(t, d, leasehold.Options{TTL: ttl}), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	start := time.Now()
	capped := acquire(t, l, name, leasehold.MaxHold(ttl+ttl/2))
	unrenewed := acquire(t, l, name+"-unrenewed", leasehold.NoRenew())
	if at := ended(t, unrenewed, unrenewed.Deadline()); at.Before(unrenewed.Deadline()) {
		t.Errorf("a lease with NoRenew ended %v before its deadline", unrenewed.Deadline().Sub(at))
	}
	if at := ended(t, capped, start.Add(ttl+ttl/2)); at.Sub(start) < ttl+ttl/2-ttl/50 {
		t.Errorf("a lease with MaxHold(%v) ended after %v", ttl+ttl/2, at.Sub(start))
	}
	release(t, acquire(t, other, name+"-unrenewed", leasehold.Wait(h.over(ttl)+followWithin)))
	release(t, acquire(t, other, name, leasehold.Wait(h.over(ttl)+followWithin)))
}

// hungRenewalLeavesTimeForAnother: a renewal gets neither an answer nor an error. There is time for
// another.
func hungRenewalLeavesTimeForAnother(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	ttl := 2*renewableTTL(link) + 800*time.Millisecond // what is left after the second one is an eighth of it
	link.Next(OpRenew, HangRequest, nil, HangReply)
	lease := acquire(t, locker(t, link, leasehold.Options{TTL: ttl}), newName(t))
	select {
	case <-lease.Context().Done():
		t.Fatalf("the lease ended: %v; two renewals hung, the others work", context.Cause(lease.Context()))
	case <-time.After(5 * ttl / 2):
	}
	if n := link.Calls(OpRenew); n < 4 {
		t.Errorf("%d renewals in %v with a TTL of %v", n, 5*ttl/2, ttl)
	}
	release(t, lease)
}

// renewalWithoutReplyKeepsTheDeadline: the engine renews, but the holder gets no answer. The holder
// ends at its former deadline, and the resource is free a TTL after the last renewal.
func renewalWithoutReplyKeepsTheDeadline(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	ttl := renewableTTL(link)
	link.Always(OpRenew, LoseReply)
	name := newName(t)
	lease := acquire(t, locker(t, link, leasehold.Options{TTL: ttl}), name)
	deadline := lease.Deadline()
	ended(t, lease, deadline)
	if !lease.Deadline().Equal(deadline) {
		t.Errorf("deadline moved by %v, by renewals of unknown outcome", lease.Deadline().Sub(deadline))
	}
	if err := lease.Release(bounded(t)); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of a lost lease: %v; want ErrLost", err)
	}
	mustFollow(t, h, name, ttl)
}

// mustFollow checks that the resource is free within limit plus a margin.
func mustFollow(t testing.TB, h Harness, name string, limit time.Duration) {
	t.Helper()
	start := time.Now()
	lease := acquire(t, locker(t, open(t, h), leasehold.Options{}), name, leasehold.Wait(h.over(limit)+followWithin))
	if took := time.Since(start); took > h.over(limit)+followWithin {
		t.Errorf("free after %v, want within %v", took, limit)
	}
	release(t, lease)
}

func extendMovesTheDeadline(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := renewableTTL(d)
	longer := 3 * ttl
	name := newName(t)
	other := locker(t, open(t, h), leasehold.Options{})
	lease := acquire(t, locker(t, d, leasehold.Options{TTL: ttl}), name, leasehold.NoRenew())
	before := time.Now()
	if err := lease.Extend(bounded(t), longer); err != nil {
		t.Fatalf("Extend: %v", err)
	}
	if left := lease.Deadline().Sub(before); left < 2*ttl || left > longer+Margin {
		t.Errorf("deadline %v after Extend(%v)", left, longer)
	}
	time.Sleep(time.Until(before.Add(2 * ttl)))
	mustBeBusy(t, other, name, "it was extended")
	if err := lease.Context().Err(); err != nil {
		t.Errorf("the extended lease ended: %v", context.Cause(lease.Context()))
	}
	ended(t, lease, lease.Deadline())
	if err := lease.Extend(bounded(t), ttl); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Extend after the end: %v; want ErrLost", err)
	}
}

// batchRenewsAsOneByOne: RenewAll renews each claim that holds, for the TTL of its own Renewal, and
// says that the others have lost their leases.
func batchRenewsAsOneByOne(t testing.TB, h Harness) {
	d, other := open(t, h), open(t, h)
	base, ttl := newName(t), renewableTTL(d)
	claim := func(name string, ttl time.Duration) *contender {
		return contend(t, d, lasting(request(base+name), ttl))
	}
	expired := claim("-expired", shortTTL(d))
	time.Sleep(h.over(expired.granted("the resource is free").TTL) + 50*time.Millisecond)
	first, gone, last := claim("-first", ttl), claim("-gone", ttl), claim("-last", ttl)
	all := []*contender{first, expired, gone, last}
	grants := []driver.Grant{first.granted("the resource is free"), {}, {}, last.granted("the resource is free")}
	began := time.Now()
	gone.granted("the resource is free")
	if _, ok := other.(driver.Operator); ok {
		evict(t, other, gone.req.Resource, gone.req.Owner)
	} else {
		gone.released()
	}
	renewAll := func(forFirst time.Duration) {
		t.Helper()
		renewals := make([]driver.Renewal, len(all))
		for i, c := range all {
			renewals[i] = driver.Renewal{Claim: c.claim, TTL: longTTL}
			if h.FixedTTL {
				renewals[i].TTL = c.req.TTL
			} else if c == first {
				renewals[i].TTL = forFirst
			}
		}
		d.(driver.BatchRenewer).RenewAll(bounded(t), renewals)
		for i, r := range renewals {
			switch name := all[i].req.Resource; {
			case all[i] == expired || all[i] == gone:
				if !errors.Is(r.Err, driver.ErrLost) {
					t.Errorf("RenewAll of %s: %v; want ErrLost", name, r.Err)
				}
			case r.Err != nil:
				t.Fatalf("RenewAll of %s, which is held: %v", name, r.Err)
			default:
				sameGrant(t, grants[i], r.Grant, "its renewal in a batch")
				if r.Grant.TTL < r.TTL && !h.FixedTTL { // a session's may be shorter
					t.Errorf("RenewAll of %s for %v: renewed for %v", name, r.TTL, r.Grant.TTL)
				}
			}
		}
	}
	held := func(c *contender, why string) {
		t.Helper()
		contend(t, other, request(c.req.Resource)).busy(why)
	}
	renewAll(longTTL)
	if h.FixedTTL {
		return // nobody can renew for longer, so as to outlive the first TTL by far
	}
	time.Sleep(time.Until(began.Add(h.over(ttl) + 50*time.Millisecond)))
	held(first, "it was renewed in a batch")
	held(last, "it was renewed in a batch")
	if h.NeverShortens {
		return
	}
	renewAll(ttl)
	contend(t, other, queued(request(first.req.Resource))).wins(h.over(ttl)+Margin, "it was renewed for less in a batch")
	held(last, "it was renewed for longer")
}

// resume: another process that knows the owner renews and releases the lease.
func resume(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	first := contend(t, d1, request(name))
	again := contend(t, d2, first.req)
	g := first.granted("the resource is free")
	sameGrant(t, g, again.renewed(longTTL), "its renewal by another process")
	again.released()
	first.lost("another process released it by its owner")

	l1, l2 := locker(t, d1, leasehold.Options{}), locker(t, d2, leasehold.Options{})
	lease := acquire(t, l1, name, leasehold.NoRenew())
	resumed, err := l2.Resume(bounded(t), name, lease.Owner())
	if err != nil {
		t.Fatalf("Resume: %v", err)
	}
	if resumed.Token() < lease.Token() {
		t.Errorf("resumed with token %d, acquired with %d", resumed.Token(), lease.Token())
	}
	release(t, resumed)
	mustBeFree(t, l1, name+"-other", "nobody has asked for it")
	if resumed, err := l2.Resume(bounded(t), name, lease.Owner()); resumed != nil || !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Resume after the end: %s, %v; want ErrLost", describe(resumed), err)
	}
	mustBeFree(t, l2, name, "it was released by whoever resumed it")
}

// anotherClaimOfTheOwner: a Try of an owner that holds by another claim finds that grant, even if
// its request differs, and ends nothing. A Release by a claim that has never tried ends the grant.
func anotherClaimOfTheOwner(t testing.TB, h Harness) {
	d, d2 := open(t, h), open(t, h)
	first := contend(t, d, request(newName(t)))
	other := contend(t, d2, request(first.req.Resource))
	g := first.granted("the resource is free")
	for _, req := range []driver.Request{lasting(first.req, longTTL*2), queued(first.req)} {
		sameGrant(t, g, contend(t, d, req).granted("its owner holds it"), "the owner's next attempt")
		sameGrant(t, g, first.renewed(longTTL), "its renewal")
		other.busy("its owner has asked again")
	}
	contend(t, d2, first.req).released()
	first.lost("another claim of the owner released it")
	other.granted("it was released")
}

// resumeAfterHandOver: a process that resumes a lease does not know how often it was handed over.
// Guards that saw its last token must not refuse the resumed one.
func resumeAfterHandOver(t testing.TB, h Harness) {
	queued := make(chan struct{}, 1)
	l1 := locker(t, open(t, h), leasehold.Options{
		HandOver: time.Minute, Trace: queues(queued),
	})
	l2 := locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	first := acquire(t, l1, name)
	next := acquiring(bounded(t), l1, name)
	<-queued
	release(t, first)
	got := <-next
	if got.err != nil {
		t.Fatalf("Acquire: %v", got.err)
	}
	second := got.lease
	var guard fence.Memory
	for _, lease := range []*leasehold.Lease{first, second, resumed(t, l2, second), resumed(t, l2, second)} {
		if err := guard.Do(lease, func() error { return nil }); err != nil {
			t.Errorf("a holder is refused: %v", err)
		}
	}
	release(t, resumed(t, l2, second))
	last := acquire(t, l2, name)
	if err := guard.Do(last, func() error { return nil }); err != nil {
		t.Errorf("the next holder is refused: %v", err)
	}
	release(t, last)
}

// resumed resumes lease in another process.
func resumed(t testing.TB, l *leasehold.Locker, lease *leasehold.Lease) *leasehold.Lease {
	again, err := l.Resume(bounded(t), lease.Name(), lease.Owner())
	if err != nil {
		t.Fatalf("Resume: %v", err)
	}
	return again
}
