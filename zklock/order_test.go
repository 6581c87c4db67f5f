package zklock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// serve is the rule in plain words: each in turn holds beside those before it, if it may;
// the first that may not stops all others.
func serve(nodes []node) int {
	for i, n := range nodes {
		together := append(slices.Clone(nodes[:i]), n)
		for _, m := range together {
			exclusive := m.mode == driver.Exclusive && len(together) > 1
			if exclusive || m.limit > 0 && len(together) > m.limit {
				return i
			}
		}
	}
	return len(nodes)
}

func randomNodes(n int) []node {
	nodes := make([]node, n)
	for i := range nodes {
		nodes[i] = node{name: fmt.Sprint(i), seq: int32(i)}
		if rand.N(4) > 0 {
			nodes[i].mode, nodes[i].limit = driver.Shared, rand.N(5)
		}
	}
	return nodes
}

func TestHoldingFollowsTheRule(t *testing.T) {
	t.Parallel()
	for range 20000 {
		nodes := randomNodes(rand.N(8))
		if got, want := holding(nodes), serve(nodes); got != want {
			t.Fatalf("%+v: %d hold, want %d", nodes, got, want)
		}
	}
}

// Whoever holds goes on holding when others leave.
func TestHoldersStayWhenOthersLeave(t *testing.T) {
	t.Parallel()
	for range 20000 {
		nodes := randomNodes(1 + rand.N(8))
		held := holding(nodes)
		left := rand.N(len(nodes))
		rest := slices.Delete(slices.Clone(nodes), left, left+1)
		if left < held {
			held--
		}
		if got := holding(rest); got < held {
			t.Fatalf("%+v without %d: %d hold, want at least %d", nodes, left, got, held)
		}
	}
}

// While all blockers stay, a waiter waits, whoever else leaves; and there are no more of
// them than it takes.
func TestBlockersMustLeave(t *testing.T) {
	t.Parallel()
	for range 3000 {
		nodes := randomNodes(1 + rand.N(7))
		for i, me := range nodes {
			ahead := blockers(nodes, i)
			if (len(ahead) == 0) != (i < holding(nodes)) {
				t.Fatalf("%+v: %d blockers of %d", nodes, len(ahead), i)
			}
			if me.mode == driver.Exclusive && len(ahead) > 1 {
				t.Fatalf("%+v: %d is exclusive and waits for %+v", nodes, i, ahead)
			}
			if len(ahead) == 0 {
				continue
			}
			for gone := range 1 << i {
				var rest []node
				for j, n := range nodes[:i] {
					if gone&(1<<j) == 0 || slices.Contains(ahead, n) {
						rest = append(rest, n)
					}
				}
				if rest = append(rest, me); holding(rest) == len(rest) {
					t.Fatalf("%+v: %d holds in %+v although its blockers %+v are there", nodes, i, rest, ahead)
				}
			}
		}
	}
}

// The next holds when the one it waits for is gone, whoever else has left.
func TestNextHolds(t *testing.T) {
	t.Parallel()
	next := 0
	for range 20000 {
		nodes := randomNodes(1 + rand.N(6))
		i := rand.N(len(nodes))
		if !isNext(nodes, i) {
			continue
		}
		next++
		gone := blockers(nodes, i)[0].name
		rest := slices.DeleteFunc(slices.Clone(nodes), func(n node) bool {
			return n.name == gone || n.name != nodes[i].name && rand.N(3) == 0
		})
		me := slices.IndexFunc(rest, func(n node) bool { return n.name == nodes[i].name })
		if me >= holding(rest) {
			t.Fatalf("%d is next in %+v, and does not hold in %+v", i, nodes, rest)
		}
	}
	if next == 0 {
		t.Error("nobody was ever next")
	}
}
