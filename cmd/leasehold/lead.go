//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/guardian"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

const leadLong = `Campaign for NAME, run COMMAND while leading, and campaign again when the term is
over, until a signal ends it. Start it on every machine that may lead: one of them
runs COMMAND. If that machine dies, the next one leads once the lease is over. If only
"leasehold lead" is killed, the next one leads as soon as nothing of COMMAND is left. On
ZooKeeper and Redlock it then leads once the lease is over.

# Terms
A term ends when COMMAND exits, whatever its exit code, or when the lease is lost or
evicted. COMMAND and everything it started are then ended as by "leasehold run": before
anyone else leads, unless the lease was evicted or the store lost it. The next term
starts COMMAND anew, with a larger LEASEHOLD_TOKEN.

After COMMAND exits, this machine pauses before it campaigns again, so that another can
take over. The pause is half a second at first, and doubles up to 30 s while COMMAND
exits sooner than the last pause took. Nothing is held during the pause, and standard
error says when it ends.

If an operator of the service removes this machine from the queue, standard error says so,
and it campaigns again.

COMMAND has the same environment as under "leasehold run".

# Preference
With --preference, a leader steps down while a candidate of higher preference waits.
COMMAND gets SIGTERM and, --grace later, SIGKILL; standard error says why. The other then
leads, and this machine campaigns again. Without --preference a leader steps down for
nobody, and as a candidate it has 0. A new version that is rolled out prefers itself if
N is the number of its build. If a preferred candidate dies while it waits, nobody leads
until its place in the queue ends, after a few seconds.

# When the store fails
If the store cannot be reached or refuses at the start, "leasehold lead" fails at once,
as nothing has run yet. Later the campaign continues: standard error says why, once for
each new reason, and says when the store answers again. With --json these are events.

# Signals
TERM, INT, HUP and QUIT end the campaign. While COMMAND runs they are passed on to it,
and "leasehold lead" ends when COMMAND has exited; only then another leads.

# Exit codes
  N      COMMAND's own, if it exits after a signal
  128+n  signal n ended the campaign
  64     wrong usage
  69     the store is unreachable, read-only or full at the start
  70     internal error
  77     the store denies access at the start
  126    COMMAND cannot be run
  127    COMMAND was not found`

// A lead is one run of "leasehold lead".
type lead struct {
	child
	term  span // the TTL
	rank  int  // its preference, if ranks
	ranks bool // --preference was given
	about detailFlags

	caught chan os.Signal

	lastTerm

	wait *wait         // reports the wait for the next term
	away time.Duration // the pause before the next term
}

// A lastTerm is what is left of the last term.
type lastTerm struct {
	leave     func()      // ends its guardian
	will      string      // its legacy
	unknown   atomic.Bool // the store has not confirmed its release
	last      error       // outcome of its COMMAND
	signalled bool        // COMMAND exited after the signal that ended the campaign, and not because the term was over
}

// The pause between two campaigns is between firstAway and lastAway.
const firstAway, lastAway = 500 * time.Millisecond, 30 * time.Second

// errExited ends a term whose COMMAND has exited by itself.
var errExited = errors.New("the command has exited")

func newLeadCommand(a *app) *cobra.Command {
	l := &lead{child: newChild(a), term: span(leasehold.DefaultTTL), caught: make(chan os.Signal, 16), lastTerm: lastTerm{leave: func() {}}}
	cmd := &cobra.Command{
		Use:   "lead [flags] NAME -- COMMAND [ARG…]",
		Short: "Run a command on one machine at a time, again and again",
		Long:  leadLong,
		Example: `  leasehold --store redis://host/0 lead scheduler -- ./scheduler
  leasehold show scheduler                      # who leads
  leasehold evict scheduler --owner 4f1a22c9 --reason 'too slow'`,
		ValidArgsFunction: completeName(a, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.parse(cmd, args, false); err != nil {
				return err
			}
			if err := l.checkTimes(cmd, "--ttl", time.Duration(l.term)); err != nil {
				return err
			}
			if l.ranks = cmd.Flags().Changed("preference"); max(l.rank, -l.rank) > details.MostPreference {
				return usageErrorf("--preference %d is beyond %d", l.rank, details.MostPreference)
			}
			if err := l.describe(&l.about); err != nil {
				return err
			}
			return l.run(context.WithoutCancel(cmd.Context()))
		},
	}
	flags := cmd.Flags()
	l.addFlags(flags)
	flags.Var(&l.term, "ttl", "lease NAME for `TIME`: seconds, or 5m")
	flags.IntVar(&l.rank, "preference", 0, "step down while a candidate of more than `N` waits")
	l.about.add(flags, "leads")
	return cmd
}

