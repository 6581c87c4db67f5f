package locktest

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

var weightCases = []Case{
	{Name: "WeightsCount", Needs: NeedWeights, Run: weightsCount},
	{Name: "SmallestLimitCountsWeights", Needs: NeedWeights, Run: smallestLimitCountsWeights},
	{Name: "HeavyHeadIsNotPassed", Needs: NeedWeights | NeedFair, Run: heavyHeadIsNotPassed},
	{Name: "HeavyWaiterFollowsTheLastThatMakesRoom", Needs: NeedWeights, Run: heavyWaiterFollows},
	{Name: "WeightOfTheDeadIsFree", Needs: NeedWeights, Run: weightOfTheDeadIsFree},
	{Name: "WeightAboveTheLimitIsRefused", Needs: NeedWeights, Run: weightAboveTheLimitIsRefused},
	{Name: "InspectShowsWeights", Needs: NeedWeights | NeedOperator, Run: inspectShowsWeights},
	{Name: "WeightsUnderLoad", Needs: NeedWeights, Alone: true, Run: weightsUnderLoad},
}

// weighing returns a shared request that uses this much of a limit.
func weighing(name string, limit, weight int) driver.Request {
	req := shared(name, limit)
	req.Weight = weight
	return req
}

// weightsCount: the weights of all processes count against the limit. Without a weight it is 1.
func weightsCount(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	three := holding(t, d1, weighing(name, 5, 3))
	contend(t, d2, weighing(name, 5, 3)).busy("three of five are used")
	two := contend(t, d2, weighing(name, 5, 2))
	two.granted("three of five are used, and it uses two")
	one, zero := contend(t, d1, weighing(name, 5, 1)), contend(t, d2, shared(name, 5))
	one.busy("five of five are used")
	zero.busy("five of five are used")
	two.renewed(longTTL)
	two.released()
	one.granted("three of five are used")
	zero.granted("four of five are used, and a weight that is not given is one")
	contend(t, d1, weighing(name, 0, 1)).busy("five of five are used, and the holders' limits count")
	three.released()
	contend(t, d2, weighing(name, 5, 4)).busy("two of five are used")
	contend(t, d2, weighing(name, 5, 3)).granted("two of five are used")
}

// smallestLimitCountsWeights: the smallest limit of all holders and of the claim itself counts.
func smallestLimitCountsWeights(t testing.TB, h Harness) {
	d := open(t, h)
	name := newName(t)
	holding(t, d, weighing(name, 10, 2))
	narrow := contend(t, d, weighing(name, 4, 2))
	narrow.granted("two are used, four may be")
	contend(t, d, weighing(name, 10, 1)).busy("four are used, and one of their limits is four")
	narrow.released()
	contend(t, d, weighing(name, 4, 3)).busy("two are used, and its limit is four")
	contend(t, d, weighing(name, 10, 8)).granted("two of ten are used")
}

// heavyHeadIsNotPassed: light claims do not overtake a heavy one at the head, although there is
// room for them.
func heavyHeadIsNotPassed(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder := holding(t, d1, weighing(name, 3, 2))
	heavy, light := contend(t, d2, queued(weighing(name, 3, 3))), contend(t, d1, queued(weighing(name, 3, 1)))
	passing := contend(t, d2, weighing(name, 3, 1))
	inLine(heavy, light)
	passing.line = light.line
	heavy.busy("two of three are used")
	light.busy("a heavy one waits before it")
	passing.busy("others wait before it")
	holder.released()
	heavy.wins(Margin, "it is at the head, and nothing is used")
	light.busy("three of three are used")
	heavy.released()
	light.wins(Margin, "nothing is used")
}

