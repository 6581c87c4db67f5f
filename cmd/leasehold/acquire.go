package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

// scriptTTL is the default TTL of acquire. Nobody renews the lease, so it is longer than a
// program's.
const scriptTTL = time.Minute

func newAcquireCommand(a *app) *cobra.Command {
	var f claimFlags
	cmd := &cobra.Command{
		Use:   "acquire [flags] NAME",
		Short: "Acquire a lock for a script and exit",
		Long: `Acquire NAME and exit, leaving the lease held for --ttl. Nothing renews it: call
"leasehold renew" before it ends, and "leasehold release" when you are done. The
output is for eval, in two lines as below. To hold a lock while one command runs,
use "leasehold run", which does all of this by itself.

# Output
The output sets and exports
  LEASEHOLD_OWNER  the secret that renews and releases the lease
  LEASEHOLD_TOKEN  the fencing token: larger than every earlier holder's
  LEASEHOLD_TTL    seconds after which to treat the lease as over

Write it in two lines. The first then ends the script if NAME is busy, if the store is
down, and if leasehold is not installed or was killed. In the last two cases
eval "$(leasehold acquire deploy)" would continue, because eval of nothing succeeds. In
the first two it fails as it should: the output is then (exit N), unless it goes to a
terminal.

# Waiting
-n and -w limit everything until NAME is held, connecting included. A store that does not
answer is given up after 3 to 10 s, depending on the engine. With -n it gets at most 2 s,
with -w at most TIME or 2 s, whichever is longer. The exit code is then 69. If holders give
different numbers with --limit, the smallest counts, and standard error warns of it.

# Exit codes
  1      NAME is busy, or the wait was removed from the queue
  64     wrong usage
  69     the store is unreachable, read-only or full
  70     internal error
  77     the store denies access
  128+n  signal n ended the wait`,
		Example: `  lease=$(leasehold acquire -w 10 deploy) || exit
  eval "$lease"
  ./deploy.sh --token "$LEASEHOLD_TOKEN"
  leasehold release deploy

  leasehold acquire -n --json deploy | jq -r .owner`,
		Args:              argNames("NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := f.options()
			if err != nil {
				return err
			}
			if len(f.shares.names()) > 0 {
				return usageErrorf("acquire takes one NAME: give --limit and --weight a number alone\nFor several names, use leasehold run")
			}
			return acquire(cmd.Context(), a, args[0], &f, append(opts, leasehold.NoRenew()))
		},
	}
	f.add(cmd.Flags(), scriptTTL)
	return cmd
}

func acquire(ctx context.Context, a *app, name string, f *claimFlags, opts []leasehold.Option) error {
	// A closed pipe must not end the process between the grant and the output.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := f.bounded(ctx)
	defer stop()
	// The holder is the script, not this process, which ends at once.
	who, err := f.details("script", os.Getppid())
	if err != nil {
		return err
	}
	o := &leasehold.Options{TTL: time.Duration(f.ttl), Details: who, Trace: leasehold.TraceAll(a.trace, (&trouble{app: a}).trace)}
	return a.with(ctx, stores.Open, o, func(ctx context.Context, locks *leasehold.Locker) error {
		a.sayLocal()
		if !locks.Features().Resumes {
			return fmt.Errorf("acquire %q: %w: its leases end with this process; use leasehold run", name, leasehold.ErrUnsupported)
		}
		if err := a.refuseNested(ctx, locks, name); err != nil {
			return err
		}
		w := a.watch(locks, name, who, f.shares)
		defer w.done()
		lease, err := locks.Acquire(ctx, name, append(opts, f.waiting()...)...)
		w.ended()
		if err != nil {
			return err
		}
		if err := a.printLease(lease); err != nil {
			// Nobody has seen the owner, so nobody else could release the lease.
			return errors.Join(err, lease.Release(ctx))
		}
		return nil
	})
}

func newRenewCommand(a *app) *cobra.Command {
	ttl := span(scriptTTL)
	cmd := &cobra.Command{
		Use:   "renew [flags] NAME [OWNER]",
		Short: "Restart the lease of an acquired lock",
		Long: `Restart the lease that OWNER holds on NAME with --ttl, counted from now. The output
is as from "leasehold acquire". Its token is larger than the one that acquire printed,
and stays the same from one renewal to the next. Use it for all later writes: a resource
that has seen it refuses the first one. Exit code 75 means that the lease has ended, and
that another process may hold NAME.

OWNER defaults to LEASEHOLD_OWNER, which keeps it out of the list of processes.`,
		Example: `  lease=$(leasehold renew --ttl 5m deploy) || exit
  eval "$lease"`,
		Args: argNames("NAME", "[OWNER]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			length, err := ttlOption(ttl)
			if err != nil {
				return err
			}
			owner, err := ownerOf(args)
			if err != nil {
				return err
			}
			return renew(cmd.Context(), a, args[0], owner, length)
		},
	}
	cmd.Flags().Var(&ttl, "ttl", "lease NAME for `TIME`: seconds, or 5m")
	return cmd
}

func renew(ctx context.Context, a *app, name, owner string, ttl leasehold.Option) error {
	return a.with(ctx, stores.OpenExisting, nil, func(ctx context.Context, locks *leasehold.Locker) error {
		lease, err := locks.Resume(ctx, name, owner, ttl, leasehold.NoRenew())
		if err != nil {
			return err
		}
		return a.printLease(lease)
	})
}

func newReleaseCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "release [flags] NAME [OWNER]",
		Short: "Release an acquired lock",
		Long: `Give up the lease that OWNER holds on NAME. Exit code 75 means that the lease had
ended before, so that what it guarded may have overlapped with another holder's work.

OWNER defaults to LEASEHOLD_OWNER, which keeps it out of the list of processes.`,
		Example: `  leasehold release deploy`,
		Args:    argNames("NAME", "[OWNER]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			owner, err := ownerOf(args)
			if err != nil {
				return err
			}
			return release(cmd.Context(), a, args[0], owner)
		},
	}
}

func release(ctx context.Context, a *app, name, owner string) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	d, err := a.open(ctx, stores.OpenExisting)
	if err != nil {
		return orSignal(ctx, err)
	}
	defer a.close(d)
	if !d.Features().Resumes {
		return fmt.Errorf("release %q: %w: its leases end with the process that acquired them", name, leasehold.ErrUnsupported)
	}
	if err := releaseOwned(ctx, d, name, owner, 0); err != nil {
		return orSignal(ctx, fmt.Errorf("release %q: %w", name, err))
	}
	return a.print(releasedView{name, true}, func(w io.Writer) { fmt.Fprintf(w, "released %s\n", shown(name)) })
}

// releaseOwned releases a lease by its owner, in one call to the store. After a Resume, the lease
// could end before its Release.
func releaseOwned(ctx context.Context, d driver.Driver, name, owner string, linger time.Duration) error {
	claim, err := d.Claim(driver.Request{Resource: name, Owner: owner, TTL: scriptTTL})
	if err != nil {
		return err
	}
	return claim.Release(ctx, driver.End{Linger: linger})
}

// releasedView is the output of release.
type releasedView struct {
	Name     string `json:"name"`
	Released bool   `json:"released" about:"always true; otherwise the command fails"`
}

// ownerOf returns the owner from the arguments or the environment.
func ownerOf(args []string) (string, error) {
	owner := os.Getenv("LEASEHOLD_OWNER")
	if len(args) > 1 {
		owner = args[1]
	}
	if owner == "" {
		return "", usageErrorf("OWNER is missing\nGive it as an argument or in LEASEHOLD_OWNER; leasehold acquire prints it")
	}
	return owner, nil
}

// leaseView is the output of acquire, renew and reserve. Only it and a warning of reserve have a whole
// owner.
type leaseView struct {
	Name  string  `json:"name"`
	Owner string  `json:"owner" about:"the whole owner, a secret with which the lease is renewed and released"`
	Token uint64  `json:"token,string" about:"the fencing token"`
	TTL   float64 `json:"ttl_seconds" about:"time until the lease must be considered over"`
}

// viewLease returns the output for a lease, or an error if it is over after a pause.
func viewLease(l *leasehold.Lease) (leaseView, error) {
	// The time left is rounded down: by then the script must have finished or renewed the lease.
	left := time.Until(l.Deadline()).Truncate(time.Millisecond)
	if left <= 0 {
		return leaseView{}, fmt.Errorf("%s: %w: %w", shown(l.Name()), leasehold.ErrLost, leasehold.ErrExpired)
	}
	return leaseView{l.Name(), l.Owner(), l.Token(), left.Seconds()}, nil
}

func (a *app) printLease(l *leasehold.Lease) error {
	v, err := viewLease(l)
	if err != nil {
		return err
	}
	err = a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "export LEASEHOLD_OWNER=%s\n", shellQuote(v.Owner))
		fmt.Fprintf(w, "export LEASEHOLD_TOKEN=%d\n", v.Token)
		fmt.Fprintf(w, "export LEASEHOLD_TTL=%s\n", strconv.FormatFloat(v.TTL, 'f', -1, 64))
	})
	if _, ok := terminal(a.stdout); ok && err == nil && !a.json {
		fmt.Fprintf(a.stderr, "leasehold: %s is held for %s. A script evaluates these lines: leasehold help acquire\n",
			shown(v.Name), spanText(time.Duration(v.TTL*float64(time.Second))))
	}
	return err
}

// failEval prints a command that fails, so that a script's eval of the output fails too. Without
// output eval would succeed. It is for commands whose output scripts evaluate, and for misspelt
// command names.
func (a *app) failEval(ran *cobra.Command, err error) {
	if _, ok := terminal(a.stdout); err == nil || ok || a.json || !slices.Contains([]string{"leasehold", "acquire", "renew"}, ran.Name()) {
		return
	}
	fmt.Fprintf(a.stdout, "(exit %d)\n", exitCode(err)) // if the reader is gone, there is no eval
}

// shellQuote returns s quoted as one word of a POSIX shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// trace reports events of leases with --verbose. Events of waits are reported by watch.
func (a *app) trace(_ context.Context, e leasehold.Event) {
	switch e.Step {
	case leasehold.StepQueued:
		a.queued.Store(&e.Name)
		a.detail(onWait, e.Name, 0, "waiting for %s", shown(e.Name))
	case leasehold.StepGranted:
		a.detail(onGrant, e.Name, e.Token, "acquired %s after %s, token %d", shown(e.Name), spanText(e.Took), e.Token)
	case leasehold.StepReleased:
		a.detail(onRelease, e.Name, e.Token, "released %s after %s", shown(e.Name), spanText(e.Took))
	}
}
