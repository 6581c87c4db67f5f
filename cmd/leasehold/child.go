//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/guardian"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/secret"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// minRunTTL is the shortest TTL under which the guardian has time to act, and one renewal may fail.
const minRunTTL = time.Second

// A child is a command that runs under leases, with all that decides when it must end.
type child struct {
	app *app
	task
	terms
	hooks   hooks
	metrics *runMetrics // nil: without metrics

	signals chan os.Signal          // signals for the command, caught from the start
	renewed chan struct{}           // receives an element when a deadline has moved
	failed  atomic.Pointer[failure] // the last failed renewal of a lease, until that lease is renewed or a term begins
	trouble *trouble
}

// A task is the requested command.
type task struct {
	name     string // of the first lock
	argv     []string
	shell    string
	grace    span
	lostCode int
	yield    syscall.Signal // sent when others wait; 0: none
}

// terms describe the leases of a child.
type terms struct {
	ttl      time.Duration
	who      leasehold.Details
	fixed    bool          // the leases last as long as they were granted for, without renewals
	heirless bool          // if this process is killed, the leases stay: no guardian may release them
	keep     time.Duration // time from the grant for which AtLeast keeps others out
}

// A failure is a failed renewal.
type failure struct {
	name string
	err  error
}

func newChild(a *app) child {
	return child{app: a, signals: make(chan os.Signal, 16), renewed: make(chan struct{}, 1), trouble: &trouble{app: a}}
}

func (c *child) addFlags(flags *pflag.FlagSet) {
	flags.SetInterspersed(false) // flags after COMMAND belong to it
	flags.Var(&c.grace, "grace", "`TIME` from TERM to KILL (default min(TTL/5, 10s))")
	flags.StringVarP(&c.shell, "command", "c", "", "run `STRING` in $SHELL or /bin/sh, without -- COMMAND")
}

// parse takes NAME and COMMAND from the arguments. Flags may stand before and after NAME. If named
// is true, the arguments contain no NAME.
func (c *child) parse(cmd *cobra.Command, args []string, named bool) error {
	c.argv = args
	if !named {
		if len(args) == 0 {
			return usageErrorf("NAME is missing\nUsage: %s", cmd.UseLine())
		}
		c.name, c.argv = args[0], args[1:]
	}
	if len(c.argv) > 0 && strings.HasPrefix(c.argv[0], "-") {
		if err := cmd.Flags().Parse(c.argv); err != nil {
			return cmd.FlagErrorFunc()(cmd, err)
		}
		c.argv = cmd.Flags().Args()
		if err := checkFilled(cmd); err != nil {
			return err
		}
	}
	if err := checkName(c.name); err != nil {
		return err
	}
	if cmd.Flags().Changed("command") {
		if len(c.argv) > 0 {
			return usageErrorf("-c and COMMAND exclude each other\nUsage: %s", cmd.UseLine())
		}
		c.argv = []string{shell(), "-c", c.shell}
	}
	if len(c.argv) == 0 {
		return usageErrorf("COMMAND is missing\nUsage: %s", cmd.UseLine())
	}
	return nil
}

// describe sets who holds the leases. It uses the command's name but not its arguments: they may
// contain secrets, and others read the details.
func (c *child) describe(f *detailFlags) (err error) {
	c.who, err = f.details(filepath.Base(c.argv[0]), os.Getpid())
	return err
}

// shell returns the shell that flock(1) would use.
func shell() string {
	if sh := os.Getenv("SHELL"); sh != "" {
		return sh
	}
	return "/bin/sh"
}

// checkTimes checks that there is time to end the command before a lease of ttl expires. flag is
// the flag that sets ttl.
func (c *child) checkTimes(cmd *cobra.Command, flag string, ttl time.Duration) error {
	c.ttl = ttl
	if ttl < minRunTTL {
		return usageErrorf("%s %v is too short to end a command in time\nUse at least %v", flag, ttl, minRunTTL)
	}
	if !cmd.Flags().Changed("grace") {
		c.grace = span(min(ttl/5, 10*time.Second))
	}
	// The first half of the TTL is for renewals. One of them may fail.
	if most := ttl/2 - guardian.Margin(ttl); time.Duration(c.grace) > most {
		return usageErrorf("--grace %v leaves a %s of %v no time to be renewed\nUse at most %v, or a longer TTL", &c.grace, flag, ttl, most)
	}
	return nil
}

