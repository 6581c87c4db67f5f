package demo

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A Report is the outcome of a scenario.
type Report struct {
	Scenario string              `json:"scenario"`
	Settings Scenario            `json:"settings"`
	Runs     map[Strategy]Result `json:"runs"`
	order    []Strategy
}

// A Result is what the books say after one run.
type Result interface {
	// figures returns the lines of the table. They are the same for all runs of a scenario.
	figures() []figure
	// broken returns what must not have happened.
	broken() []string
}

// A figure is one line of the table, for one run.
type figure struct{ name, value string }

// A verdict is the common part of all results.
type verdict struct {
	Broken []string `json:"broken"` // empty: the books are in order
}

func (v verdict) broken() []string { return v.Broken }

// judge returns a verdict with the rules that do not hold.
func judge(rules ...rule) verdict {
	v := verdict{Broken: []string{}}
	for _, r := range rules {
		if !r.holds {
			v.Broken = append(v.Broken, r.complaint)
		}
	}
	return v
}

// A rule is a rule of the business, and the complaint if it does not hold.
type rule struct {
	holds     bool
	complaint string
}

// Err returns an error about the runs that had to be right and were not, or nil.
func (r *Report) Err() error {
	var errs []error
	for _, s := range r.order {
		if res := r.Runs[s]; s.promises() && len(res.broken()) > 0 {
			errs = append(errs, fmt.Errorf("%s went wrong (%s): %s", r.Scenario, s, strings.Join(res.broken(), "; ")))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errors.Join(append(errs, errors.New("please report it with the numbers above and the store"))...)
}

// Write writes a table with a column for each run.
func (r *Report) Write(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.Settings.About().Headline)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	lines := []string{""}
	for _, s := range r.order {
		lines[0] += "\t" + s.title()
		for i, f := range r.Runs[s].figures() {
			if i+1 == len(lines) {
				lines = append(lines, f.name)
			}
			lines[i+1] += "\t" + f.value
		}
	}
	last := "in order"
	for _, s := range r.order {
		if len(r.Runs[s].broken()) == 0 {
			last += "\tyes"
		} else {
			last += "\tNO"
		}
	}
	for _, line := range append(lines, last) {
		fmt.Fprintln(t, line)
	}
	t.Flush()
	for _, s := range r.order {
		for _, text := range r.Runs[s].broken() {
			fmt.Fprintf(w, "%s: %s\n", strings.ToLower(s.title()), text)
		}
	}
}

func count(name string, n int) figure { return figure{name, fmt.Sprint(n)} }

func span(name string, milliseconds float64) figure {
	return figure{name, fmt.Sprintf("%.1f ms", milliseconds)}
}

// waits are how long actors waited from the beginning until they had their outcomes.
type waits struct {
	P50   float64 `json:"wait_p50_ms"`
	P99   float64 `json:"wait_p99_ms"`
	Total float64 `json:"total_ms"`
}

func newWaits(all []time.Duration, total time.Duration) waits {
	slices.Sort(all)
	return waits{milliseconds(quantile(all, 0.5)), milliseconds(quantile(all, 0.99)), milliseconds(total)}
}

func (w waits) figures() []figure {
	return []figure{span("wait p50", w.P50), span("wait p99", w.P99), span("total time", w.Total)}
}

// quantile returns the smallest of the sorted values that at least the share q of them do not
// exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
