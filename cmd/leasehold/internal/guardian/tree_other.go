//go:build unix && !linux

package guardian

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// clock counts the time that the machine sleeps where the system has only one.
const clock = unix.CLOCK_MONOTONIC

// walks says that descendants are not looked for here: only the child's process group
// is ended.
const walks = false

// rename: the system takes a process's name from the program's file.
func rename() {}

func adoptOrphans() error { return nil }

// guardianAttr starts the guardian where no signal of the terminal reaches it.
func guardianAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func childAttr(t *terminal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: t.lent, Ctty: t.tty}
}

// alone reports whether the child's process group is gone.
func alone(group int) bool { return syscall.Kill(-group, 0) == syscall.ESRCH }

func descendants(root int, since uint64) []int { return nil }

// leftRunning: something is, but nobody here knows what.
func leftRunning() string { return "its process group" }

func startTime(pid int) uint64 { return 0 }

// memoryFile: there is none without a folder.
func memoryFile() (*os.File, error) { return nil, errors.ErrUnsupported }

// running reports whether a child still runs. That is unknown here before its parent has waited for
// it.
func running(child int) bool { return true }

// catches: what a process catches is unknown here, and the signal is sent at once.
func catches(pid int, sig syscall.Signal) bool { return true }

// below lists nothing here.
func below(root int, since uint64) []int { return nil }
