//go:build !unix

package locktest

import (
	"os"
	"testing"
)

// PauseProcess skips the test: a process cannot be stopped here.
func PauseProcess(t testing.TB, _ *os.Process) (resume func()) {
	t.Skipf("stopping a process needs Unix")
	return nil
}
