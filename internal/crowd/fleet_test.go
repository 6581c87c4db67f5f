package crowd

import (
	"slices"
	"strings"
	"testing"
)

func TestFaults(t *testing.T) {
	well := []Turn{
		{Waiter: 1, Began: 10, Queued: 20, Held: 100, Released: 110, Token: 1024},
		{Waiter: 2, Began: 15, Queued: 30, Held: 110, Released: 120, Token: 2048},
		{Waiter: 3, Began: 25, Queued: 28, Held: 130, Released: 140, Token: 3072}, // its call began before the second was refused
	}
	if faults := Faults(well, true); len(faults) > 0 {
		t.Errorf("nothing is wrong, and yet: %v", faults)
	}
	for _, c := range []struct {
		name, want string
		spoil      func(turns []Turn)
	}{
		{"two hold", "two held at once", func(turns []Turn) { turns[1].Held = 109 }},
		{"the token goes back", "came after", func(turns []Turn) { turns[2].Token = 2000 }},
		{"the token stays", "came after", func(turns []Turn) { turns[1].Token = 1024 }},
		{"one fails", "no room", func(turns []Turn) { turns[1].Err = "no room" }},
		{"one is passed", "had waited", func(turns []Turn) { turns[0].Began, turns[0].Queued = 31, 40 }},
		{"one is passed by far", "had waited", func(turns []Turn) { turns[0].Began, turns[0].Queued = 29, 40 }},
	} {
		turns := slices.Clone(well)
		c.spoil(turns)
		faults := Faults(turns, true)
		if len(faults) != 1 || !strings.Contains(faults[0], c.want) {
			t.Errorf("%s: %q", c.name, faults)
		}
		if c.want == "had waited" && len(Faults(turns, false)) > 0 {
			t.Errorf("%s: where grants are not fair, that is no fault", c.name)
		}
	}
}
