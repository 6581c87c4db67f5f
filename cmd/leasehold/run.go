//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/guardian"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

const runLong = `Hold NAME while COMMAND runs, and exit with COMMAND's exit code. The letters of the
flags mean what they mean to flock(1).

The lease is renewed until COMMAND ends. When it is lost all the same (the store cannot
be reached, somebody evicted it, this machine was too slow), COMMAND and everything it
started get SIGTERM and, --grace later, SIGKILL: early enough that all of it is dead
before anybody else is let in. The same happens when "leasehold run" itself is killed or
stopped, with -9 or -STOP too: a process beside it, the lock-guardian, sees to that. On Linux
"killall leasehold" and "pkill -f leasehold" do not reach it. What kills both at one moment,
such as "killall /usr/bin/leasehold", which goes by the file, kills COMMAND as well but leaves
what COMMAND has started: only the token then tells its writes from the next holder's.

On Linux a lease counts the time that the machine sleeps: if it ended meanwhile, COMMAND is ended when
the machine wakes up, when another may hold the lock already. Elsewhere (macOS) COMMAND may go on for as
long as the machine slept, until the next renewal or the deadline.

If the lock-guardian alone is stopped, COMMAND goes on. "leasehold run" warns after a few seconds and
resumes it with SIGCONT. If that does not help, "leasehold run" itself ends what COMMAND leaves
running and releases the lock when COMMAND ends. COMMAND's exit code stays what it is.

When "leasehold run" was killed, the lock is released as soon as nothing of COMMAND is left
(with --at-least it is kept for the rest of that), so that nobody waits for the TTL. The TTL
stands, also in place of --at-least, where "leasehold run" is stopped or the lock-guardian was
killed too, where the store cannot be reached until then, and on ZooKeeper, whose sessions end by
themselves only. The same is so when COMMAND has ended and the store does not answer: "leasehold
run" says so after 5 s, and exits with COMMAND's code.

The lock is released when COMMAND has ended. Unlike with flock(1), what COMMAND leaves
running in the background is ended then (SIGTERM, --grace, SIGKILL), because the lock
would no longer cover it. Only what another service runs for COMMAND (systemd-run, at, a
container engine) or what runs as another user is out of reach.

With -n and -w all of it is bounded until NAME is held, connecting too: exit code 69 tells
that the store has not answered within 2 s, or within -w SECONDS where that is longer.

COMMAND keeps standard input, output, error and all other open files as they are, and
gets TERM, INT, HUP, QUIT, USR1, USR2 and WINCH passed on. While waiting for the lock, and for
the store when COMMAND has ended, the first four end the wait. Ctrl-Z suspends COMMAND and
"leasehold run" together: the lease is then not renewed, so that COMMAND is ended unless it is
resumed within the TTL.

With --also, COMMAND runs when NAME and all the others are held: all or nothing, in an order
that never deadlocks, and it is ended when any of them is lost. --at-least keeps all of them
held, not only NAME.

A store that is away when COMMAND ends must hear of --at-least, and with --once-per of --at-most
and --retry-on-failure, before the lease has ended by itself: until then "leasehold run" tries
again, and says until when. Where it fails, standard error says that COMMAND may run again too soon.

With --once-per, COMMAND runs at most once in each PERIOD, whichever of many servers start it,
and although their clocks differ by minutes: NAME is held for nine tenths of PERIOD from the
start, and who comes meanwhile is told that it is busy, at once (see --ok-if-busy; -w bounds the
store's answers alone). The lease
is not renewed. If "leasehold run" is killed, nothing is released, and nobody else runs COMMAND
before the lease ends: --at-most, or else the nine tenths. What ends with exit code 69 has not run
it, and keeps others from it for 10 s at most, unless the store went away within the moment of the
grant. Use the same PERIOD everywhere, and "leasehold show NAME" to see who ran it, when, and with
which exit code. "leasehold reset NAME" lets it run again before its time; with --retry-on-failure
a COMMAND that ended with another exit code than 0 leaves NAME free, so that whoever is next to
start it runs it again within PERIOD. COMMAND can hold others by a "leasehold run" of its own, but
there is no --also: they would be held for all of PERIOD.

COMMAND sees in its environment
  LEASEHOLD_NAME      NAME
  LEASEHOLD_TOKEN     the fencing token: larger than every earlier holder's
  LEASEHOLD_TOKENS    the tokens of all names, one "TOKEN NAME" a line
  LEASEHOLD_OWNER     the secret that renews and releases the lease
  LEASEHOLD_DEADLINE  when the lease ends unless it is renewed, for people
  LEASEHOLD_STORE     the store, without its password
  LEASEHOLD_HELD      owners of all enclosing runs: a nested run on a NAME that is
                      already held by one of them is refused, shared or not, because it
                      could only wait for itself

Exit codes: COMMAND's own; 128+n when signal n ended it or a wait; 1 busy (-E);
64 wrong usage; 69 store unreachable; 70 internal error; 75 lease lost
(--lost-exit-code); 77 store denies access: wrong password, or a right is missing;
126 COMMAND cannot be run; 127 COMMAND not found.
When Ctrl-C ended COMMAND or a wait, "leasehold run" ends by SIGINT too, which a shell shows
as 130 and stops its script for, as with flock(1). That is so as well when COMMAND catches it
and exits with 130; with any other exit code the script goes on.

If the store fails during the wait, "leasehold run" says why, goes on waiting, and says when the
store answers again. While it waits on a terminal, the last line says for how long, who holds NAME, and which place in
the queue is ours (not with TERM=dumb). When the lease is lost, or about to end for want of a
renewal, standard error says so as COMMAND is being ended, and again at the end. With -v each
line has the time: the store and what is wrong with it, the wait and who is in the way, the
grant, renewals that fail, what COMMAND has left running, the release.

--on-acquire and --on-lost are for those who want to hear of it. STRING is run by $SHELL, or /bin/sh,
with the environment of COMMAND; it reads nothing, what it writes goes to standard error, and
after 10 s it is killed with all of its process group. The first runs beside COMMAND, the second when
the lease was lost and COMMAND is gone, with the reason in LEASEHOLD_LOST. No renewal, end of
COMMAND or release waits for them, only "leasehold run" itself before it exits, whose exit code
they do not change: where they fail, standard error says so. The lock does not cover them: what
it guards is not theirs to write. They are left alone when "leasehold run" is killed.

With --metrics-file, FILE has gauges of the last run for the textfile collector of Prometheus'
node exporter, by the label "name": leasehold_run_held, _waiting, _wait_seconds, _hold_seconds,
_start_timestamp_seconds, _success_timestamp_seconds (kept over runs that fail), _renewal_failures,
_lost, and _exit_code when it has ended. It is replaced as a whole at each change, and nothing waits
for that but the exit, a second at most. Where it cannot be written, standard error says so once
and COMMAND runs all the same. Use a FILE for each NAME, which ends in .prom.

Nothing is written to standard output. With --json an error is one JSON object on
standard error, and so is what keeps a wait from its end (warning, recovered); with -v each line is
one, with "time", "event" and "text": store, warning, waiting, recovered, acquired, renewal_failed,
ending, exited, released, error.`

