package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/leasehold-go/leasehold"
	"github.com/spf13/cobra"
)

func newResetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "reset [flags] NAME",
		Short: "Let a job run again before its period is over",
		Long: `Free NAME if only a finished job keeps others out, one of "leasehold run --once-per" or
--at-least, so that the job may run again at once. It does not end a lease that
someone still holds, and does nothing if NAME is free. Exit code 1 means that a
lease is held: the job runs, or was killed.`,
		Example: "  leasehold show daily-report\n  leasehold reset daily-report",
		Args:    argNames("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return reset(cmd.Context(), a, args[0])
		},
	}
}

func reset(ctx context.Context, a *app, name string) error {
	v, err := ask(ctx, a, func(ctx context.Context, locks *leasehold.Locker) (resetView, error) {
		return endKept(ctx, a, locks, name)
	})
	if err != nil {
		return err
	}
	return a.print(v, v.write)
}

// resetView is the output of reset.
type resetView struct {
	Name  string `json:"name"`
	Reset bool   `json:"reset" about:"whether a finished job still kept the name"`
	held  bool   // somebody was granted the name meanwhile
}

func (v resetView) write(w io.Writer) {
	switch {
	case !v.Reset:
		fmt.Fprintf(w, "%s was free\n", shown(v.Name))
	case v.held:
		fmt.Fprintf(w, "reset %s: the next holder has it\n", shown(v.Name))
	default:
		fmt.Fprintf(w, "reset %s: it is free\n", shown(v.Name))
	}
}

// endKept ends all holds of name that linger without an owner, one after another. Evict checks
// again that there is no owner, so a job that began meanwhile keeps its lease.
func endKept(ctx context.Context, a *app, locks *leasehold.Locker, name string) (v resetView, err error) {
	for v.Name = name; ; {
		state, err := locks.Inspect(ctx, name)
		if err != nil {
			return v, err
		}
		kept := false
		v.held = false
		for _, h := range state.Holders {
			if h.Owner.Reveal() == "" {
				kept = true
			} else if v.held = true; !v.Reset { // otherwise it was granted meanwhile
				return v, &exitError{exitBusy, fmt.Errorf("%s is held by %s: its job runs, or was killed\nTo end its lease: %s --owner %s --reason TEXT", shown(name), h.Owner, a.line("evict", name), h.Owner)}
			}
		}
		if !kept {
			return v, nil
		}
		err = locks.Evict(ctx, name, "", "reset")
		if err != nil && !errors.Is(err, leasehold.ErrLost) {
			return v, err
		}
		v.Reset = v.Reset || err == nil
	}
}
