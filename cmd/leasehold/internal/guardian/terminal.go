//go:build unix

package guardian

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A terminal is the controlling terminal of this process, as seen by job control. It is opened by
// its own name, because standard input may be a file or a pipe while the command asks for a
// password.
type terminal struct {
	tty  int  // the open file
	home int  // process group of the holder, which the shell watches; 0: no terminal
	lent bool // the child has the foreground
}

// openTerminal opens the terminal for the holder's process group home.
func openTerminal(home int) terminal {
	tty, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return terminal{}
	}
	return terminal{tty: tty, home: home}
}

func (t *terminal) close() {
	if t.home != 0 {
		unix.Close(t.tty)
	}
}

// homeTerminal describes the terminal of this process. It is lent to the child from the start if
// this process is in the foreground, and input and output are the terminal too. If one of them is
// not, another program of the pipeline may need the keyboard. Then the child gets the terminal when
// it asks for it.
func homeTerminal() terminal {
	t := openTerminal(unix.Getpgrp())
	t.lent = t.home != 0 && t.foreground() == t.home && term.IsTerminal(0) && term.IsTerminal(1)
	return t
}

// foreground returns the process group that reads the keyboard, or 0 if it is unknown.
func (t *terminal) foreground() int {
	if t.home == 0 {
		return 0
	}
	group, err := unix.IoctlGetInt(t.tty, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// lend gives the foreground to the child's group, if the holder's group has it.
func (t *terminal) lend(child int) bool {
	if t.home == 0 || t.foreground() != t.home {
		return false
	}
	t.lent = true
	t.set(child)
	return true
}

// giveBack gives the foreground to the holder's group, if the child's group has it, or a group that
// the child created and left.
func (t *terminal) giveBack(child int) {
	front := t.foreground()
	if front == 0 || front == t.home {
		return
	}
	if front == child || syscall.Kill(-front, 0) == syscall.ESRCH {
		t.set(t.home)
	}
}

func (t *terminal) set(group int) {
	// The kernel would stop a background process that does this, unless it ignores the signal.
	signal.Ignore(syscall.SIGTTOU)
	unix.IoctlSetPointerInt(t.tty, unix.TIOCSPGRP, group)
}
