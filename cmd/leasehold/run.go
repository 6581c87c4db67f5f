//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/guard"
	"github.com/spf13/cobra"
)

// minRunTTL leaves a guardian time to act, and renewals time to fail once.
const minRunTTL = time.Second

const runLong = `Hold NAME while COMMAND runs, and exit with COMMAND's exit code. The letters of the
flags mean what they mean to flock(1).

The lease is renewed until COMMAND ends. When it is lost all the same (the store cannot
be reached, somebody evicted it, this machine was too slow), COMMAND and everything it
started get SIGTERM and, --grace later, SIGKILL: early enough that all of it is dead
before anybody else is let in. The same happens when "leasehold run" itself is killed or
stopped, with -9 or -STOP too.

The lock is released when COMMAND has ended. Unlike with flock(1), what COMMAND leaves
running in the background is ended then (SIGTERM, --grace, SIGKILL), because the lock
would no longer cover it. Only what another service runs for COMMAND (systemd-run, at, a
container engine) or what runs as another user is out of reach.

COMMAND keeps standard input, output, error and all other open files as they are, and
gets TERM, INT, HUP, QUIT, USR1, USR2 and WINCH passed on. While waiting for the lock the
first four end the wait. Ctrl-Z suspends COMMAND and "leasehold run" together: the lease is
then not renewed, so that COMMAND is ended unless it is resumed within the TTL.

COMMAND sees in its environment
  LEASEHOLD_NAME      NAME
  LEASEHOLD_TOKEN     the fencing token: larger than every earlier holder's
  LEASEHOLD_OWNER     the secret that renews and releases the lease
  LEASEHOLD_DEADLINE  when the lease ends unless it is renewed, for people
  LEASEHOLD_STORE     the store
  LEASEHOLD_HELD      owners of all enclosing runs: a nested run on a NAME that is
                      already held by one of them is refused, shared or not, because it
                      could only wait for itself

Exit codes: COMMAND's own; 128+n when signal n ended it or the wait; 1 busy (-E);
64 wrong usage; 69 store unreachable; 70 internal error; 75 lease lost
(--lost-exit-code); 126 COMMAND cannot be run; 127 COMMAND not found.

Nothing is written to standard output. With --json an error is one JSON object on
standard error.`

const runExample = `  leasehold run backup -- ./backup.sh
  leasehold run -n --ok-if-busy report -- make report     cron: skip if still running
  leasehold run -w 2.5 -E 9 db -- ./migrate               wait 2.5 s, then exit with 9
  leasehold run --slots 3 gpu -- ./train.py
  leasehold run --at-least 1m hourly -- ./job             no second start within a minute
  leasehold run deploy -c 'git pull && make install'`

// A run is one "leasehold run".
type run struct {
	app      *app
	claim    claimFlags
	busyCode int
	lostCode int
	okIfBusy bool
	atLeast  span
	grace    span
	shell    string

	name    string
	argv    []string
	signals chan os.Signal // caught from the start, for the command
	renewed chan struct{}  // the deadline has moved
}

func newRunCommand(a *app) *cobra.Command {
	r := &run{app: a, signals: make(chan os.Signal, 16), renewed: make(chan struct{}, 1)}
	cmd := &cobra.Command{
		Use:     "run [flags] NAME -- COMMAND [ARG…]",
		Short:   "Hold a lock while a command runs",
		Long:    runLong,
		Example: runExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.parse(cmd, args); err != nil {
				return err
			}
			return r.run(context.WithoutCancel(cmd.Context()))
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows COMMAND is COMMAND's
	r.claim.add(flags, leasehold.DefaultTTL)
	flags.IntVarP(&r.busyCode, "busy-exit-code", "E", exitBusy, "exit with `N` when NAME is busy")
	flags.BoolVar(&r.okIfBusy, "ok-if-busy", false, "exit with 0, silently, when NAME is busy")
	flags.IntVar(&r.lostCode, "lost-exit-code", exitLost, "exit with `N` when the lease was lost")
	flags.Var(&r.atLeast, "at-least", "keep NAME held for `TIME` from the start, even if COMMAND is done sooner")
	flags.Var(&r.grace, "grace", "`TIME` from SIGTERM to SIGKILL (default a fifth of the TTL, at most 10s)")
	flags.StringVarP(&r.shell, "command", "c", "", "run `STRING` by $SHELL, or /bin/sh, in place of COMMAND")
	flags.BoolP("exclusive", "x", false, "share NAME with nobody (the default)")
	return cmd
}

// newGuardCommand is the guardian process of a run. It is not for people.
func newGuardCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "guard",
		Hidden:             true,
		DisableFlagParsing: true,
		SilenceErrors:      true,
		SilenceUsage:       true,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := guard.Main(args); err != nil {
				return &exitError{exitUsage, err}
			}
			return nil
		},
	}
}

