package mutant

import (
	"flag"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/table"
)

var page = flag.String("mutants.page", "", "the page that sums up how mutations are found, beside the folder with each")

// Within is how much processor time the explorer may take to find a mutation.
const Within = time.Minute

var (
	said      = regexp.MustCompile(`(?m)^ +search\.go:\d+: (.*)\n +\d+\.\d{3} `)
	replays   = regexp.MustCompile(`-explore\.replay '(.*)'`)
	schedules = regexp.MustCompile(`: (\d+) schedules: `)
	owners    = regexp.MustCompile(`\b[A-Z2-7]{8}\b`)
	numbers   = regexp.MustCompile(`\b\d{12,}\b`)
)

// Find explores a mutation of a package. It must be found within the time, or its Unseen must say
// why not. Find keeps a row with the result.
func (b Binary) Find(t testing.TB, source string, m Mutation) {
	t.Helper()
	// The shell limits processor time, however long that takes on a busy machine.
	limited := fmt.Sprintf(`ulimit -t %.0f; exec "$0" "$@"`, Within.Seconds())
	flags := b.args(m, []string{"-explore.for=1h", "-test.timeout=1h"})
	r := b.run(m, exec.Command("sh", append([]string{"-c", limited, b.path}, flags...)...))
	t.Logf("%.20000s", r.Out)
	t.Logf("%.1f s", r.CPU.Seconds())
	found := row{Package: source, Name: m.Name, Undoes: m.Undoes, Seconds: math.Round(r.CPU.Seconds()*10) / 10, On: time.Now().Format(time.DateOnly)}
	schedule := replays.FindStringSubmatch(r.Out)
	r.Failed = r.Failed && schedule != nil
	if r.Failed {
		found.Schedule = schedule[1]
		if what := said.FindStringSubmatch(r.Out); what != nil {
			found.Says = strings.TrimSpace(numbers.ReplaceAllString(owners.ReplaceAllString(what[1], "…"), "…"))
		}
	} else {
		found.Unseen = m.Unseen
	}
	switch {
	case r.Failed && r.CPU <= Within:
	case m.Unseen == "":
		t.Errorf("found: %v, after %v; want it within %v", r.Failed, r.CPU, Within)
	}
	for _, n := range schedules.FindAllStringSubmatch(r.Out, -1) {
		tried, _ := strconv.Atoi(n[1])
		found.Schedules += tried
	}
	if *page != "" {
		found.write(t, *page)
	}
}

// A row is the result of one mutation, as it is kept beside the page.
type row struct {
	Package   string  `json:"package"`
	Name      string  `json:"name"`
	Undoes    string  `json:"undoes"`
	Schedule  string  `json:"found_by,omitempty"` // "": not found
	Schedules int     `json:"schedules"`          // tried before it was found
	Seconds   float64 `json:"seconds"`            // of processor time
	Says      string  `json:"says,omitempty"`
	Unseen    string  `json:"unseen,omitempty"` // why it is not found
	On        string  `json:"on,omitempty"`
}

// write keeps the row in the folder named after the page, replaces the earlier row, and writes the
// summary of all rows into the page.
func (r row) write(t testing.TB, page string) {
	t.Helper()
	rows, err := table.Keep(rowsOf(page), r, func(r row) string { return r.Package + "/" + r.Name })
	if err == nil {
		err = table.Write(page, summaryPart, summary(rows))
	}
	if err != nil {
		t.Error(err)
	}
}

func rowsOf(page string) string { return strings.TrimSuffix(page, ".md") + "/mutants.json" }

// summaryPart is the part of the page that summary writes.
const summaryPart = "mutants: written by internal/mutant"

// summary is a table with a line for each package.
func summary(rows []row) string {
	b := &strings.Builder{}
	b.WriteString("| package | mutations | found | the slowest | not found |\n|---|---|---|---|---|\n")
	for len(rows) > 0 {
		n, slowest, unseen := 0, 0.0, []string{}
		for ; n < len(rows) && rows[n].Package == rows[0].Package; n++ {
			if r := rows[n]; r.Schedule == "" {
				unseen = append(unseen, "`"+r.Name+"`")
			} else {
				slowest = max(slowest, r.Seconds)
			}
		}
		fmt.Fprintf(b, "| %s | %d | %d | %.1f s | %s |\n", rows[0].Package, n, n-len(unseen), slowest, strings.Join(unseen, ", "))
		rows = rows[n:]
	}
	return b.String()
}
