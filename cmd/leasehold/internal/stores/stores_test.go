package stores

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

const canary = "s3cr3t-canary"

func TestRedactHidesPasswords(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://:" + canary + "@host:6379/0",
		"redis://user:" + canary + "@host",
		"redis://" + canary + "@host",
		"redis://user:a?" + canary + "@host",
		"redis://user:a#" + canary + "@host",
		"redis://user:a/" + canary + "@host/0",
		"redis://user:a@" + canary + "@host/0",
		"redis://user:" + canary + "@",
		"redis://host?password=" + canary,
		"redis://host?password=a@" + canary,
		"redis://host?password=a&" + canary,
		"redis://host?a=b#" + canary,
		"redis://host#" + canary,
		"redis://u:p@host?password=x@" + canary,
		"redis:user:" + canary + "@host",
		"redis://[::1:" + canary + "@%zz",
		"mysql:user:" + canary + "@tcp(host)/db",
		"user:" + canary + "@tcp(host)/db",
		"postgres:host=h password=" + canary,
		"host=h password=" + canary,
		"://u:" + canary + "@h",
		":" + canary + "@h",
		canary,
		"a\x00:" + canary,
		"",
	} {
		if got := Redact(url); strings.Contains(got, canary) {
			t.Errorf("Redact(%q) = %q", url, got)
		}
	}
}

func TestRedactKeepsTheRest(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"sqlite:/var/lib/locks.db":     "sqlite:/var/lib/locks.db",
		"sqlite:":                      "sqlite:",
		"redis://host:6379/0":          "redis://host:6379/0",
		"redis://u:p@host:6379/0":      "redis://***@host:6379/0",
		"redis://u:p@host:6379/0?db=1": "redis://***@host:6379/0?***",
	} {
		if got := Redact(url); got != want {
			t.Errorf("Redact(%q) = %q, want %q", url, got, want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("redis://", ":", "@host", "?a=b")
	f.Fuzz(func(t *testing.T, before, sep, after, query string) {
		// As user information and as an option, whatever stands around it.
		for _, url := range []string{
			"redis://user" + before + ":" + canary + sep + "@" + after + query,
			"redis://" + before + "?password=" + sep + canary + after + query,
		} {
			if got := Redact(url); strings.Contains(got, canary) {
				t.Errorf("Redact(%q) = %q", url, got)
			}
		}
	})
}

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
		d, resolved, err := Open(t.Context(), url)
		if d != nil || resolved != "" || !errors.Is(err, ErrURL) {
			t.Errorf("Open(%q) = %v, %q, %v, want ErrURL", url, d, resolved, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, says) || !strings.Contains(text, "sqlite:") || strings.Contains(text, canary) || len(text) > 500 {
			t.Errorf("Open(%q): %q, want %q and what is known", url, text, says)
		}
	}
}

// Names that SQLite would understand as a URI, or the shell's user not, are plain files.
func TestSQLiteTakesPathsAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"locks.db", "a b.db", "100%41.db", "a#b.db", "é.db", "file:x.db", "-x.db", "a&b=c.db", "user:pass@x.db"} {
		d, resolved, err := Open(t.Context(), "sqlite:"+name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if resolved != "sqlite:"+filepath.Join(dir, name) {
			t.Errorf("%s: resolved to %s", name, resolved)
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
	for says, open := range map[string]func(context.Context, string) (driver.Driver, string, error){"does not exist": Open, "no such file": OpenExisting} {
		if _, _, err := open(t.Context(), "sqlite:missing/x.db"); err == nil || errors.Is(err, ErrURL) || !strings.Contains(err.Error(), says) {
			t.Errorf("a missing folder: %v, want %q", err, says)
		}
	}
}

func TestDefaultStoreIsPrivate(t *testing.T) {
	state := filepath.Join(t.TempDir(), "new", "state")
	t.Setenv("XDG_STATE_HOME", state)
	d, resolved, err := Open(t.Context(), Default)
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
	again, _, err := Open(t.Context(), Default)
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
	t.Setenv("HOME", "")
	if _, err := defaultPath(); err == nil || !strings.Contains(err.Error(), "--store") {
		t.Errorf("no home: %v", err)
	}
}

func TestOpenedStoreCanBeInspected(t *testing.T) {
	t.Parallel()
	d, _, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, ok := d.(driver.Inspector); !ok {
		t.Error("no Inspector")
	}
	if _, ok := d.(driver.Evictor); !ok {
		t.Error("no Evictor")
	}
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h":                                    "redis://h",
		"redis://:" + canary + "@h/0":                  "redis://h/0",
		"redis://u:" + canary + "@h1,h2/0?a=b@c":       "redis://u@h1,h2/0?a=b@c",
		"redis://u@h?password_file=%2Fp":               "redis://u@h?password_file=%2Fp",
		"redis://u:a:" + canary + "/@" + canary + "@h": "redis://u@h",
		"postgres://u%40x:" + canary + "@h/db":         "postgres://u%40x@h/db",
		"sqlite:/a:b@c?":                               "sqlite:/a:b@c?",
		"memcached://h1,h2?prefix=":                    "memcached://h1,h2?prefix=",
	} {
		if got := WithoutPassword(url); got != want {
			t.Errorf("WithoutPassword(%q) = %q, want %q", url, got, want)
		}
	}
}

// What Open resolves means the same to a process without our environment.
func TestResolvedURLHasThePasswordOfTheEnvironment(t *testing.T) {
	t.Setenv(passwordVariable, canary+"@/?:#")
	for rest, user := range map[string]string{"//h/0": "", "//u%3Ax@h?prefix=a@b": "u:x"} {
		u, err := parseRedis("redis", rest)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(passwordVariable, "")
		again, err := parseRedis("redis", u.text)
		t.Setenv(passwordVariable, canary+"@/?:#")
		if err != nil || again.user != user || again.password != canary+"@/?:#" || again.hosts[0] != "h" {
			t.Errorf("%s: resolved to %+v, %v", rest, again, err)
		}
	}
}
