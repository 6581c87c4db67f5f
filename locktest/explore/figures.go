package explore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/table"
)

// figures say how far a search went.
type figures struct {
	schedules, events, states int
	complete, within          int // number of changes up to which all schedules were tried, and number of those schedules
	skipped                   int // schedules that were omitted, because they differ only in the order of independent events
	diverged                  int // schedules in which the event of a change did not occur
	random                    int
	seed                      uint64
	took                      time.Duration
}

func (f figures) String() string {
	return fmt.Sprintf("%d schedules: all %d of up to %d changes (%d more need not be tried, %d diverged), %d at random with seed %d; %d events, %d states, %.1f s",
		f.schedules, f.within, f.complete, f.skipped, f.diverged, f.random, f.seed, f.events, f.states, f.took.Seconds())
}

// A row holds the figures of one scenario on one engine. It is stored beside the page.
type row struct {
	Engine    string `json:"engine"`
	Scenario  string `json:"scenario"`
	Changes   int    `json:"changes"` // number of changes up to which all schedules were tried
	Schedules int    `json:"schedules"`
	Skipped   int    `json:"without_need"`
	Random    int    `json:"at_random"`
	Seed      uint64 `json:"seed,string"` // a string, because it is too large for numbers of some programs
	Events    int    `json:"events"`
	States    int    `json:"states"`
	Seconds   int    `json:"seconds"`
	On        string `json:"on"`
}

// write stores the figures in the folder named after the page, replacing earlier ones. It then
// writes the summary of all into the page.
func (f figures) write(t *testing.T, page, engine string, sc scenario) {
	rows, err := table.Keep(rowsOf(page), row{
		Engine: engine, Scenario: sc.name, Changes: f.complete, Schedules: f.within, Skipped: f.skipped, Random: f.random, Seed: f.seed,
		Events: f.events, States: f.states, Seconds: int(f.took.Round(time.Second).Seconds()), On: time.Now().Format(time.DateOnly),
	}, func(r row) string { return r.Engine + "/" + r.Scenario })
	if err == nil {
		err = table.Write(page, summaryPart, summary(rows))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func rowsOf(page string) string { return strings.TrimSuffix(page, ".md") + "/explored.json" }

// summaryPart is the part of the page that contains the summary.
const summaryPart = "explored: written by locktest/explore"

// summary returns a table with a line for each engine.
func summary(rows []row) string {
	b := &strings.Builder{}
	b.WriteString("| engine | scenarios | changes | schedules, all | without need | at random | events | on |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for len(rows) > 0 {
		sum, n := rows[0], 1
		least, most, first := sum.Changes, sum.Changes, sum.On
		for ; n < len(rows) && rows[n].Engine == sum.Engine; n++ {
			r := rows[n]
			least, most, first, sum.On = min(least, r.Changes), max(most, r.Changes), min(first, r.On), max(sum.On, r.On)
			sum.Schedules += r.Schedules
			sum.Skipped += r.Skipped
			sum.Random += r.Random
			sum.Events += r.Events
		}
		fmt.Fprintf(b, "| %s | %d | %s | %d | %d | %d | %d | %s |\n", sum.Engine, n, span(strconv.Itoa(least), strconv.Itoa(most)),
			sum.Schedules, sum.Skipped, sum.Random, sum.Events, span(first, sum.On))
		rows = rows[n:]
	}
	return b.String()
}

// span returns a text for the range from first to last, which may be equal.
func span(first, last string) string {
	if first == last {
		return first
	}
	return first + " to " + last
}
