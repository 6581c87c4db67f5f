package explore

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
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
	return fmt.Sprintf("all %d schedules of up to %d changes (%d more need not be tried, %d diverged), %d at random with seed %d; %d events, %d states, %.1f s",
		f.within, f.complete, f.skipped, f.diverged, f.random, f.seed, f.events, f.states, f.took.Seconds())
}

// header begins the table of figures.
const header = "| engine | scenario | changes | schedules, all | without need | at random | seed | events | states | seconds | on |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|\n"

// write puts the figures into the table of a page, in place of those of before.
func (f figures) write(t *testing.T, page, engine string, sc scenario) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, table, ok := strings.Cut(string(text), header)
	if !ok {
		t.Fatalf("%s has no table of figures", page)
	}
	rows, after, _ := strings.Cut(table, "\n\n")
	key := fmt.Sprintf("| %s | %s |", engine, sc.name)
	kept := slices.DeleteFunc(strings.Split(strings.TrimSpace(rows), "\n"), func(row string) bool {
		return row == "" || strings.HasPrefix(row, key)
	})
	kept = append(kept, fmt.Sprintf("%s %d | %d | %d | %d | %d | %d | %d | %.0f | %s |", key, f.complete, f.within, f.skipped,
		f.random, f.seed, f.events, f.states, f.took.Seconds(), time.Now().Format(time.DateOnly)))
	slices.Sort(kept)
	out := before + header + strings.Join(kept, "\n") + "\n"
	if after != "" {
		out += "\n" + after
	}
	if err := os.WriteFile(page, []byte(out), 0o666); err != nil {
		t.Fatal(err)
	}
}
