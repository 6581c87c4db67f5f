package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

// eviction has the arguments of evict.
type eviction struct {
	name, owner, reason string
	yes                 bool
}

func newEvictCommand(a *app) *cobra.Command {
	var e eviction
	cmd := &cobra.Command{
		Use:   "evict --owner OWNER --reason TEXT [flags] NAME",
		Short: "End a holder's lease by force",
		Long: `End the lease of a holder that hangs. The next holder gets a larger token. The
evicted holder learns of it at its next renewal or release at the latest. "leasehold run"
then ends its command, but --once-per renews nothing and may learn of it only at the end.
Until then the holder may still act: only writes that check the token are safe at once.

OWNER is what "leasehold show" prints, or the whole owner. On a terminal the command
asks first; elsewhere it needs --yes. Exit codes: 75 OWNER does not hold NAME, or has
another lease of it by then, 64 no --yes and nobody to ask.`,
		Example: "  leasehold show deploy\n  leasehold evict deploy --owner 4f1a22c9 --reason 'host is gone'",
		Args:    argNames("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			e.name = args[0]
			return e.run(cmd.Context(), a)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.owner, "owner", "", "the holder to evict, as \"leasehold show\" prints `OWNER`")
	flags.StringVar(&e.reason, "reason", "", "`TEXT` for the evicted holder and the records")
	flags.BoolVarP(&e.yes, "yes", "y", false, "do not ask")
	cmd.RegisterFlagCompletionFunc("owner", e.completeOwner(a))
	return cmd
}

func (e *eviction) check(a *app) error {
	e.reason = plain(e.reason)
	switch {
	case e.owner == "":
		return usageErrorf("--owner is missing\nSee who holds it: %s", a.line("show", e.name))
	case strings.TrimSpace(e.reason) == "":
		return usageErrorf("--reason is missing\nSay why, for the holder that is evicted")
	case len(e.reason) > driver.MaxNote:
		return usageErrorf("--reason has %d bytes, at most %d", len(e.reason), driver.MaxNote)
	}
	return nil
}

func (e *eviction) run(ctx context.Context, a *app) error {
	if err := e.check(a); err != nil {
		return err
	}
	return a.with(ctx, stores.OpenExisting, nil, func(ctx context.Context, locks *leasehold.Locker) error {
		state, err := inspectOnce(ctx, locks, e.name)
		if err != nil {
			return err
		}
		h, err := e.holder(a, state)
		if err != nil {
			return err
		}
		if err := e.confirm(ctx, a, h); err != nil {
			return err
		}
		switch err := evictHolder(ctx, locks, e.name, h, e.reason); {
		case errors.Is(err, errLaterLease):
			return &exitError{exitLost, fmt.Errorf("not evicted: %s has another lease of %s by now\nSee it: %s", h.Owner, shown(e.name), a.line("show", e.name))}
		case errors.Is(err, leasehold.ErrLost):
			return e.notHeld(a)
		case err != nil:
			return err
		}
		return e.print(a, h)
	})
}

// errLaterLease: the owner has released that lease, and holds another one.
var errLaterLease = errors.New("the owner has another lease")

// evictHolder evicts a holder. It names its whole owner and compares its token, so a successor is
// safe, with two exceptions. The engine does not know of a hand-over inside a process. And an owner
// that was used before may be granted between the two calls.
func evictHolder(ctx context.Context, locks *leasehold.Locker, name string, holder leasehold.Holder, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	if state, err := locks.Inspect(ctx, name); err == nil && slices.ContainsFunc(state.Holders, func(h leasehold.Holder) bool {
		return h.Owner == holder.Owner && holder.Token != 0 && h.Token != holder.Token
	}) {
		return errLaterLease
	}
	return locks.Evict(ctx, name, holder.Owner.Reveal(), reason)
}

// holder returns the present holder that --owner selects.
func (e *eviction) holder(a *app, state leasehold.State) (leasehold.Holder, error) {
	var found []leasehold.Holder
	for _, h := range state.Holders {
		if wire.Names(e.owner, h.Owner) {
			return h, nil
		}
		if h.Owner.String() == e.owner {
			found = append(found, h)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return leasehold.Holder{}, e.notHeld(a)
	}
	return leasehold.Holder{}, usageErrorf("%d holders start with %s\nGive the whole owner", len(found), e.start())
}

// notHeld returns an error that is not ErrLost, because the advice for ErrLost addresses the
// holder.
func (e *eviction) notHeld(a *app) error {
	return &exitError{exitLost, fmt.Errorf("%s does not hold %s\nSee who does: %s", e.start(), shown(e.name), a.line("show", e.name))}
}

// confirm asks the user on a terminal. Without a terminal it requires --yes.
func (e *eviction) confirm(ctx context.Context, a *app, h leasehold.Holder) error {
	if e.yes {
		return nil
	}
	if _, ok := terminal(a.stdin); !ok {
		return usageErrorf("evict %s from %s? The input is no terminal, so nobody can answer\nGive --yes to evict without a question", h.Owner, shown(e.name))
	}
	fmt.Fprintf(a.stderr, "%s is held by %s (%s), %s left.\nEvict it? It may still act until it learns of it. [y/N] ",
		shown(e.name), h.Owner, lineOf(h), secondsText(h.Left.Seconds()))
	answer, err := abandon.Call(ctx, func() (string, error) { // a read from a terminal cannot be cancelled
		line, _ := bufio.NewReader(a.stdin).ReadString('\n') // text before an error counts
		return strings.ToLower(strings.TrimSpace(line)), nil
	})
	switch {
	case err != nil:
		fmt.Fprintln(a.stderr)
		return context.Cause(ctx)
	case answer == "y" || answer == "yes":
		return nil
	}
	return &exitError{exitBusy, fmt.Errorf("nobody was evicted")}
}

// evictedView is the output of evict.
type evictedView struct {
	Name    string `json:"name"`
	Owner   string `json:"owner" about:"the beginning of the owner"`
	Token   uint64 `json:"token,string" about:"the token of the evicted holder; the next token is greater"`
	Evicted bool   `json:"evicted" about:"always true; otherwise the command fails"`
}

func (e *eviction) print(a *app, h leasehold.Holder) error {
	v := evictedView{e.name, h.Owner.String(), h.Token, true}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "evicted %s from %s\n", v.Owner, shown(v.Name))
		fmt.Fprintf(w, "The next token is larger than %d. The holder learns of it at its next renewal or release at the latest.\n", v.Token)
	})
}

// completeOwner completes --owner with the short owners of NAME's holders.
func (e *eviction) completeOwner(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var owners []cobra.Completion
		state, _ := forCompletion(a, func(ctx context.Context, locks *leasehold.Locker) (leasehold.State, error) {
			return locks.Inspect(ctx, args[0])
		})
		for _, h := range state.Holders {
			owners = append(owners, cobra.CompletionWithDesc(h.Owner.String(), lineOf(h)))
		}
		return owners, cobra.ShellCompDirectiveNoFileComp
	}
}

// start returns the part of --owner that may be printed. The value may be a whole owner.
func (e *eviction) start() string { return plain(e.owner[:min(8, len(e.owner))]) }
