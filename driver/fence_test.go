package driver_test

import (
	"math"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

func TestFencesAreSteps(t *testing.T) {
	for number, want := range map[uint64]uint64{
		0: 0, 1: 1024, 7: 7168, 1<<53 - 1: 1<<63 - 1024, 1<<54 - 1: math.MaxUint64 - 1023,
		1 << 54: math.MaxUint64, math.MaxUint64: math.MaxUint64,
	} {
		if got := driver.FenceOf(number); got != want {
			t.Errorf("the fence of %d is %d, want %d", number, got, want)
		}
	}
	if got := driver.FenceOf(int64(-1)); got != math.MaxUint64 {
		t.Errorf("the fence of -1 is %d", got)
	}
}

func TestNumbersOfTokens(t *testing.T) {
	for _, token := range []uint64{1, 1023, 1024, 1025, 2047, 5 << 40, math.MaxInt64, math.MaxUint64} {
		number := driver.NumberOf(token)
		if at, below := driver.FenceOf(number), driver.FenceOf(number-1); token > at || token <= below {
			t.Errorf("token %d has number %d, of fence %d after %d", token, number, at, below)
		}
	}
	if n := driver.NumberOf(0); n != 0 {
		t.Errorf("token 0 has number %d", n)
	}
}
