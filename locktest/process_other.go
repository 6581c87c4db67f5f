//go:build !unix

package locktest

import (
	"os"
	"testing"
)

// PauseProcess skips the test: this system cannot stop a process.
func PauseProcess(t testing.TB, _ *os.Process) (resume func()) {
	t.Skipf("stopping a process needs Unix")
	return nil
}
