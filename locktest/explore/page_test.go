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
