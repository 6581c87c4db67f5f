package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

const waitLong = `Wait until nobody holds NAME, without taking it. The queue is not affected: its
first may hold NAME before this command ends. To be the next holder, use "leasehold
run".

A NAME that a finished job keeps others out of (--once-per, --at-least) is held. If
the store goes away during the wait, the command waits 15 s for it to come back.

# How it looks
The command has no place in the queue, so no engine wakes it. It looks again when the
last known lease ends, and after a twentieth of the time that it has waited: at least
once and at most twenty times a second.

# Exit codes
  0      NAME is free
  1      NAME was held all the time (-w)
  64     wrong usage
  69     the store is unreachable
  77     the store denies access
  128+n  signal n ended the wait`

// The pause between two looks is between lookSoonest and lookLatest. It is the lookShare-th part of
// the time waited so far.
const lookSoonest, lookLatest, lookShare = 50 * time.Millisecond, time.Second, 20

// A waitView is the output of "leasehold wait --json".
type waitView struct {
	Name   string  `json:"name"`
	Free   bool    `json:"free" about:"always true; otherwise the command fails"`
	Waited float64 `json:"waited_seconds"`
}

func newWaitCommand(a *app) *cobra.Command {
	var bound span
	cmd := &cobra.Command{
		Use:     "wait [flags] NAME",
		Short:   "Wait until a lock is free, without taking it",
		Long:    waitLong,
		Example: "  leasehold wait deploy && ./restart.sh\n  leasehold wait -w 60 deploy || echo 'still deploying'",
		Args:    argNames("NAME"),
	}
	cmd.Flags().VarP(&bound, "wait", "w", "wait at most `TIME`: seconds, or 5m (default no limit)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("wait") {
			bound = -1
		}
		return openAndWait(cmd.Context(), a, stores.OpenExisting, args[0], time.Duration(bound))
	}
	return cmd
}

// openAndWait opens the store and waits until nobody holds name. If bound is not negative, it is the
// longest wait, connecting included.
func openAndWait(ctx context.Context, a *app, open opener, name string, bound time.Duration) error {
	began := time.Now()
	if bound >= 0 {
		var cancel context.CancelFunc
		// The store has as much time as with -n of other commands.
		ctx, cancel = context.WithTimeout(ctx, bound+quickBound)
		defer cancel()
	}
	return a.with(ctx, open, nil, func(ctx context.Context, locks *leasehold.Locker) error {
		if err := a.refuseNested(ctx, locks, name); err != nil {
			return err
		}
		return waitFree(ctx, a, locks, name, began, bound)
	})
}

// waitFree waits until nobody holds name. If bound is not negative, it is the longest wait since
// began.
func waitFree(ctx context.Context, a *app, locks *leasehold.Locker, name string, began time.Time, bound time.Duration) error {
	answered := time.Now()
	var failed error // of the last look that was not cut off; nil: it had an answer
	for {
		state, err := inspectOnce(ctx, locks, name)
		now := time.Now()
		waited := now.Sub(began)
		switch {
		case err == nil && len(state.Holders) == 0:
			return a.print(waitView{name, true, waited.Seconds()}, func(io.Writer) {})
		case ctx.Err() != nil:
			return errors.Join(failed, context.Cause(ctx))
		case err == nil:
			answered = now
		case exitCode(err) != exitUnavailable || errors.Is(err, driver.ErrCorrupt) || now.Sub(answered) > answerBound:
			return err
		}
		failed = err
		next := untilNextLook(state, waited)
		switch {
		case bound < 0:
		case waited < bound:
			next = min(next, bound-waited)
		case err == nil:
			return &exitError{exitBusy, fmt.Errorf("%s is still held after %v\nSee who holds it: %s", shown(name), spanText(waited), a.line("show", name))}
		}
		if pause.For(ctx, next) != nil {
			return errors.Join(failed, context.Cause(ctx))
		}
	}
}

// inspectOnce inspects name within answerBound.
func inspectOnce(ctx context.Context, locks *leasehold.Locker, name string) (leasehold.State, error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	return locks.Inspect(ctx, name)
}

// untilNextLook returns the pause until the next look. It is shorter if the last known lease ends
// earlier.
func untilNextLook(state leasehold.State, waited time.Duration) time.Duration {
	next := min(max(waited/lookShare, lookSoonest), lookLatest)
	var left time.Duration
	for _, h := range state.Holders {
		left = max(left, h.Left)
	}
	if left > 0 {
		next = max(min(next, left), time.Millisecond)
	}
	return next
}
