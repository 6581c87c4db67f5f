package queue

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

func itself(c Claim) Claim { return c }

// serve is the rule in its simplest form. Each claim in turn holds beside those before it, if it
// may; the first that may not stops all others.
func serve(all []Claim) int {
	for i, c := range all {
		together := append(slices.Clone(all[:i]), c)
		for _, one := range together {
			exclusive := one.Mode == driver.Exclusive && len(together) > 1
			if exclusive || one.Mode == driver.Shared && one.Limit > 0 && weighed(together) > one.Limit {
				return i
			}
		}
	}
	return len(all)
}

// weighed returns the weight of all. An exclusive claim is never among several.
func weighed(all []Claim) (sum int) {
	for _, c := range all {
		sum += max(c.Weight, 1)
	}
	return sum
}

// randomQueue returns n claims with distinct Ends.
func randomQueue(n int) []Claim {
	all := make([]Claim, n)
	for i, ends := range rand.Perm(n) {
		all[i].Ends = int64(ends)
		if rand.N(4) > 0 {
			all[i].Mode, all[i].Limit = driver.Shared, rand.N(6)
			if rand.N(2) > 0 {
				all[i].Weight = rand.N(1 + cmp.Or(all[i].Limit, 5))
			}
		}
	}
	return all
}

func TestHoldingFollowsTheRule(t *testing.T) {
	t.Parallel()
	for range 100_000 {
		all := randomQueue(rand.N(8))
		if got, want := Holding(all, itself), serve(all); got != want {
			t.Fatalf("%+v: %d hold, want %d", all, got, want)
		}
	}
}

// A holder continues to hold when others leave.
func TestHoldersStayWhenOthersLeave(t *testing.T) {
	t.Parallel()
	for range 20_000 {
		all := randomQueue(1 + rand.N(8))
		held := Holding(all, itself)
		left := rand.N(len(all))
		rest := slices.Delete(slices.Clone(all), left, left+1)
		if left < held {
			held--
		}
		if got := Holding(rest, itself); got < held {
			t.Fatalf("%+v without %d: %d hold, want at least %d", all, left, got, held)
		}
	}
}

// While all blockers stay, a waiter waits, whoever else leaves.
func TestBlockersMustLeave(t *testing.T) {
	t.Parallel()
	for range 3000 {
		all := randomQueue(1 + rand.N(7))
		for i, me := range all {
			blockers := Blockers(all, i, itself)
			if (len(blockers) == 0) != (i < Holding(all, itself)) {
				t.Fatalf("%+v: %d blockers of %d", all, len(blockers), i)
			}
			if len(blockers) == 0 {
				continue
			}
			if me.Mode == driver.Exclusive && len(blockers) > 1 {
				t.Fatalf("%+v: %d is exclusive and waits for %v", all, i, blockers)
			}
			for gone := range 1 << i {
				var stay []int
				for j := range i {
					if gone&(1<<j) == 0 || slices.Contains(blockers, j) {
						stay = append(stay, j)
					}
				}
				if holdsBeside(all, stay, me) {
					t.Fatalf("%+v: %d holds beside %v although its blockers %v are there", all, i, stay, blockers)
				}
			}
		}
	}
}

// holdsBeside reports whether me holds behind the claims of all that stay.
func holdsBeside(all []Claim, stay []int, me Claim) bool {
	var rest []Claim
	for _, j := range stay {
		rest = append(rest, all[j])
	}
	return serve(append(rest, me)) == len(rest)+1
}

// The next claim holds once the one that it waits for is gone, whoever else has left.
func TestNextHolds(t *testing.T) {
	t.Parallel()
	next := 0
	for range 20_000 {
		all := randomQueue(1 + rand.N(6))
		i := rand.N(len(all))
		if !IsNext(all, i, itself) {
			continue
		}
		next++
		gone := Blockers(all, i, itself)[0]
		var stay []int
		for j := range i {
			if j != gone && rand.N(3) > 0 {
				stay = append(stay, j)
			}
		}
		if !holdsBeside(all, stay, all[i]) {
			t.Fatalf("%d is next in %+v, and does not hold beside %v", i, all, stay)
		}
	}
	if next == 0 {
		t.Error("nobody was ever next")
	}
}

// Until is the first end of an obstacle, and of nothing else. Before it the claim waits, whoever
// else has ended.
func TestUntilIsWhenTheFirstInTheWayEnds(t *testing.T) {
	t.Parallel()
	for range 20_000 {
		all := randomQueue(1 + rand.N(7))
		last := len(all) - 1
		ahead := Behind(all, last, itself)
		ends, blocked := ahead.Until(all[last])
		if blocked != (serve(all) <= last) {
			t.Fatalf("%+v: blocked %v", all, blocked)
		}
		if !blocked {
			continue
		}
		i := slices.IndexFunc(all[:last], func(c Claim) bool { return c.Ends == ends })
		if i < 0 {
			t.Fatalf("%+v: nobody ends at %d", all, ends)
		}
		stay := slices.DeleteFunc(slices.Collect(indexes(last)), func(j int) bool { return all[j].Ends < ends })
		if holdsBeside(all, stay, all[last]) {
			t.Fatalf("%+v: it holds before %d", all, ends)
		}
	}
}

func indexes(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}
