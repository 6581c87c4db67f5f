package servers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Variable is the environment variable that names the folder of a build of engine, as
// scripts/fetch-server prints it, which tests then run in place of the system's.
func Variable(engine string) string { return "LEASEHOLD_" + strings.ToUpper(engine) + "_ROOT" }

// Root is the folder that Variable names for engine: the server's programs are in its bin,
// everything else where it would be below /. It is "" for the system's own build.
func Root(engine string) string { return os.Getenv(Variable(engine)) }

var fetching sync.Mutex

// Fetch has the project's own script unpack a server and returns its folder, or skips t where
// it cannot be had. The version is its begin, such as "9".
func Fetch(t testing.TB, name, version string) (root string) {
	t.Helper()
	fetching.Lock()
	defer fetching.Unlock()
	out, err := exec.Command(script("fetch-server"), name, version).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		const cannotBeHad = 3
		if exit.ExitCode() == cannotBeHad {
			t.Skipf("needs %s %s: %s", name, version, exit.Stderr)
		}
		t.Fatalf("fetch %s %s: %v\n%s", name, version, err, exit.Stderr)
	}
	if err != nil {
		t.Fatalf("fetch %s %s: %v", name, version, err)
	}
	return strings.TrimSpace(string(out))
}

// script is the path of one of the project's scripts.
func script(name string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "scripts", name)
}
