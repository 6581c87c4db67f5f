package described

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/serve"
)

// The description has no errors by the linter that its users run, whose rules are those that it recommends.
func TestDescriptionHasNoErrors(t *testing.T) {
	t.Parallel()
	lint := func(text []byte) (string, error) {
		path := filepath.Join(t.TempDir(), "openapi.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(servers.Redocly(t), "lint", path)
		cmd.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := lint(serve.Description()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := lint([]byte(`{"openapi":"3.1.0","info":{"title":"none","version":"1"},"paths":{"/":{"get":{"responses":{}}}}}`)); err == nil {
		t.Errorf("the linter finds nothing in what is none: %s", out)
	}
}
