package main

import (
	"errors"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// Exit codes. Those from 64 on are from sysexits.h, the others are as in shells. A command under a
// lock passes on its own code, or 128+n if signal n ended it.
const (
	exitBusy        = 1  // the lock was refused, as in flock(1)
	exitUsage       = 64 // the command line is wrong, or the store cannot do this
	exitUnavailable = 69 // the store cannot be reached or used
	exitInternal    = 70 // an error of this program or machine
	exitLost        = 75 // the lease ended too early
	exitDenied      = 77 // the store refuses the user
	exitSignal      = 128
)

// An exitError is an error with its own exit code. Without err it is silent: either a message was
// printed already, or the code says enough.
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

func (e *exitError) Unwrap() error { return e.err }

// A signalError means that a signal ended what the program did. The program then ends itself by the
// same signal, because a shell stops its script at Ctrl-C only if its child dies of SIGINT.
type signalError struct {
	exitError
	signal syscall.Signal
}

func bySignal(sig syscall.Signal, err error) error {
	return &signalError{exitError{exitSignal + int(sig), err}, sig}
}

// Unwrap returns the error with the exit code that shells use for the signal.
func (e *signalError) Unwrap() error { return &e.exitError }

// exitCode returns the exit code of the program for err. Errors without a code come from a store,
// because all others are made here with their codes.
func exitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, leasehold.ErrBusy), removed(err):
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

// removed reports whether an operator has removed the call from the queue. It had no lease to lose.
func removed(err error) bool {
	return errors.Is(err, driver.ErrBarred) && errors.Is(err, driver.ErrEvicted)
}

// passes reports whether the store may work again later, because it recovers or rights are
// restored.
func passes(err error) bool {
	code := exitCode(err)
	return code == exitUnavailable || code == exitDenied
}

// denied reports whether the store refuses the user, or this machine denies access to a file that
// is needed.
func denied(err error) bool {
	var net *net.OpError // a connection that a firewall of this machine denied does not count
	return errors.Is(err, driver.ErrDenied) || errors.Is(err, fs.ErrPermission) && !errors.As(err, &net)
}

// textOf returns the text of err without the name of the package.
func textOf(err error) string { return strings.TrimPrefix(err.Error(), "leasehold: ") }
