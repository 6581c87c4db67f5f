//go:build !unix

package main

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/leasehold-go/leasehold"
)

// newRunCommand and newLeadCommand refuse. On this system nothing can end a command and its
// descendants in time if this process is killed. acquire, renew and release work.
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

// refuseNested refuses nothing: on this system no run encloses anything.
func (*app) refuseNested(context.Context, *leasehold.Locker, string) error { return nil }

// inherit does nothing: there are no guardians on this system.
func inherit() {}

// ownGroup returns nil: there are no process groups on this system.
func ownGroup() *syscall.SysProcAttr { return nil }

// A status is a line on a terminal. This system has none.
type status struct{}

func statusPossible(*os.File) bool { return false }

func (*status) draw(string) {}
func (*status) erase()      {}

// endBySignal does nothing: programs do not end by signals on this system.
func endBySignal(error) {}
