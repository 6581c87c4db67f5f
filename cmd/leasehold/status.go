//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A status is a line below all others on a terminal. It is redrawn again and again, and erased at
// the end. It is drawn only while this job has the terminal, and only if the terminal accepts it at
// once. So nobody waits for a stopped screen.
type status struct {
	tty   int // the terminal, opened for the status alone; 0: not opened
	drawn bool
}

// Sequences that all terminals of the last decades know. Wrapping is off, because a wrapped line
// could not be erased.
const lineBegin, wrapOff, wrapOn = "\r", "\x1b[?7l", "\x1b[?7h"

// statusPossible reports whether file can show a status line.
func statusPossible(file *os.File) bool {
	kind := os.Getenv("TERM")
	return kind != "" && kind != "dumb" && term.IsTerminal(int(file.Fd()))
}

// front reports whether standard error is the controlling terminal of this process, and this
// process is in its foreground job.
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

// erase erases the line, unless the terminal shows another job by now.
func (s *status) erase() {
	if s.drawn && front() {
		s.put(lineBegin + lineRest)
	}
	s.drawn = false
}

// open opens the terminal a second time, for writes that never block. Changing the mode of the
// first file would affect other processes that share it.
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
