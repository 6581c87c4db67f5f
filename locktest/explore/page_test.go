package explore

import (
	"flag"
	"testing"

	"github.com/leasehold-go/leasehold/internal/table"
)

var update = flag.Bool("update", false, "write the summary of docs/verification.md from the rows beside it")

// The page sums up the figures that were kept.
func TestPageSumsUpTheRows(t *testing.T) {
	const page = "../../docs/verification.md"
	rows, err := table.Rows[row](rowsOf(page))
	if err != nil || len(rows) == 0 {
		t.Fatal(rows, err)
	}
	table.Check(t, page, summaryPart, summary(rows), *update)
}

// Figures and schedules to replay name their scenario.
func TestNamesOfScenariosDiffer(t *testing.T) {
	does := make(map[string]string)
	for _, sc := range scenarios {
		if other := does[sc.name]; other != "" {
			t.Errorf("%q is the name of two scenarios: %s; %s", sc.name, other, sc.does)
		}
		does[sc.name] = sc.does
	}
}
