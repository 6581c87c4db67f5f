package servers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Variable is the environment variable that names the folder of a build of engine, as printed by
// scripts/fetch-server. Tests then run that build instead of the system's.
func Variable(engine string) string { return "LEASEHOLD_" + strings.ToUpper(engine) + "_ROOT" }

// Root returns the folder that Variable names for engine, or "" for the system's own build. The
// server's programs are in its bin; other files are where they would be below /.
func Root(engine string) string { return os.Getenv(Variable(engine)) }

// Fetch unpacks a server by scripts/fetch-server and returns its folder. It skips t if the server
// is not available. The version is a prefix such as "9".
func Fetch(t testing.TB, name, version string) (root string) {
	t.Helper()
	return fetch(t, name, version)
}

// fetch calls scripts/fetch-server.
func fetch(t testing.TB, args ...string) (root string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(project(), "scripts", "fetch-server"), args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		const cannotBeHad = 3
		if exit.ExitCode() == cannotBeHad {
			t.Skipf("needs %s: %s", strings.Join(args, " "), exit.Stderr)
		}
		t.Fatalf("fetch %s: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	if err != nil {
		t.Fatalf("fetch %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// Program builds the command pkg at path, without the race detector. Unlike go build, go run keeps
// what it has linked: for all packages of tests, a program is linked once.
func Program(path, pkg string) error {
	// Without what debuggers read, linking takes a third less time.
	out, err := exec.Command("go", "run", "-ldflags=-s -w", "-exec", "cp", pkg, path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// built returns the path of a server that scripts/install-tools has built as tool, of the version
// of pkg that a go.mod requires.
func built(t testing.TB, name, tool, mod, pkg string) string {
	t.Helper()
	modules, err := os.ReadFile(filepath.Join(project(), mod))
	if err != nil {
		t.Fatalf("find the version of %s: %v", name, err)
	}
	_, version, _ := strings.Cut(string(modules), pkg+" ")
	return kept(t, tool, name+"-"+strings.Fields(version)[0])
}

// kept returns a path that scripts/install-tools has filled in the cache. tool installs it.
func kept(t testing.TB, tool string, path ...string) string {
	t.Helper()
	at := cached(t, path...)
	need(t, tool, at, func() error { _, err := os.Stat(at); return err })
	return at
}

// cached returns a path in the cache of scripts/install-tools.
func cached(t testing.TB, path ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("find what install-tools has made: %v", err)
	}
	return filepath.Join(append([]string{cache, "leasehold-tools"}, path...)...)
}

// Redocly returns the path of a linter for OpenAPI descriptions.
func Redocly(t testing.TB) string {
	t.Helper()
	return kept(t, "redocly", npm(t, "redocly", "@redocly/cli"), "node_modules", ".bin", "redocly")
}

// Axe returns the path of axe-core, a script that checks the accessibility of a page.
func Axe(t testing.TB) string {
	t.Helper()
	return kept(t, "axe", npm(t, "axe", "axe-core"), "node_modules", "axe-core", "axe.min.js")
}

// TypeScript returns the folder with TypeScript's compiler, .bin/tsc, and the types of Node. If
// they are not installed, it skips t.
func TypeScript(t testing.TB) string {
	t.Helper()
	at := cached(t, npm(t, "typescript", "typescript"), "node_modules")
	if _, err := os.Stat(at); err != nil {
		t.Skipf("no TypeScript (%v): scripts/install-tools typescript installs it", err)
	}
	return at
}

// npm returns the name of the cached folder that scripts/NAME installs by npm. The folder is named
// after the version of pkg.
func npm(t testing.TB, name, pkg string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(project(), "scripts", name, "package.json"))
	if err != nil {
		t.Fatalf("find the version of %s: %v", name, err)
	}
	var wanted struct{ Dependencies map[string]string }
	if err := json.Unmarshal(text, &wanted); err != nil {
		t.Fatalf("find the version of %s: %v", name, err)
	}
	return name + "-" + wanted.Dependencies[pkg]
}

// project returns the root of the working tree.
func project() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..")
}
