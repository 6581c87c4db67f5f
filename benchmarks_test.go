package leasehold_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	figure     = regexp.MustCompile(`\b\d+(,\d{3})*(\.\d+)?`)
	pageOf     = regexp.MustCompile(`\]\((benchmarks/[a-z0-9-]+\.md)\)`)
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
)

// Every figure in a table of the summary stands in the page that its row leads to, so that the
// summary follows when a run writes the pages anew.
func TestBenchmarkSummaryHasNoFiguresOfItsOwn(t *testing.T) {
	summary, err := os.ReadFile("docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(summary)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| engine |") || !figure.MatchString(linkTarget.ReplaceAllString(line, "")) {
			continue
		}
		rows++
		for _, missing := range unfounded(t, line) {
			t.Errorf("%s has no page in whose text it stands: %s", missing, strings.TrimSpace(line))
		}
	}
	if rows < 10 {
		t.Errorf("%d rows have figures: the summary has more", rows)
	}
}

// unfounded are the figures of a row that do not stand in the page that it leads to.
func unfounded(t *testing.T, row string) (missing []string) {
	t.Helper()
	var there []string
	for _, link := range pageOf.FindAllStringSubmatch(row, -1) {
		page, err := os.ReadFile(filepath.Join("docs", link[1]))
		if err != nil {
			t.Fatal(err)
		}
		there = append(there, figure.FindAllString(string(page), -1)...)
	}
	for _, f := range figure.FindAllString(linkTarget.ReplaceAllString(row, ""), -1) {
		if !slices.ContainsFunc(there, func(exact string) bool { return rounds(exact, f) }) {
			missing = append(missing, f)
		}
	}
	return missing
}

// rounds reports whether a figure is that of a page, or one with fewer decimals, but one at least.
func rounds(exact, f string) bool {
	value, err1 := strconv.ParseFloat(strings.ReplaceAll(exact, ",", ""), 64)
	same, err2 := strconv.ParseFloat(strings.ReplaceAll(f, ",", ""), 64)
	if err1 != nil || err2 != nil {
		return false
	}
	if _, decimals, ok := strings.Cut(f, "."); ok {
		return strconv.FormatFloat(value, 'f', len(decimals), 64) == f
	}
	return value == same
}

// The check finds a figure that no page has.
func TestBenchmarkSummaryIsChecked(t *testing.T) {
	for row, want := range map[string]int{
		"| SQLite | [sqlite](benchmarks/sqlite.md) | 987,654.5 |": 1,
		"| SQLite | [sqlite](benchmarks/sqlite.md) | 1.0, 6, 7 |": 2,
		"| SQLite | [sqlite](benchmarks/sqlite.md) | none |":      0,
		"| SQLite | no page | 17 |":                               1,
	} {
		if missing := unfounded(t, row); len(missing) != want {
			t.Errorf("%s: %q", row, missing)
		}
	}
}
