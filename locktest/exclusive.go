package locktest

import (
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// exclusiveCases are properties of an exclusive lease, and of the only lease under a Limit of 1.
var exclusiveCases = append(
	mutexCases("", 0, request),
	mutexCases("LimitOne", NeedShared, func(name string) driver.Request { return shared(name, 1) })...,
)

func mutexCases(prefix string, need Need, ask func(name string) driver.Request) []Case {
	return []Case{
		{Name: prefix + "OneHolder", Needs: need, Run: func(t testing.TB, h Harness) { oneHolder(t, h, ask) }},
		{Name: prefix + "LockRightAfterUnlock", Needs: need, Run: func(t testing.TB, h Harness) { lockRightAfterUnlock(t, h, ask) }},
		{Name: prefix + "TryNeverWaits", Needs: need, Run: func(t testing.TB, h Harness) { tryNeverWaits(t, h, ask) }},
		{Name: prefix + "TryIsRepeatable", Needs: need, Run: func(t testing.TB, h Harness) { tryIsRepeatable(t, h, ask) }},
		{Name: prefix + "OwnersAreComparedWhole", Needs: need, Run: func(t testing.TB, h Harness) { ownersAreComparedWhole(t, h, ask) }},
		{Name: prefix + "OneOfManyWins", Needs: need, Run: func(t testing.TB, h Harness) { oneOfManyWins(t, h, ask) }},
	}
}

// oneHolder: a second owner is refused, in the same process and in another one.
func oneHolder(t testing.TB, h Harness, ask func(string) driver.Request) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder, near, far := holding(t, d1, ask(name)), contend(t, d1, ask(name)), contend(t, d2, ask(name))
	near.busy("another owner of the same process holds it")
	far.busy("another process holds it")
	contend(t, d2, ask(name+"2")).granted("another resource is free")
	far.busy("acquiring another resource does not free this one")
	holder.released()
	near.granted("it was released")
	far.busy("it was acquired again")
	near.released()
	far.granted("it was released again")
}

func lockRightAfterUnlock(t testing.TB, h Harness, ask func(string) driver.Request) {
	drivers := []driver.Driver{open(t, h), open(t, h)}
	name := newName(t)
	for i := range 10 {
		c := contend(t, drivers[i%2], ask(name))
		c.granted("it was released just now")
		c.released()
	}
}

// tryNeverWaits: the answer to a Try comes long before the holder's lease ends.
func tryNeverWaits(t testing.TB, h Harness, ask func(string) driver.Request) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	contend(t, d1, ask(name)).granted("the resource is free")
	for _, req := range []driver.Request{ask(name), queued(ask(name))} {
		other := contend(t, d2, req)
		err := within(t, "Try", Margin, other.tryOnce)
		if !errors.Is(err, driver.ErrBusy) {
			t.Errorf("Try (Queue: %v): %v; want busy within %v", req.Queue, err, Margin)
		}
	}
}

// tryIsRepeatable: if the answer to a Try was lost, the next Try returns the same grant.
func tryIsRepeatable(t testing.TB, h Harness, ask func(string) driver.Request) {
	d1, d2 := open(t, h), open(t, h)
	name := newName(t)
	holder, other := contend(t, d1, ask(name)), contend(t, d2, queued(ask(name)))
	first := holder.granted("the resource is free")
	for range 3 {
		sameGrant(t, first, holder.granted("held by itself is not busy"), "its repetition")
	}
	other.busy("it is held")
	sameGrant(t, first, holder.granted("held by itself is not busy, whoever waits"), "its repetition")
	holder.released()
	other.granted("one Release ends the grant, however often it was asked for")
	holder.nothingToRelease("it was released")
}

// ownersAreComparedWhole: an owner that is the beginning of another, or differs in case, is another
// owner.
func ownersAreComparedWhole(t testing.TB, h Harness, ask func(string) driver.Request) {
	d := open(t, h)
	name := newName(t)
	req := ask(name)
	req.Owner = "job-1" + newOwner()[5:]
	holder := holding(t, d, req)
	for _, owner := range []string{req.Owner[:len(req.Owner)-1], req.Owner + "0", strings.ToUpper(req.Owner), req.Owner[:5]} {
		imposter := ask(name)
		imposter.Owner = owner
		c := contend(t, d, imposter)
		c.busy("a similar owner holds it")
		c.lost("a similar owner holds it")
		c.nothingToRelease("a similar owner holds it")
		holder.renewed(longTTL)
	}
}

// oneOfManyWins: if 20 claims of several processes try at once, one is granted.
func oneOfManyWins(t testing.TB, h Harness, ask func(string) driver.Request) {
	const rounds, contenders = 5, 20
	drivers := []driver.Driver{open(t, h), open(t, h), open(t, h), open(t, h)}
	for range rounds {
		name := newName(t)
		if n := winners(t, drivers, contenders, func() driver.Request { return ask(name) }); n != 1 {
			t.Fatalf("%d of %d were granted, want 1", n, contenders)
		}
	}
}
