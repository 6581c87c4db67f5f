package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

func newLimitCommand(a *app) *cobra.Command {
	var clear, literal bool
	cmd := &cobra.Command{
		Use:   "limit [flags] NAME [N]",
		Short: "Set how much of a lock may be used at once",
		Long: `Set a limit of NAME for everybody, or show the one that is set. Of this limit and
those that holders give with --limit, the smallest counts. It stays until it is
changed, even while nobody uses NAME; --clear removes it.

A higher limit admits at once those who fit. A lower one ends no lease: "leasehold
show" then says, for example, 9 of 5 used, and nobody is admitted until there is room
below it. A call that asks for more than the limit is refused. An exclusive one
ignores it.

NAME is one lock, not a pattern. Not every store keeps limits: the exit code is then 64.`,
		Example: "  leasehold limit gpu 8\n  leasehold limit gpu\n  leasehold limit --clear gpu",
		Args:    argNames("NAME", "[N]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if strings.HasSuffix(name, "*") && !literal {
				return usageErrorf("%s is one lock, not all that start alike\nIf that is its name, give --literal", shown(name))
			}
			switch {
			case len(args) == 1 && !clear:
				return showLimit(cmd.Context(), a, name)
			case len(args) == 1:
				return setLimit(cmd.Context(), a, name, 0)
			case clear:
				return usageErrorf("--clear and N exclude each other")
			}
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 || n > driver.MaxWeight {
				return usageErrorf("N is %q: want a number from 1 to %d\nTo remove the limit, give --clear", plain(args[1]), driver.MaxWeight)
			}
			return setLimit(cmd.Context(), a, name, n)
		},
	}
	cmd.Flags().BoolVar(&clear, "clear", false, "remove the limit")
	cmd.Flags().BoolVar(&literal, "literal", false, "take a * at the end of NAME as part of it")
	return cmd
}

func showLimit(ctx context.Context, a *app, name string) error {
	state, err := ask(ctx, a, func(ctx context.Context, locks *leasehold.Locker) (leasehold.State, error) {
		return locks.Inspect(ctx, name)
	})
	if err != nil {
		return err
	}
	return printLimit(a, name, state.Limit)
}

// setLimit sets the limit of name; 0 removes it.
func setLimit(ctx context.Context, a *app, name string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	err := a.with(ctx, stores.Open, nil, func(ctx context.Context, locks *leasehold.Locker) error {
		return locks.SetLimit(ctx, name, n)
	})
	if err != nil {
		return err
	}
	return printLimit(a, name, n)
}

// limitView is the output of limit.
type limitView struct {
	Name  string `json:"name"`
	Limit int    `json:"limit" about:"the limit that is set; 0: none"`
}

func printLimit(a *app, name string, n int) error {
	return a.print(limitView{name, n}, func(w io.Writer) {
		if n == 0 {
			fmt.Fprintf(w, "%s has no limit\n", shown(name))
		} else {
			fmt.Fprintf(w, "%s has a limit of %d\n", shown(name), n)
		}
	})
}