const runExample = `  leasehold run backup -- ./backup.sh
  leasehold run -n --ok-if-busy report -- make report     cron: skip if still running
  leasehold run -w 2.5 -E 9 db -- ./migrate               wait 2.5 s, then exit with 9
  leasehold run --slots 3 gpu -- ./train.py
  leasehold run --at-least 1m hourly -- ./job             no second start within a minute
  leasehold run --also stock/7 stock/3 -- ./move          both or neither
  leasehold --store redis://host/0 run --once-per 24h --at-most 1h --ok-if-busy --key daily-report -- ./report
                                                          in the crontab of every server
  leasehold run --metrics-file /var/lib/node_exporter/backup.prom backup -- ./backup.sh
  leasehold run --on-lost 'logger -p err "lost: $LEASEHOLD_LOST"' db -- ./migrate
  leasehold run deploy -c 'git pull && make install'`

// A run is one "leasehold run".
type run struct {
	child
	period
	claim    claimFlags
	also     []string
	busyCode int
	okIfBusy bool

	metricsFile string
}

func newRunCommand(a *app) *cobra.Command {
	r := &run{child: newChild(a)}
	cmd := &cobra.Command{
		Use:     "run [flags] NAME -- COMMAND [ARG…]",
		Short:   "Hold a lock while a command runs",
		Long:    runLong,
		Example: runExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.parse(cmd, args); err != nil {
				return err
			}
			r.metrics = newRunMetrics(a, r.metricsFile, r.name)
			err := r.run(context.WithoutCancel(cmd.Context()))
			r.metrics.ended(exitCode(err))
			r.hooks.running.Wait()
			return err
		},
	}
	flags := cmd.Flags()
	r.claim.add(flags, leasehold.DefaultTTL)
	flags.StringArrayVar(&r.also, "also", nil, "hold `NAME2` too, all or nothing; may be repeated")
	flags.IntVarP(&r.busyCode, "busy-exit-code", "E", exitBusy, "exit with `N` when NAME is busy")
	flags.BoolVar(&r.okIfBusy, "ok-if-busy", false, "exit with 0, silently, when NAME is busy")
	flags.IntVar(&r.lostCode, "lost-exit-code", exitLost, "exit with `N` when the lease was lost")
	flags.StringVar(&r.metricsFile, "metrics-file", "", "write metrics to `FILE`, for Prometheus' textfile collector")
	r.hooks.addFlags(flags)
	r.period.addFlags(flags)
	r.child.addFlags(flags)
	return cmd
}

