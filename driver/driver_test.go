package driver

import "testing"

func TestUses(t *testing.T) {
	for _, c := range []struct {
		mode          Mode
		weight, wants int
	}{{Shared, 0, 1}, {Shared, 1, 1}, {Shared, MaxWeight, MaxWeight}, {Exclusive, 0, 0}, {Exclusive, 1, 0}} {
		if got := c.mode.Uses(c.weight); got != c.wants {
			t.Errorf("mode %d, weight %d: uses %d, want %d", c.mode, c.weight, got, c.wants)
		}
	}
}
