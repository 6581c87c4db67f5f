package polyglot

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A Report holds the results of a sale without a lock, and of one under it.
type Report struct {
	Scenario string             `json:"scenario"`
	Runs     map[string]*Result `json:"runs"`
}

// The two runs.
const (
	Without = "none"
	Under   = "lock"
)

// Write prints the report for people.
func (r *Report) Write(w io.Writer) {
	titles := map[string]string{Without: "WITHOUT LOCK", Under: "UNDER LOCK"}
	runs := []string{Without, Under}
	runs = slices.DeleteFunc(runs, func(name string) bool { return r.Runs[name] == nil })
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "%d pieces, sold by a program in Go, one in Python and one in shell\n\n", r.Runs[runs[0]].Stock)
	row := func(name string, cell func(*Result) any) {
		fmt.Fprint(t, name)
		for _, run := range runs {
			fmt.Fprintf(t, "\t%v", cell(r.Runs[run]))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprint(t, " ")
	for _, run := range runs {
		fmt.Fprintf(t, "\t%s", titles[run])
	}
	fmt.Fprintln(t)
	for _, language := range Languages {
		row("sold in "+language, func(r *Result) any { return r.Sold[language] })
	}
	row("left", func(r *Result) any { return r.Left })
	row("oversold", func(r *Result) any { return r.Oversold })
	row("total time", func(r *Result) any { return time.Duration(r.Millis) * time.Millisecond })
	for _, run := range runs {
		for _, broken := range r.Runs[run].Broken {
			fmt.Fprintf(t, "\n%s: %s", strings.ToLower(titles[run]), broken)
		}
	}
	fmt.Fprintln(t)
	_ = t.Flush() // an error of standard output cannot be reported
}

// Err returns an error if the sale under the lock went wrong.
func (r *Report) Err() error {
	if under := r.Runs[Under]; under != nil && len(under.Broken) > 0 {
		return fmt.Errorf("under the lock: %s", strings.Join(under.Broken, "; "))
	}
	return nil
}