// inherit ends this process if it is a guardian. One that comes this far has leases to release.
func inherit() { guardian.Inherit(releaseLegacy) }

func (r *run) parse(cmd *cobra.Command, args []string) error {
	named := cmd.Flags().Changed("key")
	r.name = r.key
	if err := r.child.parse(cmd, args, named); err != nil {
		return err
	}
	if !named && cmd.Flags().Changed("key") {
		return usageErrorf("NAME and --key exclude each other")
	}
	for _, name := range r.also {
		if err := checkName(name); err != nil {
			return err
		}
	}
	return r.checkFlags(cmd)
}

func (r *run) checkFlags(cmd *cobra.Command) error {
	for flag, code := range map[string]int{"busy-exit-code": r.busyCode, "lost-exit-code": r.lostCode} {
		if code < 0 || code > 255 {
			return usageErrorf("--%s %d is no exit code: 0 to 255", flag, code)
		}
	}
	if err := r.period.check(cmd, &r.claim); err != nil {
		return err
	}
	flag, ttl := r.period.ttl(r.claim.ttl)
	return r.checkTimes(cmd, flag, ttl)
}

// run is the whole life: wait, hold, release.
func (r *run) run(ctx context.Context) error {
	opts, err := r.claim.options()
	if err != nil {
		return err
	}
	opts = append(opts, r.period.options()...)
	if err := guardian.Check(); err != nil {
		return internalErrorf("%w", err)
	}
	r.catch()
	r.note = r.claim.note
	bounded, stop := r.claim.bounded(ctx)
	defer stop()
	locks, done, err := r.open(bounded)
	if err != nil {
		return err
	}
	w := r.app.watch(locks, r.name, r.note, r.claim.slots)
	leases, err := r.acquire(bounded, locks, opts)
	w.ended()
	if err != nil {
		w.done()
		quit(bounded, done)
		return err
	}
	r.metrics.granted()
	r.keep = time.Duration(r.atLeast)
	// A job that was begun in its period and killed in the middle counts as run.
	r.fixed = r.oncePer > 0
	r.heirless = r.fixed || !locks.Features().Resumes
	err = r.hold(ctx, locks, leases)
	w.done()
	if errors.As(err, new(*signalError)) { // somebody does not want to wait
		brief, stop := context.WithTimeout(ctx, lastWord)
		defer stop()
		ctx = brief
	}
	quit(ctx, done)
	return err
}

// open opens the store. Signals that end a program end it.
func (r *run) open(ctx context.Context) (locks *leasehold.Locker, done func(), err error) {
	opening, stop := r.endedBySignal(ctx)
	opts := r.child.options()
	if r.oncePer > 0 {
		opts.TTL = 0 // the period's options say how long the lease is
	}
	locks, done, err = r.app.locker(opening, stores.Open, opts)
	stop()
	if stopped := signalIn(opening); stopped != nil {
		if err == nil {
			done()
		}
		err = stopped
	}
	return locks, done, err
}

