package explore

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/table"
)

// figures are how far a search went.
type figures struct {
	schedules, events, states int
	complete, within          int // changes up to which all schedules were gone through, and how many those were
	skipped                   int // schedules that differ from others only in the order of what is independent
	diverged                  int // schedules in which a change found no event
	random                    int
	seed                      uint64
	took                      time.Duration
}

func (f figures) String() string {
	return fmt.Sprintf("%d schedules: all %d of up to %d changes (%d more need not be tried, %d diverged), %d at random with seed %d; %d events, %d states, %.1f s",
		f.schedules, f.within, f.complete, f.skipped, f.diverged, f.random, f.seed, f.events, f.states, f.took.Seconds())
}

// header begins the table of figures.
const header = "| engine | scenario | changes | schedules, all | without need | at random | seed | events | states | seconds | on |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|\n"

// write puts the figures into the table of a page, in place of those of before.
func (f figures) write(t *testing.T, page, engine string, sc scenario) {
	key := fmt.Sprintf("| %s | %s |", engine, sc.name)
	row := fmt.Sprintf(" %d | %d | %d | %d | %d | %d | %d | %.0f | %s |", f.complete, f.within, f.skipped,
		f.random, f.seed, f.events, f.states, f.took.Seconds(), time.Now().Format(time.DateOnly))
	if err := table.Put(page, header, key, row); err != nil {
		t.Fatal(err)
	}
}
