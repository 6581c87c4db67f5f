//go:build unix

package locktest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// PauseProcess stops p, for a [Harness.Pause], and returns when all its threads have stopped:
// after the signal some run a little longer. p does not notice until it is resumed.
func PauseProcess(t testing.TB, p *os.Process) (resume func()) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("stop process %d: %v", p.Pid, err)
	}
	eventually(t, callLimit, fmt.Sprintf("process %d stands", p.Pid), func() bool { return stands(p.Pid) })
	return func() { _ = p.Signal(syscall.SIGCONT) } // it may have been killed
}

// stands reports whether every thread of a process is stopped or has ended. Without /proc it
// returns true. proc(5) describes the state letter.
func stands(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
	return !slices.ContainsFunc(threads, func(path string) bool {
		text, err := os.ReadFile(path)
		state := strings.LastIndex(string(text), ") ")
		return err == nil && state >= 0 && !strings.HasPrefix(string(text[state:]), ") T")
	})
}
