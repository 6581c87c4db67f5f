package locktest

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var limitCases = []Case{
	{Name: "LimitOfAnOperatorCounts", Needs: NeedLimits, Run: limitOfAnOperatorCounts},
	{Name: "RaisedLimitAdmitsThoseWhoWait", Needs: NeedLimits, Run: raisedLimitAdmitsThoseWhoWait},
	{Name: "LoweredLimitEndsNobody", Needs: NeedLimits, Run: loweredLimitEndsNobody},
	{Name: "LoweredLimitHoldsForThoseWhoWait", Needs: NeedLimits, Run: loweredLimitHoldsForThoseWhoWait},
	{Name: "LimitOutlivesItsUsers", Needs: NeedLimits, Run: limitOutlivesItsUsers},
	{Name: "LimitLeavesExclusiveClaimsAlone", Needs: NeedLimits, Run: limitLeavesExclusiveClaimsAlone},
	{Name: "LimitMakesTooHeavy", Needs: NeedLimits | NeedWeights, Run: limitMakesTooHeavy},
	{Name: "InspectShowsTheLimit", Needs: NeedLimits, Run: inspectShowsTheLimit},
	{Name: "LimitAfterRestart", Needs: NeedLimits | NeedRestart, Alone: true, Run: limitAfterRestart},
}

// setLimit sets an operator's limit until t ends.
func setLimit(t testing.TB, d driver.Driver, name string, limit int) {
	t.Helper()
	if err := d.(driver.Operator).SetLimit(bounded(t), name, limit); err != nil {
		t.Fatalf("SetLimit(%d): %v", limit, err)
	}
}

// limited returns a new name with an operator's limit, until t ends.
func limited(t testing.TB, h Harness, limit int) (name string, operator driver.Driver) {
	t.Helper()
	name, operator = newName(t), open(t, h)
	setLimit(t, operator, name, limit)
	t.Cleanup(func() { _ = operator.(driver.Operator).SetLimit(bounded(t), name, 0) })
	return name, operator
}

// limitOfAnOperatorCounts: an operator's limit applies to calls without a limit or with a higher
// one. A lower one takes precedence.
func limitOfAnOperatorCounts(t testing.TB, h Harness) {
	name, operator := limited(t, h, 2)
	d1, d2 := open(t, h), open(t, h)
	one, two := contend(t, d1, shared(name, 0)), contend(t, d2, shared(name, 5))
	one.granted("none of two is used")
	contend(t, d1, shared(name, 1)).busy("one is used, and it asks for at most one")
	two.granted("one of two is used")
	third := contend(t, d1, shared(name, 0))
	third.busy("two of two are used")
	contend(t, d2, shared(name, 5)).busy("two of two are used")
	setLimit(t, operator, name, 0)
	third.granted("there is no limit any more")
}

// raisedLimitAdmitsThoseWhoWait: a higher limit admits waiters without any release.
func raisedLimitAdmitsThoseWhoWait(t testing.TB, h Harness) {
	name, operator := limited(t, h, 1)
	d1, d2 := open(t, h), open(t, h)
	holder := holding(t, d1, shared(name, 0))
	first, second, third := contend(t, d2, queued(shared(name, 0))), contend(t, d1, queued(shared(name, 0))), contend(t, d2, queued(shared(name, 0)))
	for _, c := range []*contender{first, second, third} {
		c.busy("one of one is used")
	}
	setLimit(t, operator, name, 3)
	first.follows(Margin, "one of three is used")
	second.follows(Margin, "two of three are used")
	third.busy("three of three are used")
	setLimit(t, operator, name, 0)
	third.follows(Margin, "there is no limit any more")
	holder.renewed(longTTL)
}

// loweredLimitEndsNobody: a lower limit ends no lease, and admits nobody until there is room.
func loweredLimitEndsNobody(t testing.TB, h Harness) {
	name, operator := limited(t, h, 3)
	d1, d2 := open(t, h), open(t, h)
	var all []*contender
	for i := range 3 {
		all = append(all, holding(t, []driver.Driver{d1, d2}[i%2], shared(name, 0)))
	}
	setLimit(t, operator, name, 1)
	for _, c := range all {
		c.renewed(longTTL)
		c.granted("it held before the limit was lowered")
	}
	next := contend(t, d2, shared(name, 0))
	for _, c := range all {
		next.busy("others hold it, and one may")
		c.released()
	}
	next.granted("nobody holds it")
}

// loweredLimitHoldsForThoseWhoWait: waiters that queued under the former limit are not admitted by
// a release that would have made room under it.
func loweredLimitHoldsForThoseWhoWait(t testing.TB, h Harness) {
	name, operator := limited(t, h, 3)
	d1, d2 := open(t, h), open(t, h)
	var all []*contender
	for i := range 3 {
		all = append(all, holding(t, []driver.Driver{d1, d2}[i%2], shared(name, 0)))
	}
	waiter := contend(t, d2, queued(shared(name, 0)))
	waiter.busy("three of three are used")
	setLimit(t, operator, name, 2)
	all[0].released()
	for range 4 {
		waiter.busy("two of two are used")
		time.Sleep(aWhile / 8) // for a grant that must not come
	}
	all[1].released()
	waiter.wins(Margin, "one of two is used")
	all[2].renewed(longTTL)
}

