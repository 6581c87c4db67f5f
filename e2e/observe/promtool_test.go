package observe

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const docs = "../../docs/observe/"

// promtool runs it, where it is installed.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: scripts/install-tools promtool")
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestAlertsAreRules(t *testing.T) { promtool(t, "check", "rules", docs+"alerts.yml") }

// Every expression of the dashboards is one.
func TestDashboards(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	for _, dashboard := range []string{"dashboard.json", "service.json"} {
		for _, p := range panels(t, dashboard) {
			for _, target := range p.Targets {
				fmt.Fprintf(&rules, "      - record: panel_%d\n        expr: %q\n", rules.Len(), target.Expr)
			}
		}
	}
	promtool(t, "check", "rules", fileOf(t, rules.String()))
}

// The page about observing has a line for each alert, and for no other.
func TestPageNamesTheAlerts(t *testing.T) {
	rules, err := os.ReadFile(docs + "alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(docs + "../observe.md")
	if err != nil {
		t.Fatal(err)
	}
	names := func(pattern string, text []byte) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			all = append(all, string(m[1]))
		}
		slices.Sort(all)
		return all
	}
	if has, tells := names(`alert: (\w+)`, rules), names("(?m)^\\| `(Leasehold\\w+)`", page); !slices.Equal(has, tells) {
		t.Errorf("the rules are %q, the page has %q", has, tells)
	}
}
