package driver

import (
	"fmt"
	"math"
)

// FenceStep is how far apart fences are: each is a multiple of it. The numbers between a fence
// and the next are the holder's own, so that tokens, fences and what a guard stores are one
// scale: a lease's token is its grant's fence and how often its process has handed the grant
// over, up to FenceStep-2, or FenceStep-1 for a lease that was resumed.
const FenceStep = 1024

// FenceOf is the fence of an engine's own number, such as a revision or an instant, that grows
// with each grant. For a number that has no room it is math.MaxUint64, which is no fence: the
// core refuses such a grant.
func FenceOf[N int64 | uint64](number N) uint64 {
	if uint64(number) > math.MaxUint64/FenceStep {
		return math.MaxUint64
	}
	return uint64(number) * FenceStep
}

// NumberOf is the least of an engine's own numbers whose fence is not below token: what
// RaiseFence raises it to.
func NumberOf(token uint64) uint64 {
	number := token / FenceStep
	if token%FenceStep != 0 {
		number++
	}
	return number
}

// MaxRaise is the greatest token that a fence is raised to: half of what guards keep, who have a BIGINT. Engines
// that count microseconds come to it in the year 2112.
const MaxRaise = 1 << 62

// CheckRaise refuses a token that leaves no room for later fences, as [ErrUnsupported].
func CheckRaise(token uint64) error {
	if token > MaxRaise {
		return fmt.Errorf("%w: to raise a fence above %d leaves no room for later ones", ErrUnsupported, uint64(MaxRaise))
	}
	return nil
}
