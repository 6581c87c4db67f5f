package main

import (
	"errors"
	"io/fs"
	"net"
	"syscall"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// Exit codes. Those from 64 on are of sysexits.h, the others as a shell has them. A
// command that ran under a lock gives its own, and 128+n when signal n ended it.
const (
	exitBusy        = 1  // refused, as flock(1)
	exitUsage       = 64 // the command line, or what the store can never do
	exitUnavailable = 69 // the store cannot be reached or used
	exitInternal    = 70 // this program went wrong
	exitLost        = 75 // the lease ended too early
	exitDenied      = 77 // the store refuses the user
	exitSignal      = 128
)

// An exitError is an error with an exit code of its own. Without err it is silent: what
// there was to say has been said, or the code says it.
type exitError struct {
	code int
	err  error
}

// Error returns "" for a silent error.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns what went wrong, or nil.
func (e *exitError) Unwrap() error { return e.err }

// ExitCode returns what the program exits with.
func (e *exitError) ExitCode() int { return e.code }

// A signalError says that a signal has ended what the program did. The program then ends by
// it as well: a shell stops its script at Ctrl-C only if what it waits for dies of that.
type signalError struct {
	exitError
	signal syscall.Signal
}

func bySignal(sig syscall.Signal, err error) error {
	return &signalError{exitError{exitSignal + int(sig), err}, sig}
}

// Unwrap returns the error with the exit code that a shell gives to the signal.
func (e *signalError) Unwrap() error { return &e.exitError }

// exitCode is what the program exits with after err. Errors of no known kind come from a store: all
// others are made here, with their codes.
func exitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, leasehold.ErrBusy):
		return exitBusy
	case errors.Is(err, leasehold.ErrLost):
		return exitLost
	case errors.Is(err, leasehold.ErrInvalidName), errors.Is(err, leasehold.ErrInvalidOption),
		errors.Is(err, leasehold.ErrUnsupported), errors.Is(err, leasehold.ErrDeadlock), errors.Is(err, leasehold.ErrTooHeavy):
		return exitUsage
	case errors.Is(err, leasehold.ErrClosed), errors.Is(err, leasehold.ErrReleased):
		return exitInternal
	case denied(err):
		return exitDenied
	}
	return exitUnavailable
}

// passes reports whether err is of a store that may serve later: it comes back, or rights are given back.
func passes(err error) bool {
	code := exitCode(err)
	return code == exitUnavailable || code == exitDenied
}

// denied reports whether the store refuses the user, or this machine a file that the store is in or is
// opened with.
func denied(err error) bool {
	var net *net.OpError // by a firewall of this machine
	return errors.Is(err, driver.ErrDenied) || errors.Is(err, fs.ErrPermission) && !errors.As(err, &net)
}
