package mutant

import (
	"flag"
	"testing"

	"github.com/leasehold-go/leasehold/internal/table"
)

var update = flag.Bool("update", false, "write the summary of docs/verification.md from the rows beside it")

// The page sums up the mutations that were tried. This is for edits of the rows by hand.
func TestPageSumsUpTheRows(t *testing.T) {
	const page = "../../docs/verification.md"
	rows, err := table.Rows[row](rowsOf(page))
	if err != nil || len(rows) == 0 {
		t.Fatal(rows, err)
	}
	table.Check(t, page, summaryPart, summary(rows), *update)
}