// heavyWaiterFollows: a heavy waiter is granted as soon as several releases have made room.
func heavyWaiterFollows(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	var light []*contender
	for i := range 4 {
		light = append(light, holding(t, []driver.Driver{d1, d2}[i%2], weighing(name, 4, 1)))
	}
	heavy := contend(t, d2, queued(weighing(name, 4, 3)))
	for _, l := range light[:3] {
		heavy.busy("there is no room for it")
		l.released()
	}
	heavy.wins(Margin, "one of four is used")
	contend(t, d1, weighing(name, 4, 1)).busy("four of four are used")
}

// weightOfTheDeadIsFree: after a holder died, its whole weight is free after the TTL. Another
// holder continues.
func weightOfTheDeadIsFree(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	ttl := renewableTTL(d1)
	alive := holding(t, d1, weighing(name, 5, 1))
	dead := contend(t, d2, lasting(weighing(name, 5, 4), ttl))
	g := dead.granted("one of five is used")
	next := contend(t, d1, queued(weighing(name, 5, 4)))
	next.wins(h.over(g.TTL)+followWithin, "the other was not renewed")
	alive.renewed(longTTL)
	contend(t, d2, weighing(name, 5, 1)).busy("five of five are used")
}

// weightAboveTheLimitIsRefused: the core refuses a weight above the call's own limit, and so does
// the engine.
func weightAboveTheLimitIsRefused(t testing.TB, h Harness) {
	d := open(t, h)
	l := locker(t, d, leasehold.Options{})
	name := newName(t)
	_, err := l.TryAcquire(bounded(t), name, leasehold.Limit(2), leasehold.Weight(3))
	if !errors.Is(err, leasehold.ErrTooHeavy) {
		t.Errorf("a weight of 3 with a limit of 2: %v, want ErrTooHeavy", err)
	}
	release(t, acquire(t, l, name, leasehold.Limit(3), leasehold.Weight(3)))
	c := contend(t, d, queued(weighing(name, 2, 3)))
	if _, err := c.try(); !errors.Is(err, driver.ErrTooHeavy) {
		t.Errorf("Try with a weight of 3 and a limit of 2: %v, want ErrTooHeavy", err)
	}
	contend(t, d, request(name)).granted("who is refused as too heavy leaves no place")
}

// inspectShowsWeights: Inspect shows the weights of holders and waiters.
func inspectShowsWeights(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	holding(t, d1, weighing(name, 5, 3))
	holding(t, d2, shared(name, 5))
	waiter := contend(t, d2, queued(weighing(name, 5, 4)))
	waiter.busy("four of five are used")
	st := inspect(t, d1, name)
	if len(st.Holders) != 2 || st.Holders[0].Weight+st.Holders[1].Weight != 4 || max(st.Holders[0].Weight, st.Holders[1].Weight) != 3 {
		t.Errorf("Inspect shows the holders %+v; want weights of 3 and 1", st.Holders)
	}
	if len(st.Waiters) > 0 && st.Waiters[0].Weight != 4 { // engines without a queue show no waiters
		t.Errorf("Inspect shows the waiter %+v; want a weight of 4", st.Waiters[0])
	}
}

// weightsUnderLoad: the weights of holders never exceed the limit together, and all callers are
// served.
func weightsUnderLoad(t testing.TB, h Harness) {
	const limit, workers, turns = 7, 8, 6
	lockers := []*leasehold.Locker{locker(t, open(t, h), leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})}
	name := newName(t)
	var used, most atomic.Int64
	atOnce(t, workers, func(i int) error {
		for range turns {
			w := int64(1 + rand.N(limit))
			lease, err := lockers[i%len(lockers)].Acquire(bounded(t), name, leasehold.Limit(limit), leasehold.Weight(int(w)))
			if err != nil {
				return err
			}
			now := used.Add(w)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			time.Sleep(time.Duration(rand.N(3)) * time.Millisecond)
			used.Add(-w)
			if err := lease.Release(bounded(t)); err != nil {
				return err
			}
		}
		return nil
	})
	if most.Load() > limit {
		t.Errorf("%d were used, the limit is %d", most.Load(), limit)
	}
}