// parse takes NAME and COMMAND from the arguments. Flags may stand on both sides of NAME.
func (r *run) parse(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageErrorf("NAME is missing\nUsage: %s", cmd.UseLine())
	}
	r.name, r.argv = args[0], args[1:]
	if len(r.argv) > 0 && strings.HasPrefix(r.argv[0], "-") {
		if err := cmd.Flags().Parse(r.argv); err != nil {
			return cmd.FlagErrorFunc()(cmd, err)
		}
		r.argv = cmd.Flags().Args()
	}
	if err := checkName(r.name); err != nil {
		return err
	}
	if cmd.Flags().Changed("command") {
		if len(r.argv) > 0 {
			return usageErrorf("-c and COMMAND exclude each other\nUsage: %s", cmd.UseLine())
		}
		r.argv = []string{shell(), "-c", r.shell}
	}
	if len(r.argv) == 0 {
		return usageErrorf("COMMAND is missing\nUsage: %s", cmd.UseLine())
	}
	return r.checkFlags(cmd)
}

// shell is chosen as flock(1) does.
func shell() string {
	if sh := os.Getenv("SHELL"); sh != "" {
		return sh
	}
	return "/bin/sh"
}

func (r *run) checkFlags(cmd *cobra.Command) error {
	ttl := time.Duration(r.claim.ttl)
	if exclusive, _ := cmd.Flags().GetBool("exclusive"); exclusive && (r.claim.shared || r.claim.slots > 0) {
		return usageErrorf("--exclusive excludes --shared and --slots")
	}
	if ttl < minRunTTL {
		return usageErrorf("--ttl %v is too short to end a command in time: at least %v", ttl, minRunTTL)
	}
	for flag, code := range map[string]int{"busy-exit-code": r.busyCode, "lost-exit-code": r.lostCode} {
		if code < 0 || code > 255 {
			return usageErrorf("--%s %d is no exit code: 0 to 255", flag, code)
		}
	}
	if !cmd.Flags().Changed("grace") {
		r.grace = span(min(ttl/5, 10*time.Second))
	}
	// The first half of the TTL is for renewals, one of which may fail.
	if most := ttl/2 - guard.Margin(ttl); time.Duration(r.grace) > most {
		return usageErrorf("--grace %v leaves a --ttl of %v no time to be renewed: at most %v, or a longer TTL", &r.grace, ttl, most)
	}
	return nil
}

// run is the whole life: wait, hold, release.
func (r *run) run(ctx context.Context) error {
	opts, err := r.claim.options()
	if err != nil {
		return err
	}
	if r.atLeast > 0 {
		opts = append(opts, leasehold.AtLeast(time.Duration(r.atLeast)))
	}
	guard.Catch(r.signals, guard.Forwarded...)
	// A reader of our errors that is gone must not end us while the lease is held.
	guard.Catch(make(chan os.Signal), syscall.SIGPIPE)
	locks, done, err := r.app.locker(ctx, r.options())
	if err != nil {
		return err
	}
	defer done()
	lease, err := r.acquire(ctx, locks, opts)
	if err != nil {
		return err
	}
	return r.hold(ctx, lease)
}

func (r *run) options() *leasehold.Options {
	trace := r.app.waitTrace()
	if trace == nil {
		trace = &leasehold.Trace{}
	}
	trace.Renewed = func(string, uint64, time.Duration) {
		select {
		case r.renewed <- struct{}{}:
		default:
		}
	}
	host, _ := os.Hostname() // a note without a host is still a note
	// Not the arguments: they may contain secrets, and others read the note.
	note := fmt.Sprintf("%s %s[%d]", host, filepath.Base(r.argv[0]), os.Getpid())
	return &leasehold.Options{TTL: time.Duration(r.claim.ttl), Note: note, Trace: trace}
}

// acquire waits for NAME. Signals that end a program end the wait.
func (r *run) acquire(ctx context.Context, locks *leasehold.Locker, opts []leasehold.Option) (*leasehold.Lease, error) {
	waiting, stop := r.endedBySignal(ctx)
	lease, err := r.tryAcquire(waiting, locks, opts)
	stop()
	var bySignal *exitError
	switch cause := context.Cause(waiting); {
	case errors.As(cause, &bySignal):
		if lease != nil { // granted at the same moment
			lease.Release(ctx) // its answer matters to nobody: it ends by itself
		}
		return nil, bySignal
	case errors.Is(err, leasehold.ErrBusy) && r.okIfBusy:
		if r.app.verbose {
			r.app.report(err)
		}
		return nil, &exitError{code: 0}
	case errors.Is(err, leasehold.ErrBusy):
		return nil, &exitError{r.busyCode, err}
	}
	return lease, err
}

