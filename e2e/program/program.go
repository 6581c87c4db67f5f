// Package program builds the real command for tests that run it.
package program

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// Main builds the command, stores its path in binary, and runs the tests of a package. It
// returns the exit code.
func Main(m *testing.M, binary *string) int {
	dir, err := os.MkdirTemp("", "leasehold-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		*binary, err = buildIn(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if signal.Ignored(syscall.SIGHUP) { // by nohup, which the command obeys, too; its tests start it in a terminal
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	return m.Run()
}

// Build builds the command for one test and returns its path.
func Build(t *testing.T) string {
	t.Helper()
	binary, err := buildIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

func buildIn(dir string) (binary string, err error) {
	binary = filepath.Join(dir, "leasehold")
	return binary, servers.Program(binary, "github.com/leasehold-go/leasehold/cmd/leasehold")
}
