package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// TestMain prints the table after everything else.
func TestMain(m *testing.M) {
	code := m.Run()
	if len(report.tables) > 0 {
		report.print(os.Stdout)
	}
	os.Exit(code)
}

// report is what BenchmarkRedis has found.
var report book

type book struct {
	mu     sync.Mutex
	tables []*table // guarded by mu
	goals  []goal   // guarded by mu
}

// A table is one scenario: its first column names the locks.
type table struct {
	title string
	rows  [][]string
}

// A goal is a ratio that must be at most, or at least, so much.
type goal struct {
	what   string
	got    float64
	most   bool
	wanted float64
}

func newTable(title string, columns ...string) *table {
	t := &table{title: title, rows: [][]string{columns}}
	report.mu.Lock()
	defer report.mu.Unlock()
	report.tables = append(report.tables, t)
	return t
}

// row adds a line; floats have three digits.
func (t *table) row(cells ...any) {
	line := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case float64:
			line[i] = digits(c)
		case time.Duration:
			line[i] = span(c)
		default:
			line[i] = fmt.Sprint(c)
		}
	}
	t.rows = append(t.rows, line)
}

func atMost(what string, got, wanted float64)  { addGoal(goal{what, got, true, wanted}) }
func atLeast(what string, got, wanted float64) { addGoal(goal{what, got, false, wanted}) }

func addGoal(g goal) {
	report.mu.Lock()
	defer report.mu.Unlock()
	report.goals = append(report.goals, g)
}

func (g goal) String() string {
	bound, met := "at least", g.got >= g.wanted
	if g.most {
		bound, met = "at most", g.got <= g.wanted
	}
	verdict := "met"
	if !met {
		verdict = "MISSED"
	}
	return strings.Join([]string{g.what, digits(g.got), bound + " " + fmt.Sprint(g.wanted), verdict}, "\t")
}

func (b *book) print(file *os.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := tabwriter.NewWriter(file, 0, 0, 2, ' ', 0)
	for _, t := range b.tables {
		fmt.Fprintf(w, "\n%s\n", t.title)
		for _, row := range t.rows {
			fmt.Fprintln(w, "  "+strings.Join(row, "\t"))
		}
	}
	fmt.Fprintf(w, "\nGoals\n")
	for _, g := range b.goals {
		fmt.Fprintln(w, "  "+g.String())
	}
	_ = w.Flush() // of standard output, where nobody could be told
	fmt.Fprintln(file)
}

// digits is f with three digits.
func digits(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	case f >= 1 || f == 0:
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.3f", f)
}

func span(d time.Duration) string {
	switch {
	case d >= time.Second:
		return digits(d.Seconds()) + " s"
	case d >= time.Millisecond:
		return digits(d.Seconds()*1e3) + " ms"
	}
	return digits(d.Seconds()*1e6) + " µs"
}

func median[T ~int64 | ~float64](all []T) T { return percentile(all, 50) }

func percentile[T ~int64 | ~float64](all []T, p int) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)*p/100]
}