// catch catches signals for the command from now on.
func catch(signals chan<- os.Signal) {
	guardian.Catch(signals, guardian.Forwarded...)
	// A closed standard error must not end us while the lease is held.
	guardian.Catch(make(chan os.Signal), syscall.SIGPIPE)
}

func (c *child) options() *leasehold.Options {
	return &leasehold.Options{TTL: c.ttl, Details: c.who, Trace: leasehold.TraceAll(c.app.trace, c.trouble.trace, c.renews, c.metrics.trace)}
}

// renews records the outcome of renewals.
func (c *child) renews(_ context.Context, e leasehold.Event) {
	switch {
	case e.Kind != leasehold.KindRenewal:
	case e.Step == leasehold.StepFailed && !errors.Is(e.Err, leasehold.ErrLost):
		c.failed.Store(&failure{e.Name, e.Err})
		c.app.detail(onRenewalFailed, e.Name, e.Token, "a renewal of %s has failed, %s left: %v", shown(e.Name), spanText(e.Left), e.Err)
	case e.Step == leasehold.StepRenewed:
		if f := c.failed.Load(); f != nil && f.name == e.Name {
			c.failed.CompareAndSwap(f, nil)
		}
		select {
		case c.renewed <- struct{}{}:
		default:
		}
	}
}

// refuseNested refuses a resource that an enclosing run holds, even if both are shared. A waiter
// between the two would wait for the outer lease, and the inner one would wait behind it.
func (a *app) refuseNested(ctx context.Context, locks *leasehold.Locker, name string) error {
	held := strings.Fields(os.Getenv("LEASEHOLD_HELD"))
	if len(held) == 0 {
		return nil
	}
	ctx, cancel := storeurl.Waiting(ctx)
	defer cancel()
	state, err := locks.Inspect(ctx, name)
	nested := slices.ContainsFunc(state.Holders, func(h leasehold.Holder) bool {
		return slices.ContainsFunc(held, func(owner string) bool { return wire.Names(owner, h.Owner) })
	})
	switch {
	case errors.Is(err, leasehold.ErrUnsupported), errors.Is(err, leasehold.ErrDenied): // without Inspect, names decide
		nested = slices.ContainsFunc(strings.Split(os.Getenv("LEASEHOLD_NAMES"), "\n"), func(line string) bool {
			names, here := strings.CutPrefix(line, stores.WithoutPassword(a.storeURL)+"\t")
			return here && slices.Contains(strings.Split(names, "\t"), name)
		})
	case err != nil:
		return err
	}
	if !nested {
		return nil
	}
	return usageErrorf("%s is held by the leasehold run around this one, which would wait for itself\nRun the command without the inner leasehold, or lock another name", shown(name))
}

// freshen renews leases that may be too short to start a command under. A lease that was granted by
// another's release is short at first, and its next renewal is not due for a while.
func (c *child) freshen(leases []*leasehold.Lease) {
	if c.fixed {
		return
	}
	for _, lease := range leases {
		if time.Until(lease.Deadline()) < c.ttl/2 {
			ctx, cancel := context.WithDeadline(context.Background(), lease.Deadline())
			_ = lease.Extend(ctx, c.ttl) // if it fails, the time that is left decides
			cancel()
		}
	}
}

// A tenure is a lease, or several, under which a command runs.
type tenure interface {
	Context() context.Context // ends when a lease is lost
	Deadline() time.Time
}

// run runs the command under held until none of its processes is left. The end of term ends the
// command. held consists of leases, NAME's first. The caller must release the leases and then call
// leave; see [guardian.Run].
func (c *child) run(term context.Context, held tenure, leases ...*leasehold.Lease) (result guardian.Result, leave func(), err error) {
	c.freshen(leases)
	c.app.flush(flushBound) // before the command writes its own
	env := c.environ(held.Deadline(), leases)
	wanted, stop := c.listen(env, leases)
	defer stop()
	c.hooks.start(c.app, "--on-acquire", c.hooks.acquire, env)
	path, err := findProgram(c.argv[0])
	if err != nil {
		return guardian.Result{}, func() {}, err
	}
	return guardian.Run(guardian.Plan{
		Program: guardian.Program{Path: path, Argv: c.argv, Env: env},
		Own:     secret.Environ(),
		Tenure:  guardian.Tenure{Term: term, Lease: held, Renewed: c.renewed, Grace: time.Duration(c.grace), Margin: guardian.Margin(c.ttl)},
		Signals: c.signals, Wanted: wanted, Yield: c.yield,
		Reports: guardian.Reports{
			Told:    c.tellYield,
			Ending:  func(cut bool, left string) { c.tellEnding(term, cut, left) },
			Refused: func(left string) { c.tellRefused(held, left) },
			Silent:  c.tellSilent,
		},
		Will: guardian.Will{Legacy: c.legacy(leases), Keep: time.Now().Add(c.keep)},
	})
}

