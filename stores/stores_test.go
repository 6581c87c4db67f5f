package stores

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

const canary = "s3cr3t-canary"

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"":                                      "no scheme",
		"/tmp/locks.db":                         "no scheme",
		canary:                                  "no scheme",
		"host=h password=" + canary + ":1":      "no scheme",
		"nosuch://u:" + canary + "@host":        `"nosuch"`,
		"nosuch:x?password=" + canary:           `"nosuch"`,
		"Memory:":                               "one process's memory",
		"memory://" + canary:                    "one process's memory",
		"sqlite::memory:":                       "one process's memory",
		"sqlite:file::memory:":                  "one process's memory",
		"sqlite:/tmp/a.db?password=" + canary:   "no options",
		"sqlite://u:" + canary + "@host/tmp/a":  "no host",
		"sqlite://tmp/a.db":                     "no host",
		"sqlite:/tmp/":                          "is a folder",
		"sqlite:/tmp":                           "is a folder",
		"sqlite:a\x00b":                         "control character",
		"sqlite:a\nb":                           "control character",
		strings.Repeat("a", 300) + ":" + canary: "no scheme",
	} {
		d, err := Open(t.Context(), url)
		if d != nil || !errors.Is(err, ErrURL) {
			t.Errorf("Open(%q) = %v, %v, want ErrURL", url, d, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, says) || !strings.Contains(text, "sqlite:") || strings.Contains(text, canary) || len(text) > 500 {
			t.Errorf("Open(%q): %q, want %q and what is known", url, text, says)
		}
	}
}

// A kubeconfig means the same in every folder, and a password in the environment is not Kubernetes'.
func TestResolvedKubernetes(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(PasswordVariable, canary)
	got, err := Resolve("kubernetes://locks?kubeconfig=config")
	if want := "kubernetes://locks?kubeconfig=" + url.QueryEscape(filepath.Join(dir, "config")); got != want || err != nil {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// Names that SQLite would understand as a URI, or the shell's user not, are plain files.
func TestSQLiteTakesPathsAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"locks.db", "a b.db", "100%41.db", "a#b.db", "é.db", "file:x.db", "-x.db", "a&b=c.db", "user:pass@x.db"} {
		resolved, err := Resolve("sqlite:" + name)
		if err != nil || resolved != "sqlite:"+filepath.Join(dir, name) {
			t.Errorf("%s: resolved to %s, %v", name, resolved, err)
		}
		d, err := Open(t.Context(), "sqlite:"+name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if _, err := os.Stat(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 9 {
		t.Errorf("the folder has %q, %v", files, err)
	}
}

func TestSQLiteForms(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for rest, want := range map[string]string{
		"/x.db":              "/x.db",
		"///x.db":            "/x.db",
		"rel.db":             dir + "/rel.db",
		"../" + "x.db":       filepath.Dir(dir) + "/x.db",
		"/tmp/../tmp//x.db":  "/tmp/x.db",
		"./" + "a b/../c.db": "",
	} {
		got, err := sqlitePath(rest)
		if want == "" {
			want = dir + "/c.db"
		}
		if got != want || err != nil {
			t.Errorf("sqlitePath(%q) = %q, %v, want %q", rest, got, err, want)
		}
	}
	for says, open := range map[string]func(context.Context, string) (driver.Driver, error){"does not exist": Open, "no such file": OpenExisting} {
		if _, err := open(t.Context(), "sqlite:missing/x.db"); err == nil || errors.Is(err, ErrURL) || !strings.Contains(err.Error(), says) {
			t.Errorf("a missing folder: %v, want %q", err, says)
		}
	}
}

func TestOwnFileIsPrivate(t *testing.T) {
	state := filepath.Join(t.TempDir(), "new", "state")
	t.Setenv("XDG_STATE_HOME", state)
	resolved, err := Resolve("sqlite:")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), "sqlite:")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := filepath.Join(state, "leasehold")
	if resolved != "sqlite:"+filepath.Join(folder, "leasehold.db") {
		t.Errorf("resolved to %s", resolved)
	}
	wantMode(t, folder, 0o700)

	// A folder that is there keeps its mode: somebody may have opened it to a group.
	if err := os.Chmod(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), "sqlite:")
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	wantMode(t, folder, 0o750)
}

