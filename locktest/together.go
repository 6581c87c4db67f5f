package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// togetherCases are about a driver.BatchTrier, which makes the calls of several claims at once.
var togetherCases = []Case{
	{Name: "TogetherAsOneByOne", Needs: NeedBatchTrier, Run: togetherAsOneByOne},
	{Name: "TogetherWithoutAnswer", Needs: NeedBatchTrier, Run: togetherWithoutAnswer},
}

// tryAll calls TryAll for all contenders.
func tryAll(ctx context.Context, all []*contender) []driver.Trial {
	trials := make([]driver.Trial, len(all))
	for i, c := range all {
		trials[i].Claim = c.claim
	}
	all[0].d.(driver.BatchTrier).TryAll(ctx, trials)
	return trials
}

// releaseAll calls ReleaseAll for all contenders, each with its own end.
func releaseAll(ctx context.Context, all []*contender) []driver.Ending {
	endings := make([]driver.Ending, len(all))
	for i, c := range all {
		endings[i].Claim, endings[i].How = c.claim, c.end
	}
	all[0].d.(driver.BatchTrier).ReleaseAll(ctx, endings)
	return endings
}

// togetherAsOneByOne: each claim of a batch is granted, refused or released as it would be by a
// call of its own.
func togetherAsOneByOne(t testing.TB, h Harness) {
	d, other := open(t, h), open(t, h)
	base, f := newName(t), d.Features()
	taken := holding(t, other, request(base+"-taken"))
	before := holding(t, d, request(base+"-held"))
	first := before.renewed(longTTL)
	var all []*contender
	var holds []bool
	add := func(c *contender, granted bool) { all, holds = append(all, c), append(holds, granted) }
	last := make(map[string]uint64) // the last fence of each resource
	for i := range 3 {
		req := request(fmt.Sprint(base, "-free-", i))
		again := holding(t, other, req)
		last[req.Resource] = again.renewed(longTTL).Fence
		again.released()
		req.Owner = newOwner()
		if f.Shared && i == 1 {
			req.Mode, req.Limit = driver.Shared, 2
		}
		add(contend(t, d, req), true)
	}
	add(contend(t, d, request(taken.req.Resource)), false)
	add(before, true)
	if f.Shared {
		full := holding(t, other, shared(base+"-full", 1))
		add(contend(t, d, shared(full.req.Resource, 1)), false)
	}
	for round := range 3 {
		for i, trial := range tryAll(bounded(t), all) {
			switch name := all[i].req.Resource; {
			case !holds[i]:
				if _, ok := errors.AsType[*driver.Busy](trial.Err); !ok {
					t.Fatalf("round %d: TryAll of %s, which another holds: %v, fence %d; want a *driver.Busy", round, name, trial.Err, trial.Grant.Fence)
				}
			case trial.Err != nil:
				t.Fatalf("round %d: TryAll of %s, which is free: %v", round, name, trial.Err)
			case trial.Grant.TTL <= 0 || f.Fencing && trial.Grant.Fence <= last[name]:
				t.Fatalf("round %d: TryAll of %s: granted for %v with fence %d, after %d", round, name, trial.Grant.TTL, trial.Grant.Fence, last[name])
			case all[i] == before && round == 0:
				sameGrant(t, first, trial.Grant, "the grant of what was held before")
				fallthrough
			default:
				last[name] = trial.Grant.Fence
				sameGrant(t, trial.Grant, all[i].renewed(longTTL), "the grant of a batch, renewed")
				contend(t, other, request(name)).busy("it was granted in a batch")
			}
		}
		order := slices.Clone(all)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for i, ending := range releaseAll(bounded(t), order) {
			c := order[i]
			switch granted := holds[slices.Index(all, c)]; {
			case granted && ending.Err != nil:
				t.Fatalf("round %d: ReleaseAll of %s, which is held: %v", round, c.req.Resource, ending.Err)
			case !granted && !errors.Is(ending.Err, driver.ErrLost):
				t.Fatalf("round %d: ReleaseAll of %s, which another holds: %v; want ErrLost", round, c.req.Resource, ending.Err)
			}
		}
		for i, c := range all {
			if holds[i] {
				next := holding(t, other, request(c.req.Resource))
				next.released()
			}
			all[i] = contend(t, d, c.again()) // because a claim is not used after its release
		}
	}
	taken.renewed(longTTL) // the batch has not taken it from its holder
	endTogether(t, d, other)
}

// endTogether ends claims in a batch, each in its own way.
func endTogether(t testing.TB, d, other driver.Driver) {
	t.Helper()
	var all []*contender
	add := func(end driver.End) *contender {
		c := holding(t, d, request(newName(t)))
		c.end = end
		all = append(all, c)
		return c
	}
	f := d.Features()
	plain := add(driver.End{})
	var lingers, barred *contender
	if f.Lingers {
		lingers = add(driver.End{Linger: longTTL})
	}
	if f.Bars {
		barred = add(driver.End{Bar: barFor})
	}
	for i, ending := range releaseAll(bounded(t), all) {
		if ending.Err != nil {
			t.Errorf("ReleaseAll of %s, which is held: %v", all[i].req.Resource, ending.Err)
		}
	}
	contend(t, other, request(plain.req.Resource)).granted("it was released in a batch")
	if lingers != nil {
		contend(t, other, request(lingers.req.Resource)).busy("it lingers")
	}
	if barred != nil {
		barred.isBarred(other, "it was given up in a batch")
	}
}

// again returns c's request with a new owner.
func (c *contender) again() driver.Request {
	req := c.req
	req.Owner = newOwner()
	return req
}

// togetherWithoutAnswer: after a caller stopped waiting for the answers, a Release of each claim
// gives back whatever was granted.
func togetherWithoutAnswer(t testing.TB, h Harness) {
	d, other := open(t, h), open(t, h)
	base := newName(t)
	var patience time.Duration
	for range 12 {
		var all []*contender
		for i := range 4 {
			all = append(all, contend(t, d, request(fmt.Sprint(base, "-", i))))
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		trials := tryAll(ctx, all)
		cancel()
		for i, trial := range trials {
			if err := trial.Err; err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("TryAll of %s for %v: %v; want a grant, or the error of its context", all[i].req.Resource, patience, err)
			}
		}
		for i, ending := range releaseAll(bounded(t), all) {
			if err := ending.Err; err != nil && (trials[i].Err == nil || !errors.Is(err, driver.ErrLost)) {
				t.Fatalf("ReleaseAll of %s after %v: %v", all[i].req.Resource, trials[i].Err, err)
			}
		}
		for _, c := range all {
			next := holding(t, other, request(c.req.Resource))
			next.released()
		}
		patience = max(2*patience, 20*time.Microsecond)
	}
}
