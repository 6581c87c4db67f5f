package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

// reservedFor is the default length of a reservation.
const reservedFor = 8 * time.Hour

// A reservation holds the arguments of reserve.
type reservation struct {
	name, reason string
	length, wait span
}

func newReserveCommand(a *app) *cobra.Command {
	r := reservation{length: span(reservedFor)}
	cmd := &cobra.Command{
		Use:   "reserve --reason TEXT [flags] NAME",
		Short: "Hold a lock yourself, for hours",
		Long: `Reserve NAME for a person: for maintenance, or while you look into a failure. Others
see who has it and why. The reservation ends after --for, or when you release it: the
output has the command for that. Nothing renews it. If NAME is busy the command fails at
once; with --wait it waits in the queue.

Every holder of NAME is kept out, programs included. To hold NAME while one command runs,
use "leasehold run". A lock store whose leases end with the process, such as ZooKeeper,
has no reservations.

# Exit codes
  1   NAME is busy, or the wait was removed from the queue
  64  wrong usage
  69  the store is unreachable, read-only or full
  77  the store denies access`,
		Example: "  leasehold reserve deploy --reason 'migrating the database'\n  leasehold reserve deploy --reason 'release freeze' --for 48h --wait 10m",
		Args:    argNames("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.name = args[0]
			return r.run(cmd.Context(), a)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.reason, "reason", "", "`TEXT` for those who find NAME taken")
	flags.Var(&r.length, "for", "reserve it for `LENGTH`: seconds, or 30m, 8h")
	flags.VarP(&r.wait, "wait", "w", "wait at most `TIME` for other holders (default 0)")
	return cmd
}

func (r *reservation) run(ctx context.Context, a *app) error {
	switch {
	case strings.TrimSpace(plain(r.reason)) == "":
		return usageErrorf("--reason is missing\nSay why, for those who find %s taken", shown(r.name))
	case r.length == 0:
		return usageErrorf("--for 0: a reservation needs a length, such as 8h")
	}
	signal.Ignore(syscall.SIGPIPE) // a closed pipe must not end the process before it has given back its lease
	return a.with(ctx, stores.Open, r.options(a), func(ctx context.Context, locks *leasehold.Locker) error {
		a.sayLocal()
		if !locks.Features().Resumes {
			return fmt.Errorf("reserve %q: %w: its leases end with this process", r.name, leasehold.ErrUnsupported)
		}
		return r.hold(ctx, a, locks)
	})
}

func (r *reservation) options(a *app) *leasehold.Options {
	return &leasehold.Options{TTL: time.Duration(r.length), Details: leasehold.Details{Kind: leasehold.HolderReserved, Text: plain(r.reason)}, Trace: a.trace}
}

// hold acquires the lease and prints it, or leaves nothing behind. If the store does not confirm that,
// it prints how to end the reservation.
func (r *reservation) hold(ctx context.Context, a *app, locks *leasehold.Locker) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.wait)+answerBound)
	defer cancel()
	length := time.Duration(r.length)
	// If the answer is lost, nobody knows the owner. NAME must not be kept for hours then.
	lease, err := locks.Acquire(ctx, r.name, leasehold.NoRenew(), leasehold.Wait(time.Duration(r.wait)), leasehold.TTL(min(length, scriptTTL)))
	if err != nil {
		return err
	}
	warn := sync.OnceFunc(func() {
		a.tell(onWarning, r.name, 0, "warning: %s may stay reserved for %s\n%s",
			shown(r.name), spanText(length), toEnd(a, r.name, lease.Owner()))
	})
	if err = lease.Extend(ctx, length); err == nil {
		err = r.print(a, lease)
	} else if !errors.Is(err, leasehold.ErrLost) {
		warn() // now, because a second signal ends this process at once
	}
	if err == nil {
		return nil
	}
	released := lease.Release(ctx) // nobody has seen the owner
	if released != nil && !errors.Is(released, leasehold.ErrLost) {
		warn()
	}
	return errors.Join(err, released)
}

// toEnd says how to end a reservation.
func toEnd(a *app, name, owner string) string {
	return fmt.Sprintf("To end it: %s %s", a.line("release", name), owner)
}

// print prints how to end the reservation, because nobody else knows its owner.
func (r *reservation) print(a *app, lease *leasehold.Lease) error {
	v, err := viewLease(lease)
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "reserved %s for %s\n", shown(v.Name), spanText(time.Duration(r.length)))
		fmt.Fprintln(w, toEnd(a, v.Name, v.Owner))
	})
}
