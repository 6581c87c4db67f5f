package kubelock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

const canary = "s3cr3t-canary"

// kubeconfig writes one, whose token is a secret.
func kubeconfig(t testing.TB, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "config")
	text := `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {token: ` + canary + `}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	good := kubeconfig(t, t.TempDir())
	for url, says := range map[string]string{
		"kubernetes:" + canary:                           "two slashes",
		"kubernetes:///a":                                "host is missing",
		"kubernetes://a/b":                               "one namespace",
		"kubernetes://a,b":                               "one namespace",
		"kubernetes://A_b?kubeconfig=" + good:            "no namespace has such a name",
		"kubernetes://" + canary + "@a":                  "no user",
		"kubernetes://a?password=" + canary:              "unknown",
		"kubernetes://a?kubeconfig=":                     "is empty",
		"kubernetes://a?kubeconfig=" + good + ".missing": "no such file",
		"kubernetes://a?context=y&kubeconfig=" + good:    "does not exist",
		"redis://u:" + canary + "@h":                     "none of kubernetes",
	} {
		d, err := OpenURL(t.Context(), url)
		if d != nil || !errors.Is(err, driver.ErrURL) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), canary) {
			t.Errorf("OpenURL(%q) = %v, %v, want %q", url, d, err, says)
		}
	}
}

// Out of reach is no mistake of the URL.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	d, err := OpenURL(t.Context(), "kubernetes://a?kubeconfig="+kubeconfig(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, _, err := d.(driver.Operator).List(t.Context(), "", "", 100); !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), canary) {
		t.Errorf("%v; want ErrUnreachable", err)
	}
}

// The configuration of a machine is found as kubectl finds it.
func TestKubeconfigOfTheEnvironment(t *testing.T) {
	t.Setenv("KUBECONFIG", kubeconfig(t, t.TempDir()))
	d, err := OpenURL(t.Context(), "kubernetes://a")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}
