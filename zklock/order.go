package zklock

import (
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// holding returns how many of nodes, which are in order, hold. All of them stand before
// all that wait: one that has to wait stops whoever comes later.
//
// What holds goes on doing so when others leave: there are fewer ahead of it then, and their
// smallest limit is no smaller.
func holding(nodes []node) int {
	limit := 0
	for i, n := range nodes {
		if n.mode == driver.Exclusive {
			if i == 0 {
				return 1
			}
			return i
		}
		if limit = smaller(limit, n.limit); limit > 0 && i >= limit {
			return i
		}
	}
	return len(nodes)
}

// smaller is the smaller of two limits, of which 0 is none.
func smaller(a, b int) int {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// blockers returns those before nodes[i] of which at least one must leave before nodes[i]
// can hold; none if it holds. Nobody else needs to wake it.
func blockers(nodes []node, i int) []node {
	if i < holding(nodes) {
		return nil
	}
	me, ahead := nodes[i], nodes[:i]
	if me.mode == driver.Exclusive {
		return ahead[i-1:]
	}
	for j := i - 1; j >= 0; j-- {
		if ahead[j].mode == driver.Exclusive {
			return ahead[j : j+1]
		}
	}
	return fullSlots(me, ahead)
}

// fullSlots returns as many of ahead, which are shared, as the smallest limit allows at
// once: while all of them are there, there is no room for me. Those whose own limit is below
// mine are among them, because their leaving may raise the limit.
func fullSlots(me node, ahead []node) []node {
	limit := me.limit
	for _, n := range ahead {
		limit = smaller(limit, n.limit)
	}
	var watched []node
	for _, n := range ahead {
		if n.limit > 0 && (me.limit == 0 || n.limit < me.limit) {
			watched = append(watched, n)
		}
	}
	for j := len(ahead) - 1; j >= 0 && len(watched) < limit; j-- {
		if n := ahead[j]; n.limit == 0 || me.limit > 0 && n.limit >= me.limit {
			watched = append(watched, n)
		}
	}
	return watched
}

// isNext reports whether nodes[i], which waits, holds as soon as the one that it waits for
// is gone, whoever else leaves.
func isNext(nodes []node, i int) bool {
	ahead := blockers(nodes, i)
	if len(ahead) != 1 {
		return false
	}
	rest := slices.DeleteFunc(slices.Clone(nodes), func(n node) bool { return n.name == ahead[0].name })
	return i-1 < holding(rest)
}
