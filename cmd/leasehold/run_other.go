//go:build !unix

package main

import (
	"errors"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

// newRunCommand and newLeadCommand refuse: nothing here ends a command with all that it
// started, in time, once this process is killed. acquire, renew and release work.
func newRunCommand(*app) *cobra.Command {
	return refusing("run", "Hold a lock while a command runs (not on this system)")
}

func newLeadCommand(*app) *cobra.Command {
	return refusing("lead", "Run a command on one machine at a time (not on this system)")
}

func refusing(name, about string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              about,
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return &exitError{exitUsage, errors.New(name + " needs a Unix system: use acquire, renew and release")}
		},
	}
}

// inherit: nobody is a guardian here.
func inherit() {}

// ownGroup: there are no process groups here.
func ownGroup() *syscall.SysProcAttr { return nil }

// A status is a line on a terminal; there is none here.
type status struct{}

func statusPossible(*os.File) bool { return false }

func (*status) draw(string) {}
func (*status) erase()      {}

// endBySignal: nobody dies of signals here.
func endBySignal(error) {}
