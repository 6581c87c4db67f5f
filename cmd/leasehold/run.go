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
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

// A run is one run of "leasehold run".
type run struct {
	child
	period
	claim    claimFlags
	also     []string
	busyCode int
	okIfBusy bool
	asked    boottime.Instant // before the leases were granted

	signalled bool // COMMAND ended soon after a signal that ends programs, not because the lease was over

	metricsFile string
	yieldName   string
}

func newRunCommand(a *app) *cobra.Command {
	r := &run{child: newChild(a)}
	cmd := &cobra.Command{
		Use:               "run [flags] NAME -- COMMAND [ARG…]",
		Short:             "Hold a lock while a command runs",
		Long:              runLong,
		Example:           runExample,
		Annotations:       map[string]string{helpFlags: runFlags},
		ValidArgsFunction: completeName(a, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.parse(cmd, args); err != nil {
				return err
			}
			r.metrics = newRunMetrics(a, r.metricsFile, r.name)
			err := r.run(context.WithoutCancel(cmd.Context()))
			r.metrics.ended(exitCode(err))
			r.awaitHooks(err)
			return err
		},
	}
	flags := cmd.Flags()
	r.claim.add(flags, leasehold.DefaultTTL)
	flags.StringArrayVar(&r.also, "also", nil, "hold `NAME2` too, all or nothing; repeatable")
	flags.IntVarP(&r.busyCode, "busy-exit-code", "E", exitBusy, "exit with `N` if NAME is busy")
	flags.BoolVar(&r.okIfBusy, "ok-if-busy", false, "if NAME is busy, exit with 0 (-n, -w, --once-per)")
	flags.IntVar(&r.lostCode, "lost-exit-code", exitLost, "exit with `N` if the lease was lost")
	flags.StringVar(&r.metricsFile, "metrics-file", "", "write metrics for Prometheus to `FILE`")
	flags.StringVar(&r.yieldName, "yield", "", "send `SIGNAL` to COMMAND when others wait for NAME")
	cmd.RegisterFlagCompletionFunc("yield", cobra.FixedCompletions(yieldNames, cobra.ShellCompDirectiveNoFileComp))
	r.hooks.addFlags(flags)
	r.period.addFlags(flags)
	r.child.addFlags(flags)
	return cmd
}

// awaitHooks waits for the hooks, but not longer than lastWord after a signal that ends a program.
// The signal may have come before, for COMMAND or as the error that the run ends with.
func (r *run) awaitHooks(err error) {
	ctx, _, stop := r.untilSignal(context.Background())
	defer stop()
	if r.signalled || errors.As(err, new(*signalError)) {
		var over context.CancelFunc
		ctx, over = context.WithTimeout(ctx, lastWord)
		defer over()
	}
	_, _ = abandon.Call(ctx, func() (struct{}, error) { r.hooks.running.Wait(); return struct{}{}, nil })
}

// inherit takes over if this process is a guardian. It returns only in other processes.
func inherit() { guardian.Inherit(releaseLegacy) }

func (r *run) parse(cmd *cobra.Command, args []string) error {
	named := cmd.Flags().Changed("key")
	r.name = r.key
	if err := r.claim.shares.parse(); err != nil {
		return err
	}
	if names := r.claim.shares.names(); !named && cmd.ArgsLenAtDash() == 0 && len(names) > 0 {
		named, r.name = true, names[0]
	}
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
	if err := r.checkPeriod(cmd); err != nil {
		return err
	}
	if err := r.checkYield(); err != nil {
		return err
	}
	flag, ttl := r.period.ttl(r.claim.ttl)
	return r.checkTimes(cmd, flag, ttl)
}

// run waits for the leases, holds them while the command runs, and releases them.
func (r *run) run(ctx context.Context) error {
	opts, err := r.claim.options()
	if err == nil {
		err = r.describe(&r.claim.detailFlags)
	}
	if err != nil {
		return err
	}
	opts = append(opts, r.period.options()...)
	if r.yieldFlag() != "" {
		opts = append(opts, leasehold.Yields())
	}
	if err := guardian.Check(); err != nil {
		return internalErrorf("%w", err)
	}
	catch(r.signals)
	bounded, stop := r.claim.bounded(ctx)
	defer stop()
	locks, done, err := r.open(bounded)
	if err != nil {
		return err
	}
	w := r.app.watch(locks, r.name, r.who, r.claim.shares)
	leases, err := r.acquire(bounded, locks, opts)
	w.ended()
	if err != nil {
		w.done()
		quit(bounded, done)
		return err
	}
	r.metrics.granted()
	r.keep = time.Duration(r.atLeast)
	// If a job was begun in its period and killed, it counts as run.
	if r.fixed = r.oncePer > 0; r.fixed && r.atMost == 0 {
		r.terms.ttl = r.length()
	}
	r.heirless = r.fixed || !locks.Features().Resumes
	err = r.hold(ctx, locks, leases)
	w.done()
	if errors.As(err, new(*signalError)) { // the user does not want to wait
		abandon.Within(lastWord, done)
	} else {
		done()
	}
	return err
}

