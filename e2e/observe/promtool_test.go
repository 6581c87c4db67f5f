package observe

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// The alerts are rules, and fire when they should and for nobody else.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", docs+"alerts.yml")
	promtool(t, "test", "rules", docs+"alerts_test.yml")
}

// Every expression of the dashboard is one.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(docs + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			fmt.Fprintf(&rules, "      - record: panel_%d\n        expr: %q\n", rules.Len(), expr)
		}
	}
	if rules.Len() < 500 {
		t.Fatalf("few panels: %s", rules.String())
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}
