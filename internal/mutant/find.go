package mutant

import (
	"flag"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/table"
)

var page = flag.String("mutants.page", "", "the page whose table says how each mutation is found")

// Within is how much processor time the explorer may take to find a mutation.
const Within = time.Minute

// Header begins the table.
const Header = "| undone | where | found by | after | in | what it says |\n|---|---|---|---|---|---|\n"

var (
	said      = regexp.MustCompile(`(?m)^ +search\.go:\d+: (.*)\n +\d+\.\d{3} `)
	replays   = regexp.MustCompile(`-explore\.replay '(.*)'`)
	schedules = regexp.MustCompile(`: (\d+) schedules: `)
	owners    = regexp.MustCompile(`\b[A-Z2-7]{8}\b`)
	numbers   = regexp.MustCompile(`\b\d{12,}\b`)
)

// Find explores a mutation of a package, which must be found in time, or else has Unseen say why not.
// It writes a row for it.
func (b Binary) Find(t testing.TB, source string, m Mutation) {
	t.Helper()
	// The shell ends it when it has had its time of processors, however long that takes here.
	limited := fmt.Sprintf(`ulimit -t %.0f; exec "$0" "$@"`, Within.Seconds())
	flags := b.args(m, []string{"-explore.for=1h", "-test.timeout=1h"})
	r := b.run(m, exec.Command("sh", append([]string{"-c", limited, b.path}, flags...)...))
	t.Logf("%.20000s", r.Out)
	t.Logf("%.1f s", r.CPU.Seconds())
	by, what := "", "not found: "+m.Unseen
	schedule := replays.FindStringSubmatch(r.Out)
	r.Failed = r.Failed && schedule != nil
	if r.Failed {
		by = "`" + schedule[1] + "`"
		if found := said.FindStringSubmatch(r.Out); found != nil {
			what = numbers.ReplaceAllString(owners.ReplaceAllString(found[1], "…"), "…")
		}
	}
	switch {
	case r.Failed && r.CPU <= Within:
	case m.Unseen == "":
		t.Errorf("found: %v, after %v; want it within %v", r.Failed, r.CPU, Within)
	}
	if *page == "" {
		return
	}
	tried := 0
	for _, found := range schedules.FindAllStringSubmatch(r.Out, -1) {
		n, _ := strconv.Atoi(found[1])
		tried += n
	}
	row := fmt.Sprintf(" %s | %s | %d schedules | %.1f s | %s |", source, by, tried, r.CPU.Seconds(), strings.TrimSpace(what))
	if err := table.Put(*page, Header, "| "+m.Name+": "+m.Undoes+" |", row); err != nil {
		t.Error(err)
	}
}
