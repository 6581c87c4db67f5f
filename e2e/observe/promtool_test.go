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

// The page's rule for a job whose metrics are in files fires if no machine has run the job, not if
// only one of them has never had its turn.
func TestRuleOfMetricsFiles(t *testing.T) {
	page, err := os.ReadFile(docs + "../observe.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("`(time\\(\\) - [^`]*)`").FindSubmatch(page)
	if m == nil {
		t.Fatal("the page has no such rule")
	}
	var file strings.Builder
	file.WriteString("evaluation_interval: 1h\ntests:\n")
	for _, c := range []struct {
		a     string // the last success on one machine; the other has none
		fires bool
	}{{"90000", false}, {"0", true}} {
		file.WriteString("  - interval: 1h\n    input_series:\n")
		for instance, success := range map[string]string{"a": c.a, "b": "0"} {
			fmt.Fprintf(&file, "      - series: 'leasehold_run_success_timestamp_seconds{name=\"backup\",instance=%q}'\n        values: '%sx48'\n", instance, success)
		}
		want := 0
		if c.fires {
			want = 1
		}
		fmt.Fprintf(&file, "    promql_expr_test:\n      - expr: 'count(%s) or vector(0)'\n        eval_time: 48h\n        exp_samples: [{labels: '{}', value: %d}]\n", m[1], want)
	}
	promtool(t, "test", "rules", fileOf(t, file.String()))
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
