//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/guard"
	"github.com/spf13/cobra"
)

const leadLong = `Campaign for NAME, run COMMAND while leading, and campaign again when the term is over,
until a signal ends it. Start it on every machine that may lead: one of them runs COMMAND.

A term ends when COMMAND exits, whatever its exit code, and the next in line leads; or when
the lease is lost or evicted: then COMMAND and everything it
started is ended, as "leasehold run" does, before anybody else leads. The next term starts
COMMAND anew, with a larger LEASEHOLD_TOKEN. When a leader dies, the next one leads within
the TTL.

TERM, INT, HUP and QUIT end the campaign, or are passed on to COMMAND and end it all when
COMMAND has exited; only then another leads. COMMAND sees the same environment as under
"leasehold run".

Exit codes: COMMAND's own after a signal, else 128+n; 64 wrong usage; 69 store unreachable
at the start; 70 internal error; 126 COMMAND cannot be run; 127 COMMAND not found.`

// A lead is one "leasehold lead".
type lead struct {
	child
	term span // TTL

	caught chan os.Signal

	last      error // how COMMAND ended
	signalled bool  // it had the signal that ends all
}

func newLeadCommand(a *app) *cobra.Command {
	l := &lead{child: newChild(a), term: span(leasehold.DefaultTTL), caught: make(chan os.Signal, 16)}
	cmd := &cobra.Command{
		Use:   "lead [flags] NAME -- COMMAND [ARG…]",
		Short: "Run a command on one machine at a time, again and again",
		Long:  leadLong,
		Example: `  leasehold lead scheduler -- ./scheduler
  leasehold show scheduler                      who leads
  leasehold evict scheduler --owner 4f1a22c9 --reason 'too slow'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.parse(cmd, args, false); err != nil {
				return err
			}
			if err := l.checkTimes(cmd, "--ttl", time.Duration(l.term)); err != nil {
				return err
			}
			return l.run(context.WithoutCancel(cmd.Context()))
		},
	}
	flags := cmd.Flags()
	l.addFlags(flags)
	flags.Var(&l.term, "ttl", "`LENGTH` of the lease: seconds, or with a unit such as 90s or 5m")
	flags.StringVar(&l.note, "note", "", "`TEXT` for people who ask who leads")
	return cmd
}

// run campaigns until a signal ends it.
func (l *lead) run(ctx context.Context) error {
	l.lostCode = exitLost
	guard.Catch(l.caught, guard.Forwarded...)
	guard.Catch(make(chan os.Signal), syscall.SIGPIPE) // a reader of our errors that is gone must not end us
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	over := make(chan struct{})
	defer close(over)
	go l.pass(end, over)
	locks, done, err := l.app.locker(ctx, l.options())
	if err != nil {
		return orSignal(ctx, err)
	}
	defer done()
	if err := l.refuseNested(ctx, locks, l.name); err != nil {
		return orSignal(ctx, err)
	}
	err = locks.Lead(ctx, l.name, func(term context.Context) error { return l.serve(term, ctx) })
	if l.signalled { // its answer to the signal is ours
		return l.last
	}
	return orSignal(ctx, err)
}

// pass passes signals on to the command until over; those that end a program end the
// campaign before.
func (l *lead) pass(end context.CancelCauseFunc, over <-chan struct{}) {
	for {
		select {
		case sig := <-l.caught:
			switch sig {
			case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
				end(&exitError{code: exitSignal + int(sig.(syscall.Signal))})
			}
			select {
			case l.signals <- sig:
			default: // nobody has listened for long
			}
		case <-over:
			return
		}
	}
}

// serve is one term. The command is not ended with the campaign but by the signal that ends
// it, so that it can take its time to finish. The end of the campaign comes to ctx a moment
// later, and may not have when the term begins.
func (l *lead) serve(ctx, campaign context.Context) error {
	for len(l.signals) > 0 { // from before the term: there was no command
		<-l.signals
	}
	if campaign.Err() != nil || ctx.Err() != nil {
		return nil
	}
	lease, _ := leasehold.FromContext(ctx)
	l.say("leading %s, token %d", shown(l.name), lease.Token())
	result, err := l.child.run(lease, lease)
	l.last = l.verdict(ending{Result: result, err: err, lost: context.Cause(lease.Context())})
	l.signalled = campaign.Err() != nil && lease.Context().Err() == nil
	var start *guard.StartError
	switch {
	case l.signalled:
		return nil
	case errors.As(err, &start):
		return l.last
	case interrupted(result): // by somebody at the terminal, who means all of it
		passOn(result)
		return l.last
	}
	l.say("the term is over, exit code %d", exitCode(l.last))
	l.app.report(l.last)
	return nil
}

// say tells with --verbose what happens.
func (l *lead) say(format string, args ...any) {
	if l.app.verbose {
		fmt.Fprintf(l.app.stderr, "leasehold: "+format+"\n", args...)
	}
}