// run campaigns until a signal ends the campaign.
func (l *lead) run(ctx context.Context) error {
	if err := guardian.Check(); err != nil {
		return internalErrorf("%w", err)
	}
	l.lostCode = exitLost
	l.trouble.campaigns = true
	catch(l.caught)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	over := make(chan struct{})
	defer close(over)
	go l.pass(end, over)
	opts := l.options()
	opts.Trace = leasehold.TraceAll(opts.Trace, l.unreleased)
	locks, done, err := l.app.locker(ctx, stores.Open, opts)
	if err != nil {
		return orSignal(ctx, err)
	}
	defer done()
	l.app.sayLocal()
	l.heirless = !locks.Features().Resumes
	if err := l.app.refuseNested(ctx, locks, l.name); err != nil {
		return orSignal(ctx, err)
	}
	err = l.campaign(ctx, locks)
	if l.signalled { // COMMAND's reaction to the signal becomes this program's exit
		return l.last
	}
	return orSignal(ctx, err)
}

// unreleased reports a term whose release the store has not confirmed, and repeats the release in
// the background. If the program ends first, the guardian continues with it.
func (l *lead) unreleased(_ context.Context, e leasehold.Event) {
	if e.Step == leasehold.StepUnknown {
		l.unknown.Store(true)
		l.app.tell(onError, e.Name, e.Token, "%s", unconfirmed(e.Err, l.ttl))
		go releaseLegacy(l.will, time.Time{}, time.Now().Add(l.ttl))
	}
}

// campaign leads term after term. In the pauses between them, another candidate may lead.
func (l *lead) campaign(ctx context.Context, locks *leasehold.Locker) error {
	var opts []leasehold.Option
	if l.ranks {
		opts = append(opts, leasehold.Preference(l.rank))
	}
	for again := false; ; again = true {
		l.wait = l.app.watch(locks, l.name, l.who, shares{})
		err := locks.Lead(ctx, l.name, func(term context.Context) error { return l.serve(term, ctx) }, opts...)
		if !l.unknown.Load() {
			l.leave()
		}
		l.wait.ended()
		away := firstAway
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errExited):
			away = l.away
		case removed(err):
		case again && passes(err) && !errors.Is(err, driver.ErrCorrupt):
			// The store failed between two campaigns: elect a leader when it is back.
		default:
			return err
		}
		if pause.For(ctx, away) != nil {
			return context.Cause(ctx)
		}
	}
}

// stayAway sets the pause after a command that ran for the given time.
func (l *lead) stayAway(lived time.Duration) {
	if lived > l.away {
		l.away = firstAway
	} else {
		l.away = min(2*l.away, lastAway)
	}
	l.app.tell(onExit, l.name, 0, "the command ended with exit code %d after %s; campaigning again in %v",
		exitCode(l.last), spanText(lived), l.away)
}

// pass passes signals on to the command until over closes. Those that end a program end the
// campaign first.
func (l *lead) pass(end context.CancelCauseFunc, over <-chan struct{}) {
	for {
		select {
		case sig := <-l.caught:
			if guardian.Ends(sig) {
				end(bySignal(sig.(syscall.Signal), nil))
			}
			select {
			case l.signals <- sig:
			default: // no command has run for a long time
			}
		case <-over:
			return
		}
	}
}

// serve is one term. The end of the campaign does not end the command. The signal that ends the
// campaign also reaches the command, which can finish in its own time. ctx ends a moment after the
// campaign, so both are checked at the start.
func (l *lead) serve(ctx, campaign context.Context) error {
	l.leave() // the last term is over, because this one was granted
	l.unknown.Store(false)
	lease, _ := leasehold.FromContext(ctx)
	l.will = l.legacy([]*leasehold.Lease{lease})
	l.failed.Store(nil)      // of an earlier term
	for len(l.signals) > 0 { // signals from before the term, when there was no command
		<-l.signals
	}
	if campaign.Err() != nil || ctx.Err() != nil {
		return nil
	}
	l.wait.ended()
	l.app.detail(onGrant, l.name, lease.Token(), "leading %s, token %d", shown(l.name), lease.Token())
	began := time.Now()
	var result guardian.Result
	var err error
	reign, stop := outrankable(ctx, lease)
	defer stop()
	result, l.leave, err = l.child.run(reign, lease, lease)
	l.last = l.verdict(ending{Result: result, err: err, lost: context.Cause(reign)})
	cut := result.Cut || reign.Err() != nil || errors.Is(err, guardian.ErrLate)
	l.signalled = campaign.Err() != nil && !cut
	switch {
	case l.signalled:
		return nil
	case errors.As(err, new(*guardian.StartError)):
		return l.last
	case interrupted(result): // Ctrl-C at the terminal is meant for the whole program
		passOn(result)
		return l.last
	}
	l.app.report(l.last)
	if cut || ctx.Err() != nil {
		return nil // the lease ended the command, so the next term may begin at once
	}
	l.stayAway(time.Since(began))
	return errExited
}

// outrankable returns a context that ends with the lease, or when a candidate of higher preference
// waits. Unlike term, it does not end with the campaign.
func outrankable(term context.Context, lease *leasehold.Lease) (reign context.Context, stop func()) {
	reign, end := context.WithCancelCause(lease.Context())
	leave := context.AfterFunc(term, func() {
		if cause := context.Cause(term); errors.Is(cause, leasehold.ErrOutranked) {
			end(cause)
		}
	})
	return reign, func() { leave(); end(nil) }
}
