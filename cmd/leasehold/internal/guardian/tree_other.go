//go:build unix && !linux

package guardian

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// clock counts the time that the machine sleeps, on systems with only one clock.
const clock = unix.CLOCK_MONOTONIC

// walks is false: on this system descendants are not found. Only the child's process group is
// ended.
const walks = false

// rename does nothing: on this system a process has the name of its program's file.
func rename() {}

// adoptOrphans does nothing: on this system grandchildren may escape.
func adoptOrphans() {}

// guardianAttr starts the guardian in a process group that no signal of the terminal reaches.
func guardianAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func childAttr(t *terminal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: t.lent, Ctty: t.tty}
}

// alone reports whether the child's process group is gone.
func alone(group int) bool { return syscall.Kill(-group, 0) == syscall.ESRCH }

func descendants(root int, since uint64) []int { return nil }

// leftRunning returns a general text, because this system cannot list the processes that are left.
func leftRunning() string { return "its process group" }

// refusing returns nothing, because this system cannot list the processes that are left.
func refusing(pids []int) string { return "" }

func startTime(pid int) uint64 { return 0 }

// memoryFile returns an error: on this system, memory files need a folder.
func memoryFile() (*os.File, error) { return nil, errors.ErrUnsupported }

// running returns true, because this system cannot tell whether a child has ended before its parent
// has waited for it.
func running(child int) bool { return true }

// catches returns true, because this system cannot tell. So a signal is sent at once.
func catches(pid int, sig syscall.Signal) bool { return true }

// below returns nothing, because this system cannot list descendants.
func below(root int, since uint64) []int { return nil }