func (r *run) tryAcquire(ctx context.Context, locks *leasehold.Locker, opts []leasehold.Option) (*leasehold.Lease, error) {
	if err := r.refuseNested(ctx, locks); err != nil {
		return nil, err
	}
	return locks.Acquire(ctx, r.name, opts...)
}

// endedBySignal returns a context that ends with the first signal to end a program; its
// cause is then an exitError. The others have nobody to go to yet. After stop, signals
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
					cancel(&exitError{code: exitSignal + int(sig.(syscall.Signal))})
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

// refuseNested refuses a resource that an enclosing run holds. Shared ones too: a waiter
// between the two would wait for the outer and keep the inner waiting.
func (r *run) refuseNested(ctx context.Context, locks *leasehold.Locker) error {
	held := strings.Fields(os.Getenv("LEASEHOLD_HELD"))
	if len(held) == 0 {
		return nil
	}
	nested := false
	state, err := locks.Inspect(ctx, r.name)
	switch {
	case errors.Is(err, leasehold.ErrUnsupported): // then at least the innermost one
		nested = os.Getenv("LEASEHOLD_NAME") == r.name && os.Getenv("LEASEHOLD_STORE") == r.app.storeURL
	case err != nil:
		return err
	}
	for _, h := range state.Holders {
		for _, owner := range held {
			nested = nested || h.Owner == owner
		}
	}
	if !nested {
		return nil
	}
	return usageErrorf("%s is held by a leasehold run around this one, which would wait for itself\nRun the command without the inner leasehold, or lock another name", shown(r.name))
}

// hold runs the command under the lease and releases it.
func (r *run) hold(ctx context.Context, lease *leasehold.Lease) error {
	ttl := time.Duration(r.claim.ttl)
	result, err := guard.Run(guard.Plan{
		Argv: r.argv, Env: r.environ(lease),
		Grace: time.Duration(r.grace), Margin: guard.Margin(ttl),
		Lease: lease, Renewed: r.renewed, Signals: r.signals,
	})
	lost := context.Cause(lease.Context())
	released := lease.Release(ctx)
	if lost == nil && errors.Is(released, leasehold.ErrLost) {
		lost = leasehold.ErrLost
	}
	if result.Terminal {
		passOn(result.Status)
	}
	return r.verdict(result, err, lost, released)
}

// passOn gives a Ctrl-C that ended the command to the rest of the job, such as a script
// around it, which would have got it too without the terminal lent to the command alone.
func passOn(status syscall.WaitStatus) {
	if sig := status.Signal(); status.Signaled() && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		syscall.Kill(0, sig) // caught here, and no longer listened to
	}
}

// verdict says how it went: what happened to the lease counts before what the command did.
func (r *run) verdict(result guard.Result, err, lost, released error) error {
	var start *guard.StartError
	switch {
	case errors.As(err, &start):
		return &exitError{start.Code, fmt.Errorf("cannot run the command: %w", err)}
	case lost != nil:
		command := "had ended"
		if errors.Is(err, guard.ErrLate) {
			command = "was not started"
		} else if err != nil || result.Cut {
			command = "was ended"
		}
		return &exitError{r.lostCode, fmt.Errorf("%s: %w; the command %s", shown(r.name), lost, command)}
	case errors.Is(err, guard.ErrLate):
		return &exitError{r.lostCode, err}
	case err != nil:
		return &exitError{exitInternal, err}
	case result.Cut:
		return &exitError{r.lostCode, fmt.Errorf("the lease of %s could not be renewed in time, so the command was ended before another can hold it", shown(r.name))}
	case released != nil:
		fmt.Fprintf(r.app.stderr, "leasehold: %v\nIt ends by itself within %v\n", released, time.Duration(r.claim.ttl))
	}
	if result.Status.Signaled() {
		return &exitError{code: exitSignal + int(result.Status.Signal())}
	}
	if code := result.Status.ExitStatus(); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// environ is this process's environment with what the command should know of its lease.
func (r *run) environ(lease *leasehold.Lease) []string {
	held := os.Getenv("LEASEHOLD_HELD")
	env := os.Environ()
	for _, v := range [][2]string{
		{"LEASEHOLD_NAME", r.name},
		{"LEASEHOLD_TOKEN", fmt.Sprint(lease.Token())},
		{"LEASEHOLD_OWNER", lease.Owner()},
		{"LEASEHOLD_DEADLINE", lease.Deadline().Format("2006-01-02T15:04:05.000Z07:00")},
		{"LEASEHOLD_STORE", r.app.storeURL},
		{"LEASEHOLD_HELD", strings.TrimSpace(held + " " + lease.Owner())},
	} {
		env = setenv(env, v[0], v[1])
	}
	return env
}

func setenv(env []string, key, value string) []string {
	kept := env[:0]
	for _, e := range env {
		if !strings.HasPrefix(e, key+"=") {
			kept = append(kept, e)
		}
	}
	return append(kept, key+"="+value)
}