// acquire waits for NAME. Signals that end a program end the wait.
func (r *run) acquire(ctx context.Context, locks *leasehold.Locker, opts []leasehold.Option) (*leasehold.Leases, error) {
	if r.period.retry && !locks.Features().Resumes {
		return nil, fmt.Errorf("--retry-on-failure: %w: a lease that outlives its process", leasehold.ErrUnsupported)
	}
	r.app.sayLocal()
	waiting, stop := r.endedBySignal(ctx)
	leases, err := r.tryAcquire(waiting, locks, opts)
	stop()
	stopped := signalIn(waiting)
	switch {
	case stopped != nil:
		if leases != nil { // granted at the same moment
			r.giveBack(ctx, locks, leases)
		}
		return nil, stopped
	case errors.Is(err, leasehold.ErrBusy) && r.okIfBusy:
		if r.app.verbose {
			r.app.report(err)
		}
		return nil, &exitError{code: 0}
	case errors.Is(err, leasehold.ErrBusy):
		return nil, &exitError{r.busyCode, err}
	}
	return leases, err
}

func (r *run) tryAcquire(ctx context.Context, locks *leasehold.Locker, opts []leasehold.Option) (*leasehold.Leases, error) {
	names := append([]string{r.name}, r.also...)
	for _, name := range names {
		if err := r.app.refuseNested(ctx, locks, name); err != nil {
			return nil, err
		}
	}
	if r.oncePer == 0 { // who has waited for the end of the period would run in it once more
		opts = append(opts, r.claim.waiting()...)
	}
	return locks.AcquireAll(ctx, names, opts...)
}

// hold runs the command under the leases and releases them.
func (r *run) hold(ctx context.Context, locks *leasehold.Locker, leases *leasehold.Leases) error {
	each := []*leasehold.Lease{leases.Lease(r.name)}
	for _, name := range leases.Names() {
		if name != r.name {
			each = append(each, leases.Lease(name))
		}
	}
	began := time.Now()
	result, leave, err := r.child.run(leases, each...)
	f := farewell{run: r, locks: locks, leases: leases, each: each, until: leases.Deadline(), took: time.Since(began)}
	f.left = time.Until(f.until)
	e := ending{Result: result, err: err}
	if leases.Context().Err() != nil {
		e.lost = context.Cause(leases.Context())
	}
	told := r.tellLost(e, each)
	f.code = exitCode(r.verdict(e))
	var stopped error
	e.released, stopped = f.say(ctx)
	if e.left = r.terms.ttl; r.fixed {
		e.left = time.Until(f.until)
	}
	// What is lost later ran out without an answer: it has covered the command.
	if e.lost == nil && errors.Is(e.released, leasehold.ErrLost) && time.Now().Before(f.until) {
		e.lost = leasehold.ErrLost
	}
	if !told {
		r.tellLost(e, each)
	}
	if e.released == nil || errors.Is(e.released, leasehold.ErrLost) {
		leave() // else the guardian goes on with it
	}
	passOn(result)
	verdict := r.verdict(e)
	if stopped != nil {
		return stopped
	}
	return verdict
}

// tellLost runs --on-lost if the leases ended before their time, and reports whether they did.
func (r *run) tellLost(e ending, leases []*leasehold.Lease) bool {
	early := e.lost != nil || e.Cut || errors.Is(e.err, guardian.ErrLate)
	if early {
		why := r.verdict(ending{Result: e.Result, err: e.err, lost: e.lost}).Error()
		r.metrics.endedEarly()
		r.hooks.start(r.app, "--on-lost", r.hooks.lost, r.environ(time.Now(), leases), "LEASEHOLD_LOST="+plain(why))
	}
	return early
}

// endedBySignal returns a context that ends with the first signal to end a program; its
// cause is then a signalError. The others have nobody to go to yet. After stop, signals
// stay for the command.
func (r *run) endedBySignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-r.signals:
				switch sig {
				case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
					cancel(bySignal(sig.(syscall.Signal), nil))
				}
			case <-stopped:
				return
			}
		}
	}()
	return ctx, func() {
		close(stopped)
		<-done
		cancel(nil)
	}
}