// findProgram finds the file of the command as shells do.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", &guardian.StartError{Code: guardian.CodeNotFound, Text: err.Error()}
	}
	return "", &guardian.StartError{Code: guardian.CodeNotExecutable, Text: err.Error()}
}

// flushBound limits how long the start of a command waits until earlier messages have been read.
const flushBound = 100 * time.Millisecond

// tellEnding reports that the guardian ends the command, or processes that the command has left.
func (c *child) tellEnding(term context.Context, cut bool, left string) {
	switch over := context.Cause(term); {
	case !cut:
		c.app.detail(onEnding, c.name, 0, "the command has ended; ending what it left running: %s", left)
	case over != nil:
		c.app.tell(onEnding, c.name, 0, "%s: %v%s; ending the command within %v", shown(c.name), over, c.unrenewed(), &c.grace)
	default:
		c.app.tell(onEnding, c.name, 0, "the lease of %s is about to end%s; ending the command within %v", shown(c.name), c.unrenewed(), &c.grace)
	}
}

// tellRefused reports processes that the guardian may not end.
func (c *child) tellRefused(held tenure, left string) {
	fate := shown(c.name) + " is held until they end, as long as the lease can be renewed"
	switch {
	case held.Context().Err() != nil:
		fate = "The lease is over, and another process may hold " + shown(c.name)
	case c.fixed:
		fate = fmt.Sprintf("The lease is not renewed. If they still run at %s, another process may hold %s from then on",
			localTime(held.Deadline().Format(time.RFC3339), time.Now()), shown(c.name))
	}
	c.app.tell(onWarning, c.name, 0, "warning: these processes have become another user and cannot be ended: %s\n%s", left, fate)
}

// tellSilent reports that the guardian does not answer, or answers again.
func (c *child) tellSilent(pid int, silent bool) {
	if !silent {
		c.app.detail(onWarning, c.name, 0, "%s[%d] answers again", guardian.Name, pid)
		return
	}
	c.app.tell(onWarning, c.name, 0, "warning: the guardian process, %s[%d], does not answer and may be stopped; sending it SIGCONT\n"+
		"Until it answers, nothing ends the command in time if leasehold run is stopped too", guardian.Name, pid)
}

// environ returns this process's environment plus the variables about the leases, without the
// store's password.
func (c *child) environ(deadline time.Time, leases []*leasehold.Lease) []string {
	var tokens, owners, names strings.Builder
	owners.WriteString(os.Getenv("LEASEHOLD_HELD"))
	store := stores.WithoutPassword(c.app.storeURL)
	names.WriteString(os.Getenv("LEASEHOLD_NAMES") + "\n" + store)
	for _, l := range leases {
		fmt.Fprintf(&tokens, "%d %s\n", l.Token(), l.Name())
		fmt.Fprintf(&owners, " %s", l.Owner())
		fmt.Fprintf(&names, "\t%s", l.Name())
	}
	env := secret.Environ()
	for _, v := range [][2]string{
		{"LEASEHOLD_NAME", c.name},
		{"LEASEHOLD_TOKEN", fmt.Sprint(leases[0].Token())},
		{"LEASEHOLD_TOKENS", strings.TrimSuffix(tokens.String(), "\n")},
		{"LEASEHOLD_OWNER", leases[0].Owner()},
		{"LEASEHOLD_DEADLINE", deadline.Format("2006-01-02T15:04:05.000Z07:00")},
		{"LEASEHOLD_STORE", store},
		{"LEASEHOLD_HELD", strings.TrimSpace(owners.String())},
		{"LEASEHOLD_NAMES", strings.TrimPrefix(names.String(), "\n")},
	} {
		env = setenv(env, v[0], v[1])
	}
	return env
}

func setenv(env []string, key, value string) []string {
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, key+"=") })
	return append(env, key+"="+value)
}

