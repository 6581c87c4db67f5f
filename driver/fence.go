package driver

import (
	"fmt"
	"math"
)

// FenceStep is the distance between fences: each fence is a multiple of it. The numbers between
// a fence and the next belong to its holder, so that tokens, fences and the values that guards
// store are on one scale. A lease's token is its grant's fence plus the number of hand-overs in
// its process. That number is at most FenceStep-2; FenceStep-1 is for a lease that was resumed.
const FenceStep = 1024

// FenceOf returns the fence of an engine's own number that grows with each grant, such as a
// revision or an instant. If the number is too large, it returns math.MaxUint64, which is no
// fence: the core refuses such a grant.
func FenceOf[N int64 | uint64](number N) uint64 {
	if uint64(number) > math.MaxUint64/FenceStep {
		return math.MaxUint64
	}
	return uint64(number) * FenceStep
}

// NumberOf returns the smallest engine number whose fence is at least token. RaiseFence raises
// the engine's number to it.
func NumberOf(token uint64) uint64 {
	number := token / FenceStep
	if token%FenceStep != 0 {
		number++
	}
	return number
}

// MaxRaise is the greatest token that RaiseFence accepts: half the range of guards, which store
// a BIGINT. Engines that count microseconds reach it in the year 2112.
const MaxRaise = 1 << 62

// CheckRaise returns [ErrUnsupported] for a token that leaves no room for later fences.
func CheckRaise(token uint64) error {
	if token > MaxRaise {
		return fmt.Errorf("%w: to raise a fence above %d leaves no room for later ones", ErrUnsupported, uint64(MaxRaise))
	}
	return nil
}

// CheckLimit returns an error for a limit that [Operator].SetLimit does not accept.
func CheckLimit(limit int) error {
	if limit < 0 || limit > MaxWeight {
		return fmt.Errorf("a limit of %d is not between 0 and %d", limit, MaxWeight)
	}
	return nil
}
