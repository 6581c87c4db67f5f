// Package queue is the rule by which the claims of one resource hold it, for every engine.
//
// Claims are in the order of their first attempt. Each one holds if it is compatible with all
// claims before it. An exclusive claim is compatible with none. Shared ones are compatible as long
// as their weights together are at most the smallest of their limits. The first claim that may not
// hold stops all later ones, however light they are. Otherwise light claims that come all the time
// would keep a heavy one waiting forever. So holders are always ahead of waiters, and continue to
// hold when others leave.
//
// The package uses no store and no clock.
package queue

import (
	"math"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// A Claim is the part of a claim that the rule needs.
type Claim struct {
	Mode   driver.Mode
	Limit  int   // greatest sum of the weights of shared claims that it holds with, its own included; 0: any
	Weight int   // of a shared claim; see driver.Mode.Uses
	Ends   int64 // when it ends unless it is renewed, on any scale; only Until looks at it
}

// weight is how much of a limit c uses.
func (c Claim) weight() int64 { return int64(c.Mode.Uses(c.Weight)) }

// TooHeavy reports whether c exceeds its own limit, so that it can never hold.
func (c Claim) TooHeavy() bool {
	return c.Mode == driver.Shared && c.Limit > 0 && c.weight() > int64(c.Limit)
}

// Ahead summarises the claims ahead of another for the rule. The zero value is empty. The order of
// adding does not matter.
type Ahead struct {
	exclusive, shared         int
	weight                    int64 // sum of the weights of the shared claims
	limit                     int   // the smallest limit of the shared claims; 0: none
	exclusiveEnds, sharedEnds int64 // the first end among each kind
}

// Add adds c to the claims ahead.
func (a *Ahead) Add(c Claim) {
	if c.Mode == driver.Exclusive {
		a.exclusiveEnds = first(a.exclusive, a.exclusiveEnds, c.Ends)
		a.exclusive++
		return
	}
	a.sharedEnds = first(a.shared, a.sharedEnds, c.Ends)
	a.shared++
	a.weight += c.weight()
	a.limit = Smaller(a.limit, c.Limit)
}

// first returns the earliest end after adding a claim that ends at more. The n claims before it end
// at ends or later.
func first(n int, ends, more int64) int64 {
	if n == 0 {
		return more
	}
	return min(ends, more)
}

// Admits reports whether c holds behind the claims ahead.
func (a *Ahead) Admits(c Claim) bool {
	if c.Mode == driver.Exclusive {
		return a.exclusive+a.shared == 0
	}
	return a.exclusive == 0 && !a.full(c)
}

// full reports whether the shared claims ahead leave no room for c beside them.
func (a *Ahead) full(c Claim) bool {
	limit := Smaller(a.limit, c.Limit)
	return limit > 0 && a.weight+c.weight() > int64(limit)
}

// Until returns the first instant at which an obstacle of c ends, or false if there is none.
func (a *Ahead) Until(c Claim) (ends int64, blocked bool) {
	ends = math.MaxInt64
	if a.exclusive > 0 {
		ends = a.exclusiveEnds
	}
	if a.shared > 0 && (c.Mode == driver.Exclusive || a.full(c)) {
		ends = min(ends, a.sharedEnds)
	}
	return ends, !a.Admits(c)
}

// Smaller returns the smaller of two limits, where 0 is no limit.
func Smaller(a, b int) int {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// Holding returns how many of all, in order, hold; claim returns the rule's part of one.
func Holding[T any](all []T, claim func(T) Claim) int {
	var ahead Ahead
	for i, one := range all {
		c := claim(one)
		if !ahead.Admits(c) {
			return i
		}
		ahead.Add(c)
	}
	return len(all)
}

// Behind returns the claims ahead of all[i].
func Behind[T any](all []T, i int, claim func(T) Claim) (ahead Ahead) {
	for _, one := range all[:i] {
		ahead.Add(claim(one))
	}
	return ahead
}

// Blockers returns the indexes of the claims before all[i] of which at least one must leave
// before all[i] can hold. No other claim needs to wake it. Blockers returns none if all[i] holds. It
// may return none if all[i] is too heavy ever to hold.
func Blockers[T any](all []T, i int, claim func(T) Claim) []int {
	me := claim(all[i])
	if ahead := Behind(all, i, claim); ahead.Admits(me) {
		return nil
	}
	if me.Mode == driver.Exclusive {
		return []int{i - 1}
	}
	for j := i - 1; j >= 0; j-- {
		if claim(all[j]).Mode == driver.Exclusive {
			return []int{j}
		}
	}
	return slots(me, all[:i], claim)
}

// slots returns claims from before, all of which are shared. Together they leave no room for me.
// Claims whose limit is below me's are among them, because their leaving may raise the limit.
func slots[T any](me Claim, before []T, claim func(T) Claim) (blockers []int) {
	limit, used := me.Limit, me.weight()
	var others []int
	for j, one := range before {
		c := claim(one)
		limit = Smaller(limit, c.Limit)
		if c.Limit > 0 && (me.Limit == 0 || c.Limit < me.Limit) {
			blockers = append(blockers, j)
			used += c.weight()
		} else {
			others = append(others, j)
		}
	}
	for _, j := range slices.Backward(others) {
		if used > int64(limit) {
			break
		}
		blockers = append(blockers, j)
		used += claim(before[j]).weight()
	}
	return blockers
}

// IsNext reports whether all[i], which waits, holds as soon as its only blocker is gone, whoever
// else leaves.
func IsNext[T any](all []T, i int, claim func(T) Claim) bool {
	blockers := Blockers(all, i, claim)
	if len(blockers) != 1 {
		return false
	}
	var ahead Ahead
	for j, one := range all[:i] {
		if j != blockers[0] {
			ahead.Add(claim(one))
		}
	}
	return ahead.Admits(claim(all[i]))
}