// An ending holds the outcomes of a command, its guardian and its leases.
type ending struct {
	guardian.Result
	err      error // of the guardian's
	lost     error // why the leases ended early; nil: they did not
	released error
	left     time.Duration // the most that the names are still held if released is an unknown outcome
}

// verdict returns the error that the run ends with. A lost lease takes precedence over the exit of
// the command.
func (c *child) verdict(e ending) error {
	var start *guardian.StartError
	switch {
	case errors.As(e.err, &start):
		return &exitError{start.Code, fmt.Errorf("cannot run the command: %w", e.err)}
	case e.lost != nil:
		command := "had ended"
		if errors.Is(e.err, guardian.ErrLate) {
			command = "was not started"
		} else if e.err != nil || e.Cut {
			command = "was ended"
		}
		return &exitError{c.lostCode, fmt.Errorf("%s: %w%s; the command %s", shown(c.name), e.lost, c.unrenewed(), command)}
	case errors.Is(e.err, guardian.ErrLate):
		return &exitError{c.lostCode, e.err}
	case e.err != nil:
		return &exitError{exitInternal, e.err}
	case e.Cut && c.fixed:
		return &exitError{c.lostCode, fmt.Errorf("the lease of %s, which lasts %v and is not renewed, was about to end, so the command was ended before another process can hold it", shown(c.name), c.ttl)}
	case e.Cut:
		return &exitError{c.lostCode, fmt.Errorf("the lease of %s could not be renewed in time, so the command was ended before another process can hold it%s", shown(c.name), c.unrenewed())}
	case e.released != nil:
		c.app.tell(onError, c.name, 0, "%s", unconfirmed(e.released, e.left))
	}
	// A command may handle Ctrl-C and report it by its exit code. That counts as ended by the
	// signal too.
	if keyed := e.Terminal || e.Interrupted; e.Status.Signaled() || keyed {
		if sig := endedBy(e.Status); sig == syscall.SIGINT {
			return bySignal(sig, nil)
		}
	}
	if code := exitOf(e.Status); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// unconfirmed describes a release without an answer, of names that are held for left at most.
func unconfirmed(err error, left time.Duration) string {
	fate := "It has ended by itself"
	switch {
	case errors.Is(err, leasehold.ErrLost):
		fate = "The command had ended before"
	case left > 0:
		fate = fmt.Sprintf("It ends by itself within %v", spanText(left))
	}
	return textOf(err) + "\n" + fate
}

// unrenewed returns why the last renewal failed, or "" if it did not.
func (c *child) unrenewed() string {
	f := c.failed.Load()
	if f == nil {
		return ""
	}
	return fmt.Sprintf("; the last renewal of %s failed: %v", shown(f.name), f.err)
}

// exitOf returns a command's exit code as shells count it.
func exitOf(status syscall.WaitStatus) int {
	if status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return status.ExitStatus()
}

// endedBy returns the signal that ended a command, or that its exit code names as in shells; 0:
// none.
func endedBy(status syscall.WaitStatus) syscall.Signal {
	return syscall.Signal(max(exitOf(status)-exitSignal, 0))
}

// interrupted reports whether Ctrl-C or Ctrl-\ ended a command that had the terminal alone, so that
// no other process received the signal.
func interrupted(r guardian.Result) bool {
	sig := endedBy(r.Status)
	return r.Terminal && (sig == syscall.SIGINT || sig == syscall.SIGQUIT)
}

// passOn sends a Ctrl-C that ended the command to the rest of the job, such as an enclosing script.
// The job would have received it if the command had not had the terminal alone.
func passOn(r guardian.Result) {
	if interrupted(r) {
		syscall.Kill(0, endedBy(r.Status)) // this process catches it, and ignores it by now
	}
}

// endBySignal ends this program by the signal in err, if there is one and it can end a Go program.
func endBySignal(err error) {
	var by *signalError
	// SIGQUIT does not end a Go program quietly: it prints all goroutines. No signal ends the first
	// process of a container.
	if !errors.As(err, &by) || by.signal == syscall.SIGQUIT || signal.Ignored(by.signal) || os.Getpid() == 1 {
		return
	}
	signal.Reset(by.signal)
	syscall.Kill(os.Getpid(), by.signal)
	time.Sleep(dyingBound) // another thread may receive the signal
}

// dyingBound is longer than a signal takes to arrive, even on a very busy machine. If this program
// exited by itself, a shell would continue its script.
const dyingBound = 10 * time.Second

// ownGroup starts a process in a process group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