// limitOutlivesItsUsers: a limit stays when its resource is cleaned up.
func limitOutlivesItsUsers(t testing.TB, h Harness) {
	name, _ := limited(t, h, 1)
	d1, d2 := open(t, h), open(t, h)
	ttl := renewableTTL(d1)
	holding(t, d1, shared(name, 0)).released()
	holding(t, d1, lasting(shared(name, 0), ttl)) // it is never released
	next := contend(t, d2, queued(shared(name, 0)))
	next.wins(h.over(ttl)+followWithin, "the other was not renewed")
	contend(t, d1, shared(name, 0)).busy("one of one is used")
	next.released()
	exclusive := holding(t, d1, request(name))
	exclusive.released()
	holding(t, d2, shared(name, 0))
	contend(t, d1, shared(name, 0)).busy("one of one is used")
}

// limitLeavesExclusiveClaimsAlone: exclusive claims ignore a limit.
func limitLeavesExclusiveClaimsAlone(t testing.TB, h Harness) {
	name, operator := limited(t, h, 1)
	d1, d2 := open(t, h), open(t, h)
	holder := holding(t, d1, request(name))
	waiter := contend(t, d2, queued(request(name)))
	waiter.busy("it is held")
	setLimit(t, operator, name, 2)
	waiter.busy("it is held")
	holder.renewed(longTTL)
	holder.released()
	waiter.wins(Margin, "it was released")
}

// limitMakesTooHeavy: a limit refuses heavier claims, new and waiting ones. Waiters behind them
// continue.
func limitMakesTooHeavy(t testing.TB, h Harness) {
	name, operator := limited(t, h, 3)
	d1, d2 := open(t, h), open(t, h)
	if _, err := contend(t, d1, queued(weighing(name, 0, 4))).try(); !errors.Is(err, driver.ErrTooHeavy) {
		t.Errorf("Try with a weight of 4 and a limit of 3: %v, want ErrTooHeavy", err)
	}
	holder := holding(t, d1, shared(name, 0))
	ctx := bounded(t)
	heavy := make(chan error, 1)
	l := locker(t, d2, leasehold.Options{})
	go func() {
		lease, err := l.Acquire(ctx, name, leasehold.Weight(3))
		if err == nil {
			err = lease.Release(ctx)
		}
		heavy <- err
	}()
	eventually(t, Margin, "the heavy one waits", func() bool { return len(inspect(t, operator, name).Waiters) > 0 || !d2.Features().Fair })
	light := contend(t, d1, queued(shared(name, 0)))
	if d1.Features().Fair {
		light.busy("a heavy one waits before it")
	}
	setLimit(t, operator, name, 2)
	if err := <-heavy; !errors.Is(err, leasehold.ErrTooHeavy) {
		t.Errorf("a limit of 2 makes a waiting weight of 3: %v, want ErrTooHeavy", err)
	}
	light.wins(Margin, "one of two is used, and nobody waits before it")
	holder.renewed(longTTL)
}

// inspectShowsTheLimit: Inspect shows the limit even of a resource that nobody uses. Lists omit
// such a resource.
func inspectShowsTheLimit(t testing.TB, h Harness) {
	name, operator := limited(t, h, 3)
	if st := inspect(t, operator, name); st.Limit != 3 || len(st.Holders) > 0 {
		t.Errorf("Inspect shows %+v; want the limit of 3, and no holders", st)
	}
	d := open(t, h)
	holder := holding(t, d, shared(name, 0))
	if st := inspect(t, operator, name); st.Limit != 3 || len(st.Holders) != 1 {
		t.Errorf("Inspect shows %+v; want the limit of 3, and a holder", st)
	}
	states, _, err := operator.(driver.Operator).List(bounded(t), name, "", 10)
	if err != nil || len(states) != 1 || states[0].Limit != 3 {
		t.Errorf("List shows %+v, %v; want the limit of 3", states, err)
	}
	holder.released()
	if states, _, err := operator.(driver.Operator).List(bounded(t), name, "", 10); err != nil || len(states) > 0 {
		t.Errorf("List shows %+v, %v; nobody holds it or waits", states, err)
	}
	setLimit(t, operator, name, 0)
	if st := inspect(t, operator, name); st.Limit != 0 {
		t.Errorf("Inspect shows the limit %d, which was removed", st.Limit)
	}
	if err := operator.(driver.Operator).SetLimit(bounded(t), name, -1); err == nil {
		t.Error("a limit of -1 is accepted")
	}
}

// limitAfterRestart: an engine that keeps leases over a restart keeps limits too.
func limitAfterRestart(t testing.TB, h Harness) {
	name, operator := limited(t, h, 1)
	h.Restart(t)
	eventually(t, 3*followWithin, "the limit after a restart", func() bool {
		st, err := operator.(driver.Operator).Inspect(bounded(t), name)
		return err == nil && st.Limit == 1
	})
}