func wantMode(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != mode {
		t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), mode)
	}
}

func TestDefaultPathWithoutStateFolder(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, state := range []string{"", "relative/state"} { // the specification: ignore relative paths
		t.Setenv("XDG_STATE_HOME", state)
		got, err := defaultPath()
		if want := filepath.Join(home, ".local/state/leasehold/leasehold.db"); got != want || err != nil {
			t.Errorf("XDG_STATE_HOME=%q: %q, %v, want %q", state, got, err, want)
		}
	}
	missing := filepath.Join(home, "nonexistent")
	t.Setenv("HOME", missing)
	if _, err := Open(t.Context(), "sqlite:"); err == nil || !strings.Contains(err.Error(), missing+", does not exist; name one, sqlite:PATH") {
		t.Errorf("a home that does not exist: %v", err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the home was made")
	}
	t.Setenv("HOME", "")
	if _, err := defaultPath(); err == nil || !strings.Contains(err.Error(), "name one, sqlite:PATH") {
		t.Errorf("no home: %v", err)
	}
}

func TestOpenedStoreCanBeInspected(t *testing.T) {
	t.Parallel()
	d, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, ok := d.(driver.Operator); !ok {
		t.Error("no Operator")
	}
}

// Each scheme leads to its engine, whose own tests have the wrong URLs.
func TestSchemesLeadToTheirEngines(t *testing.T) {
	t.Parallel()
	for _, s := range Schemes() {
		if !strings.HasPrefix(s.Form, s.Name+":") || s.About == "" {
			t.Errorf("%+v", s)
		}
		d, err := Open(t.Context(), strings.ToUpper(s.Name)+"://u:"+canary+"@%zz?"+canary+"=1")
		if d != nil || !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), s.Name+":") || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v, %v, want ErrURL of its engine and no password", s.Name, d, err)
		}
	}
}

// Out of reach is no mistake of the URL. The errors name the store and say nothing secret.
func TestServersOutOfReach(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://u:" + canary + "@127.0.0.1:1", "rediss://u:" + canary + "@127.0.0.1:1", "redis+cluster://u:" + canary + "@127.0.0.1:1",
		"redis+sentinel://u:" + canary + "@127.0.0.1:1/m", "redlock://u:" + canary + "@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
		"etcd://u:" + canary + "@127.0.0.1:1", "nats://u:" + canary + "@127.0.0.1:1,127.0.0.1:2/locks",
	} {
		d, err := Open(t.Context(), url)
		if d != nil || err == nil || errors.Is(err, ErrURL) || !strings.HasPrefix(err.Error(), Redact(url)+": ") || strings.Contains(err.Error(), canary) {
			t.Errorf("Open(%q) = %v, %v", url, d, err)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Setenv(PasswordVariable, canary)
	dir := t.TempDir()
	t.Chdir(dir)
	for url, want := range map[string]string{
		"Redis://h/0":                          "redis://:" + canary + "@h/0",
		"etcd://u@h1,h2/a":                     "etcd://u:" + canary + "@h1,h2/a",
		"mysql://u:p@h/db":                     "mysql://u:p@h/db",
		"memcached://h1,h2?prefix=":            "memcached://h1,h2?prefix=",
		"sqlite:a:b@c.db":                      "sqlite:" + dir + "/a:b@c.db",
		"zookeeper://u:p@h?ca_file=a&prefix=b": "zookeeper://u:p@h?ca_file=" + strings.ReplaceAll(dir, "/", "%2F") + "%2Fa&prefix=b",
	} {
		if got, err := Resolve(url); got != want || err != nil {
			t.Errorf("Resolve(%q) = %q, %v, want %q", url, got, err, want)
		}
	}
	for _, url := range []string{"", canary, "nosuch://" + canary, "redis:" + canary, "sqlite:" + canary + "?", "memory:"} {
		if got, err := Resolve(url); got != "" || !errors.Is(err, ErrURL) || strings.Contains(err.Error(), canary) {
			t.Errorf("Resolve(%q) = %q, %v, want ErrURL", url, got, err)
		}
	}
}