// open opens the store, until a signal that ends a program.
func (r *run) open(ctx context.Context) (locks *leasehold.Locker, done func(), err error) {
	opening, stop := r.endedBySignal(ctx)
	opts := r.child.options()
	if r.oncePer > 0 {
		opts.TTL = 0 // OncePer sets the TTL
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

// acquire waits for the leases, until a signal that ends a program.
func (r *run) acquire(ctx context.Context, locks *leasehold.Locker, opts []leasehold.Option) (*leasehold.Leases, error) {
	if r.period.retry && !locks.Features().Resumes {
		return nil, fmt.Errorf("--retry-on-failure: %w: a lease that outlives its process", leasehold.ErrUnsupported)
	}
	if flag := r.yieldFlag(); flag != "" && !locks.Features().Tells {
		return nil, fmt.Errorf("%s: %w: whether others wait", flag, leasehold.ErrUnsupported)
	}
	r.app.sayLocal()
	waiting, stop := r.endedBySignal(ctx)
	leases, err := r.tryAcquire(waiting, locks, opts)
	stop()
	stopped := signalIn(waiting)
	switch {
	case stopped != nil:
		if leases != nil { // they were granted at the same moment
			ending, _, stop := r.untilSignal(context.WithoutCancel(ctx))
			err := r.giveBack(ending, locks, leases)
			stop()
			if !answered(err) && locks.Features().Resumes { // otherwise they end with the session
				r.app.tell(onWarning, r.name, 0, "%s", unconfirmed(err, time.Until(leases.Deadline())))
			}
		}
		return nil, stopped
	case errors.Is(err, leasehold.ErrBusy) && r.okIfBusy:
		if r.app.verbose {
			r.app.report(err)
		}
		return nil, &exitError{code: 0}
	case errors.Is(err, leasehold.ErrBusy), removed(err):
		return nil, &exitError{r.busyCode, err}
	}
	return leases, err
}

func (r *run) tryAcquire(ctx context.Context, locks *leasehold.Locker, opts []leasehold.Option) (*leasehold.Leases, error) {
	names := append([]string{r.name}, r.also...)
	for _, name := range append(names, r.claim.shares.names()...) {
		if err := r.app.refuseNested(ctx, locks, name); err != nil {
			return nil, err
		}
	}
	if r.oncePer == 0 { // after such a wait, the job would run once more in its period
		opts = append(opts, r.claim.waiting()...)
	}
	r.asked = boottime.Now()
	return locks.AcquireAll(ctx, names, opts...)
}

// hold runs the command under the leases, and then releases them.
func (r *run) hold(ctx context.Context, locks *leasehold.Locker, leases *leasehold.Leases) error {
	each := []*leasehold.Lease{leases.Lease(r.name)}
	for _, name := range leases.Names() {
		if name != r.name {
			each = append(each, leases.Lease(name))
		}
	}
	began := time.Now()
	result, leave, err := r.child.run(leases.Context(), leases, each...)
	r.signalled = !result.Cut && time.Since(result.Signalled) < hookBound // a daemon may take HUP and go on
	f := farewell{run: r, locks: locks, leases: leases, each: each, until: leases.Deadline(), keeps: began.Add(r.length()), ended: time.Now(), took: time.Since(began)}
	e := ending{Result: result, err: err}
	if leases.Context().Err() != nil {
		e.lost = context.Cause(leases.Context())
	}
	told := r.tellLost(e, each)
	f.code = exitCode(r.verdict(e))
	var stopped error
	e.released, stopped = f.say(ctx)
	if e.left = r.terms.ttl; r.fixed {
		e.left = time.Until(leases.Deadline())
	}
	if r.keeps() && !f.gives() { // the release may have been applied
		e.left = max(e.left, time.Until(f.keeps))
	}
	if e.lost == nil && f.foundLost(e.released) {
		e.lost = leasehold.ErrLost
	}
	if !told {
		r.tellLost(e, each)
	}
	if f.known {
		leave() // otherwise the guardian continues with the release
	}
	passOn(result)
	verdict := r.verdict(e)
	if stopped != nil {
		return stopped
	}
	return verdict
}

// tellLost runs --on-lost if the leases ended early. It reports whether they did.
func (r *run) tellLost(e ending, leases []*leasehold.Lease) bool {
	early := e.lost != nil || e.Cut || errors.Is(e.err, guardian.ErrLate)
	if early {
		why := r.verdict(ending{Result: e.Result, err: e.err, lost: e.lost}).Error()
		r.metrics.endedEarly()
		r.hooks.start(r.app, "--on-lost", r.hooks.lost, r.environ(time.Now(), leases), "LEASEHOLD_LOST="+plain(why))
	}
	return early
}

// endedBySignal returns a context that ends with the first signal that ends a program. Its cause is
// then a signalError. Other signals are dropped, because there is no command yet. After stop,
// signals are left for the command.
func (r *run) endedBySignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-r.signals:
				if guardian.Ends(sig) {
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

// untilSignal returns a context that ends lastWord after the next signal that ends a program, and
// one that ends with the signal.
func (r *run) untilSignal(ctx context.Context) (_, signalled context.Context, stop func()) {
	signalled, drop := r.endedBySignal(ctx)
	ctx, end := context.WithCancelCause(ctx)
	context.AfterFunc(signalled, func() {
		time.AfterFunc(lastWord, func() { end(context.Cause(signalled)) })
	})
	return ctx, signalled, func() {
		end(nil)
		drop()
	}
}
