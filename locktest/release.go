package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var releaseCases = []Case{
	{Name: "ReleaseByOthersFreesNothing", Run: releaseByOthersFreesNothing},
	{Name: "ReleaseAfterExpiry", Run: releaseAfterExpiry},
	{Name: "ReleaseTwice", Run: releaseTwice},
	{Name: "RetriedReleaseSparesSuccessor", Run: retriedReleaseSparesSuccessor},
	{Name: "SecondReleaseSparesTheNextClaim", Run: secondReleaseSparesTheNextClaim},
	{Name: "ReleaseOnCancelledContext", Run: releaseOnCancelledContext},
	{Name: "ReleaseAfterLossReturnsSoon", Run: releaseAfterLossReturnsSoon},
	{Name: "ReleaseDuringRenewalStays", Run: releaseDuringRenewalStays},
}

func releaseByOthersFreesNothing(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	contend(t, d1, request(name)).nothingToRelease("nobody holds it")
	holder, stranger, other := holding(t, d1, request(name)), contend(t, d2, request(name)), contend(t, d2, request(name))
	stranger.nothingToRelease("it never asked, and somebody else holds it") // a driver may bar the stranger's owner from now on
	other.busy("it is held")
	other.nothingToRelease("it was refused, and somebody else holds it")
	other.busy("nothing was released")
	holder.renewed(longTTL)
}

// releaseAfterExpiry: a late Release returns ErrLost, whether or not another owner was granted.
func releaseAfterExpiry(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	ttl := shortTTL(d1)
	late, overtaken := holding(t, d1, lasting(request(newName(t)), ttl)), contend(t, d1, lasting(request(newName(t)), ttl))
	g := overtaken.granted("the resource is free")
	end := time.Now().Add(h.over(g.TTL) + 50*time.Millisecond)
	successor := contend(t, d2, request(overtaken.req.Resource))
	successor.wins(h.over(g.TTL)+Margin, "the lease is over")
	time.Sleep(time.Until(end))
	overtaken.nothingToRelease("it expired and somebody else holds it")
	successor.renewed(longTTL)
	overtaken.busy("a late Release must not free it")
	late.nothingToRelease("it expired, although nobody took over")
}

func releaseTwice(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	first, second := holding(t, d, request(name)), contend(t, d, request(name))
	first.released()
	first.nothingToRelease("it was released")
	second.granted("it was released")
	first.nothingToRelease("it was released, and somebody else holds it")
	second.renewed(longTTL)

	l := locker(t, d, leasehold.Options{})
	lease := acquire(t, l, name+"-user")
	release(t, lease)
	successor := acquire(t, l, name+"-user")
	if err := lease.Release(bounded(t)); !errors.Is(err, leasehold.ErrReleased) {
		t.Errorf("second Release: %v; want ErrReleased", err)
	}
	if err := successor.Extend(bounded(t), longTTL); err != nil {
		t.Errorf("the next holder after a second Release: %v", err)
	}
	release(t, successor)
}

// retriedReleaseSparesSuccessor: the answer to a Release is lost, and another owner is granted. The
// repeated Release does not end the successor's lease.
func retriedReleaseSparesSuccessor(t testing.TB, h Harness) {
	link := openFaulty(t, h)
	name := newName(t)
	first, second := holding(t, link, request(name)), contend(t, open(t, h), request(name))
	link.Next(OpRelease, LoseReply)
	if err := first.release(); !errors.Is(err, ErrInjected) {
		t.Fatalf("Release: %v; want its reply lost", err)
	}
	second.granted("it was released, though the reply was lost")
	first.nothingToRelease("it was released before")
	second.renewed(longTTL)
	contend(t, open(t, h), request(name)).busy("a repeated Release must not free it")
}

// secondReleaseSparesTheNextClaim: a claim that was released has nothing more to give up. The lease
// of its owner's next claim stays that claim's, also when the second Release would linger.
func secondReleaseSparesTheNextClaim(t testing.TB, h Harness) {
	d := open(t, h)
	first := holding(t, d, request(newName(t)))
	next := contend(t, d, first.req)
	first.released()
	switch _, err := next.try(); {
	case errors.Is(err, driver.ErrBarred):
		t.Skip("an owner that was released is not granted again")
	case err != nil:
		t.Fatalf("Try by the owner's next claim: %v; want a grant: it was released", err)
	}
	first.nothingToRelease("it was released, and its owner's next claim holds")
	next.renewed(longTTL)
	if d.Features().Lingers {
		if err := first.linger(longTTL); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Linger after the release: %v; want ErrLost", err)
		}
		next.renewed(longTTL)
	}
}

func releaseOnCancelledContext(t testing.TB, h Harness) {
	l, other := locker(t, open(t, h), leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	lease := acquire(t, l, name)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := lease.Release(ctx); err != nil {
		t.Fatalf("Release on a cancelled context: %v", err)
	}
	mustBeFree(t, other, name, "it was released, on a cancelled context")
}

// releaseAfterLossReturnsSoon: the link is a black hole, and the lease has ended by its deadline.
// Release says so without waiting for the engine.
func releaseAfterLossReturnsSoon(t testing.TB, h Harness) {
	d, sever := severable(t, h)
	const soon = 2 * time.Second // a call to the engine would take as long as the TTL
	lease := acquire(t, locker(t, d, leasehold.Options{TTL: max(2*soon, renewableTTL(d))}), newName(t))
	heal := sever()
	defer heal()
	ended(t, lease, lease.Deadline())
	start := time.Now()
	if err := lease.Release(bounded(t)); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of a lost lease: %v; want ErrLost", err)
	}
	if took := time.Since(start); took > soon {
		t.Errorf("Release of a lost lease took %v", took)
	}
}

// releaseDuringRenewalStays: a Release comes during a renewal that hangs, whether the engine has
// applied it or not. The resource is then free, and stays so.
func releaseDuringRenewalStays(t testing.TB, h Harness) {
	for _, fault := range []Fault{HangReply, SlowReply(100 * time.Millisecond), HangRequest} {
		link := openFaulty(t, h)
		other := locker(t, open(t, h), leasehold.Options{})
		name := newName(t)
		ttl := renewableTTL(link)
		link.Always(OpRenew, fault)
		lease := acquire(t, locker(t, link, leasehold.Options{TTL: ttl}), name)
		eventually(t, ttl, "a renewal", func() bool { return link.Calls(OpRenew) > 0 })
		if err := lease.Release(bounded(t)); err != nil {
			t.Fatalf("Release during a renewal: %v", err)
		}
		renewals := link.Calls(OpRenew)
		successor := acquire(t, other, name)
		time.Sleep(ttl / 2) // a renewal would be due in this time
		if link.Calls(OpRenew) > renewals {
			t.Error("renewed after Release")
		}
		release(t, successor)
		mustBeFree(t, other, name, "nothing brought the released lease back")
	}
}
