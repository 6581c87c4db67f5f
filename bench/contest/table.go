package contest

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// report collects the results of this process.
var report book

// A book has what this process will print.
type book struct {
	mu      sync.Mutex
	tables  []*Table // guarded by mu
	goals   []goal   // guarded by mu
	servers []string // guarded by mu
}

// A Table holds the results of one scenario. Its first column names the locks.
type Table struct {
	title string
	rows  [][]string
}

// A goal is an upper or lower limit for a ratio.
type goal struct {
	what   string
	got    float64
	most   bool
	wanted float64
}

// NewTable adds a table to those that Main prints at the end.
func NewTable(title string, columns ...string) *Table {
	t := &Table{title: title, rows: [][]string{columns}}
	report.mu.Lock()
	defer report.mu.Unlock()
	report.tables = append(report.tables, t)
	return t
}

// Row adds a row. Floats and durations have three digits. NaN and negative durations mean that
// nothing was measured.
func (t *Table) Row(cells ...any) {
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

// AtMost adds a goal. At the end it is printed as met or missed. A missed goal does not fail the
// run, because it depends on the machine.
func AtMost(what string, got, wanted float64) { addGoal(goal{what, got, true, wanted}) }

// AtLeast is AtMost for a lower limit.
func AtLeast(what string, got, wanted float64) { addGoal(goal{what, got, false, wanted}) }

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

// print prints all tables and goals, under the name of the engine.
func (b *book) print(to io.Writer, engine string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.tables) == 0 {
		return
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n== %s ==\n", engine)
	for _, t := range b.tables {
		fmt.Fprintf(w, "\n%s\n", t.title)
		for _, row := range t.rows {
			fmt.Fprintln(w, "  "+strings.Join(row, "\t"))
		}
	}
	if len(b.goals) > 0 {
		fmt.Fprintf(w, "\nGoals\n")
	}
	for _, g := range b.goals {
		fmt.Fprintln(w, "  "+g.String())
	}
	fmt.Fprintln(w)
	_ = w.Flush() // an error of standard output cannot be reported
}

const unmeasured = "–"

// digits returns f with three digits.
func digits(f float64) string {
	switch {
	case math.IsNaN(f):
		return unmeasured
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
	case d < 0:
		return unmeasured
	case d >= time.Second:
		return digits(d.Seconds()) + " s"
	case d >= time.Millisecond:
		return digits(d.Seconds()*1e3) + " ms"
	}
	return digits(d.Seconds()*1e6) + " µs"
}

// Median returns the median.
func Median[T ~int64 | ~float64](all []T) T { return Percentile(all, 50) }

// Percentile returns the p-th percentile, or 0 if all is empty.
func Percentile[T ~int64 | ~float64](all []T, p int) T {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)*p/100]
}

// ratio returns a/b as a float.
func ratio[T ~int64](a, b T) float64 { return float64(a) / float64(b) }
