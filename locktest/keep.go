package locktest

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

var keepCases = []Case{
	{Name: "KeptLeaseHasTheNextToken", Needs: NeedKeeps, Run: keptLeaseHasTheNextToken},
	{Name: "KeptLeaseIsRecalled", Needs: NeedKeeps, Run: keptLeaseIsRecalled},
	{Name: "KeptLeaseIsGivenBack", Needs: NeedKeeps | NeedOperator, Run: keptLeaseIsGivenBack},
	{Name: "KeptLeaseIsConfirmed", Needs: NeedKeeps | NeedFencing, Run: keptLeaseIsConfirmed},
	{Name: "TryElsewhereEndsKeeping", Needs: NeedKeeps, Run: tryElsewhereEndsKeeping},
	{Name: "KnownOwnerIsNotKept", Needs: NeedKeeps | NeedOperator, Run: knownOwnerIsNotKept},
	{Name: "CloseGivesBackWhatIsKept", Needs: NeedKeeps | NeedOperator, Run: closeGivesBackWhatIsKept},
}

// keeper returns a Locker that keeps leases for d.
func keeper(t testing.TB, h Harness, d time.Duration) *leasehold.Locker {
	return locker(t, open(t, h), leasehold.Options{Keep: d})
}

// recallable returns a long window. If the engine cannot recall, the window is short, because the
// holder learns of others only when it confirms the lease.
func recallable(t testing.TB, h Harness) time.Duration {
	if open(t, h).Features().Recalls {
		return longTTL
	}
	return Margin / 8
}

// keptLeaseHasTheNextToken: a kept lease has the next token, up to the last token of its grant.
func keptLeaseHasTheNextToken(t testing.TB, h Harness) {
	l := keeper(t, h, longTTL/3)
	name := newName(t)
	var last uint64
	for range 1100 {
		lease := acquire(t, l, name)
		token := lease.Token()
		if l.Features().Fencing && (token <= last || token%1024 > 1022) {
			t.Fatalf("token %d after %d", token, last)
		}
		last = token
		release(t, lease)
	}
}

// keptLeaseIsRecalled: a waiter of another process gets a kept lease long before the window ends.
func keptLeaseIsRecalled(t testing.TB, h Harness) {
	l, others := keeper(t, h, recallable(t, h)), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	for range 3 {
		release(t, acquire(t, l, name))
		start := time.Now()
		release(t, acquire(t, others, name))
		if took := time.Since(start); took > Margin {
			t.Fatalf("what is kept was given back after %v", took)
		}
	}
}

// keptLeaseIsGivenBack: a kept lease is given back if it is not used, even without a recall.
func keptLeaseIsGivenBack(t testing.TB, h Harness) {
	l, others := keeper(t, h, aWhile), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	release(t, acquire(t, l, name))
	eventually(t, aWhile+Margin, "what is kept is given back", func() bool {
		return !held(t, others, name)
	})
}

// held reports whether another process holds name. It asks without a recall.
func held(t testing.TB, l *leasehold.Locker, name string) bool {
	t.Helper()
	state, err := l.Inspect(bounded(t), name)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return len(state.Holders) > 0
}

// keptLeaseIsConfirmed: a kept lease is confirmed as long as it is used. A busy machine may
// sometimes miss the window.
func keptLeaseIsConfirmed(t testing.TB, h Harness) {
	const window = aWhile / 2
	l := keeper(t, h, window)
	name := newName(t)
	var grant uint64
	var since time.Time
	eventually(t, 5*Margin, "a grant that is used outlives the window", func() bool {
		lease := acquire(t, l, name)
		if g := lease.Token() / 1024; g != grant || since.IsZero() {
			grant, since = g, time.Now()
		}
		release(t, lease)
		return time.Since(since) > 2*window
	})
}

// tryElsewhereEndsKeeping: a TryAcquire of another process gets a kept lease, unless it is in use.
func tryElsewhereEndsKeeping(t testing.TB, h Harness) {
	l, others := keeper(t, h, recallable(t, h)), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	release(t, acquire(t, l, name))
	eventually(t, Margin, "a lease that is kept is granted to a call that does not wait", func() bool {
		lease, err := others.TryAcquire(bounded(t), name)
		if err != nil {
			return false
		}
		release(t, lease)
		return true
	})
	lease := acquire(t, l, name)
	mustBeBusy(t, others, name, "it is in use")
	release(t, lease)
}

// knownOwnerIsNotKept: a lease whose owner was read is not kept, because another process may resume
// it.
func knownOwnerIsNotKept(t testing.TB, h Harness) {
	l, others := keeper(t, h, longTTL), locker(t, open(t, h), leasehold.Options{})
	name := newName(t)
	lease := acquire(t, l, name)
	lease.Owner()
	release(t, lease)
	if held(t, others, name) {
		t.Error("kept although its owner is known")
	}
}

// closeGivesBackWhatIsKept: Close gives back kept leases, but no others.
func closeGivesBackWhatIsKept(t testing.TB, h Harness) {
	l, others := keeper(t, h, longTTL), locker(t, open(t, h), leasehold.Options{})
	kept, used := newName(t), newName(t)
	release(t, acquire(t, l, kept))
	lease := acquire(t, l, used)
	if err := l.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if held(t, others, kept) {
		t.Error("Close left what is kept")
	}
	if !held(t, others, used) {
		t.Error("Close gave back what is in use")
	}
	release(t, lease)
}
