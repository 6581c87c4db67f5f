//go:build !unix

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// newRunCommand refuses: nothing here ends a command with all that it started, in time,
// once this process is killed. acquire, renew and release work.
func newRunCommand(*app) *cobra.Command {
	return &cobra.Command{
		Use:                "run",
		Short:              "Hold a lock while a command runs (not on this system)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return &exitError{exitUsage, errors.New("run needs a Unix system: use acquire, renew and release")}
		},
	}
}

func newGuardCommand() *cobra.Command {
	return &cobra.Command{Use: "guard", Hidden: true}
}
