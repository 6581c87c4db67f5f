package servers

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Variable is the environment variable that names the folder of a build of engine, as
// scripts/fetch-server prints it, which tests then run in place of the system's.
func Variable(engine string) string { return "LEASEHOLD_" + strings.ToUpper(engine) + "_ROOT" }

// Root is the folder that Variable names for engine: the server's programs are in its bin,
// everything else where it would be below /. It is "" for the system's own build.
func Root(engine string) string { return os.Getenv(Variable(engine)) }

// Fetch has the project's own script unpack a server and returns its folder, or skips t where
// it cannot be had. The version is its begin, such as "9".
func Fetch(t testing.TB, name, version string) (root string) {
	t.Helper()
	return fetch(t, name, version)
}

// fetched is Fetch of what make tools has fetched before: a test installs nothing.
func fetched(t testing.TB, name, version string) (root string) {
	t.Helper()
	return fetch(t, "-n", name, version)
}

func fetch(t testing.TB, args ...string) (root string) {
	t.Helper()
	out, err := exec.Command(script("fetch-server"), args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
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

// built is the path of the server that scripts/install-tools has built as tool, of the version of pkg
// that a go.mod requires.
func built(t testing.TB, name, tool, mod, pkg string) string {
	t.Helper()
	modules, err := os.ReadFile(filepath.Join(project(), mod))
	if err != nil {
		t.Fatalf("find the version of %s: %v", name, err)
	}
	_, version, _ := strings.Cut(string(modules), pkg+" ")
	return kept(t, tool, name+"-"+strings.Fields(version)[0])
}

// kept is the path of what scripts/install-tools has put into the cache as tool.
func kept(t testing.TB, tool string, path ...string) string {
	t.Helper()
	at := cached(t, path...)
	need(t, tool, at, func() error { _, err := os.Stat(at); return err })
	return at
}

// cached is a path in the cache of scripts/install-tools.
func cached(t testing.TB, path ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("find what install-tools has made: %v", err)
	}
	return filepath.Join(append([]string{cache, "leasehold-tools"}, path...)...)
}

// Redocly is the path of the linter of OpenAPI descriptions.
func Redocly(t testing.TB) string {
	t.Helper()
	return kept(t, "redocly", npm(t, "redocly", "@redocly/cli"), "node_modules", ".bin", "redocly")
}

// Axe is the path of the script that finds what keeps people out of a page.
func Axe(t testing.TB) string {
	t.Helper()
	return kept(t, "axe", npm(t, "axe", "axe-core"), "node_modules", "axe-core", "axe.min.js")
}

// TypeScript is the path of the folder with TypeScript's compiler, .bin/tsc, and the types of Node. Without it, it skips t.
func TypeScript(t testing.TB) string {
	t.Helper()
	at := cached(t, npm(t, "typescript", "typescript"), "node_modules")
	if _, err := os.Stat(at); err != nil {
		t.Skipf("no TypeScript (%v): scripts/install-tools typescript installs it", err)
	}
	return at
}

// npm is the folder in the cache for what scripts/NAME has npm install: pkg is the package whose version counts.
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

// script is the path of one of the project's scripts.
func script(name string) string { return filepath.Join(project(), "scripts", name) }

// project is the folder of the working tree.
func project() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..")
}
