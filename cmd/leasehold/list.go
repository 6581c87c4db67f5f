package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

func newListCommand(a *app) *cobra.Command {
	watch := false
	var l lister
	cmd := &cobra.Command{
		Use:   "ls [flags] [PREFIX]",
		Short: "List the locks that are held or waited for",
		Long: `List the locks that are held or waited for. Each holder has a line: who and where it is,
for how long it has held, how much of its lease is left, and how many wait. With PREFIX,
list only names that start with it.

# Columns
STATE is held, reserved, done for what a finished job keeps, free for what is only
waited for, or how much of a limit is used. It is keeps if the process of a holder may
keep the lease after use until others wait; whether it uses it cannot be seen. HOLDER is
the note, or else the program and its process id. A MODE of shared/3 is a holder with
--limit 3; the smallest of all holders and of "leasehold limit" counts.

On a terminal NAME, HOLDER and HOST are shortened to its width. If that is not enough,
TOKEN, OWNER, MODE, HOST and HOLDER are left out, in this order. Any other output has
everything.

# Sort and select
A lock is listed if one of its holders, or of those who wait, has all that
--held-longer-than, --host and --label ask for. With --sort, nothing is printed before
all locks were looked at, 50,000 at most. held and waiting begin with the most, left
with the lease that ends first. Standard error says how many locks were looked at, and
whether these were all.

# CSV
--csv prints RFC 4180 with a line of heads, and a line for each holder. What is unknown
is empty. A text that a spreadsheet would take for a formula has an apostrophe before
it.

# Pages
Lines appear as the store sends them, sorted by name where it can sort. If --limit
leaves locks out, standard error gives the --after to continue with. A JSON array
without an end was cut off.

# Watching
With --watch, "leasehold ls" looks every second until a signal ends it, at 50,000 names
at most. It prints a line with the time for each name whose holders or waiters have
changed, or with --json an object. Changes that are undone within the second are not
seen. If the store does not answer or is damaged, or more names become free than it can
be asked about, standard error says so once.`,
		Example: "  leasehold ls\n  leasehold ls --limit 50 orders/\n  leasehold ls --sort held --held-longer-than 1h --label team=payments\n  leasehold ls --json | jq -r '.[].name'\n  leasehold ls --watch --json | jq -c '[.lock.name, .lock.holders != []]'",
		Args:    argNames("[PREFIX]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				l.prefix = args[0]
			}
			if l.limit < 0 || cmd.Flags().Changed("limit") && l.limit == 0 {
				return usageErrorf("--limit %d: want a number of locks", l.limit)
			}
			if err := l.check(); err != nil {
				return err
			}
			switch {
			case watch && (l.limit > 0 || l.after != "" || l.csv || l.any()):
				return usageErrorf("--watch excludes --limit, --after, --csv, --sort and what selects locks")
			case l.csv && a.json:
				return usageErrorf("--csv and --json exclude each other")
			case l.sort != "" && l.after != "":
				return usageErrorf("--sort and --after exclude each other: a sorted list has all locks")
			}
			if watch {
				return a.with(cmd.Context(), stores.OpenExisting, nil, func(ctx context.Context, locks *leasehold.Locker) error {
					return watchList(ctx, a, locks, l.prefix)
				})
			}
			return l.list(cmd.Context(), a)
		},
	}
	l.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&l.csv, "csv", false, "print CSV")
	cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(orderNames, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&watch, "watch", false, "keep watching, and print each change")
	cmd.Flags().IntVar(&l.limit, "limit", 0, "list at most `N` locks")
	cmd.Flags().StringVar(&l.after, "after", "", "continue after the list that ended with `NEXT`")
	return cmd
}

func newShowCommand(a *app) *cobra.Command {
	quiet := false
	cmd := &cobra.Command{
		Use:   "show [flags] NAME",
		Short: "Show who holds a lock and who waits for it",
		Long: `Show who holds NAME, since when and for how much longer, with which token, and who
waits for it, in order.

A finished job of "leasehold run --once-per" or --at-least keeps NAME without an owner.
HELD is then how long ago the job began, and HOLDER who ran it, its exit code and how
long it took.`,
		Example: "  leasehold show deploy\n  leasehold show --json deploy | jq '.waiters | length'",
		Args:    argNames("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd.Context(), a, args[0], quiet)
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing; exit with 0 if NAME is free, else 1")
	return cmd
}

func show(ctx context.Context, a *app, name string, quiet bool) error {
	state, err := ask(ctx, a, func(ctx context.Context, locks *leasehold.Locker) (leasehold.State, error) {
		return locks.Inspect(ctx, name)
	})
	if err != nil && (len(state.Holders) == 0 || !errors.Is(err, driver.ErrCorrupt)) { // it may be held
		return err
	}
	if quiet {
		if len(state.Holders) > 0 {
			return &exitError{code: exitBusy}
		}
		return nil
	}
	v := viewOf(state)
	return errors.Join(err, a.print(v, func(w io.Writer) { writeState(w, v) }))
}

// completeTimeout is how long a completion may take, because a person waits for it.
const completeTimeout = time.Second

// completeName completes the first argument with names in the store. after applies to later
// arguments.
func completeName(a *app, after cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, after
		}
		page, _ := forCompletion(a, func(ctx context.Context, locks *leasehold.Locker) (leasehold.Page, error) {
			return locks.Page(ctx, leasehold.PageOptions{Prefix: typed, Limit: mostCompletions})
		})
		names := make([]cobra.Completion, len(page.States))
		for i, s := range page.States {
			names[i] = s.Resource
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// mostCompletions is the largest number of names that a shell is offered. Nobody chooses from more.
const mostCompletions = 200

// forCompletion is ask within completeTimeout. Its error has no place in a completion.
func forCompletion[T any](a *app, question func(ctx context.Context, locks *leasehold.Locker) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	return ask(ctx, a, question)
}

// ask asks the chosen store one question within answerBound.
func ask[T any](ctx context.Context, a *app, question func(ctx context.Context, locks *leasehold.Locker) (T, error)) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	err = a.with(ctx, stores.OpenExisting, nil, func(ctx context.Context, locks *leasehold.Locker) (err error) {
		answer, err = question(ctx, locks)
		return err
	})
	return answer, err
}
