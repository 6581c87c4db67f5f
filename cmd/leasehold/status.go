//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A status is a line below all others on a terminal, which is drawn again and again and erased at
// the end. It is drawn only while this job has the terminal, and only if the terminal accepts it at
// once, so that nobody waits for a screen that is stopped.
type status struct {
	tty   int // the terminal, opened for this alone; 0: not yet
	drawn bool
}

// Sequences that every terminal of the last decades knows. A line that is wrapped could not
// be erased: what is beyond the edge is not shown.
const lineBegin, lineRest, wrapOff, wrapOn = "\r", "\x1b[K", "\x1b[?7l", "\x1b[?7h"

// statusPossible reports whether there may be a status line on file.
func statusPossible(file *os.File) bool {
	kind := os.Getenv("TERM")
	return kind != "" && kind != "dumb" && term.IsTerminal(int(file.Fd()))
}

// front reports whether the terminal that controls this process is standard error's, and
// shows its job.
func front() bool {
	group, err := unix.IoctlGetInt(2, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func (s *status) draw(text string) {
	if !front() || !s.open() {
		return
	}
	if width, _, err := term.GetSize(s.tty); err == nil && width > 1 {
		text = cut(text, width-1, "")
	}
	if s.put(lineBegin + wrapOff + text + lineRest + wrapOn) {
		s.drawn = true
	}
}

// erase leaves the terminal as it was, unless it shows another job by now.
func (s *status) erase() {
	if s.drawn && front() {
		s.put(lineBegin + lineRest)
	}
	s.drawn = false
}

// open opens the terminal a second time, because whether writes to it wait is not for us to
// change where others have it open too.
func (s *status) open() bool {
	if s.tty > 0 {
		return true
	}
	tty, err := unix.Open("/dev/tty", unix.O_WRONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	s.tty = tty
	return true
}

func (s *status) put(text string) bool {
	n, err := unix.Write(s.tty, []byte(text))
	return err == nil && n > 0
}
