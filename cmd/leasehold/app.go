package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/guardian"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// An app has what all commands share: the global flags and the streams.
type app struct {
	flags     *pflag.FlagSet // the global flags
	storeURL  string         // resolved, with the password
	byDefault bool           // no flag, variable or file has named the store
	json      bool
	verbose   bool
	version   bool                   // --version was given
	checks    sync.WaitGroup         // running calls of check
	queued    atomic.Pointer[string] // the name in whose queue the command waits; nil: none yet
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
}

// An opener opens a store. Commands that take no lock use stores.OpenExisting, others stores.Open.
type opener func(ctx context.Context, url string) (driver.Driver, error)

// open opens the chosen store. It sets a.storeURL, which means the same in every working directory,
// so that it can be passed to a child. The caller must close the driver with close.
func (a *app) open(ctx context.Context, open opener) (driver.Driver, error) {
	chosen, err := a.chosenStore()
	if err != nil {
		return nil, err
	}
	a.byDefault = chosen.from == ""
	return a.openURL(ctx, open, chosen)
}

func (a *app) openURL(ctx context.Context, open opener, chosen setting) (driver.Driver, error) {
	url, err := stores.Resolve(chosen.value)
	var d driver.Driver
	if err == nil {
		a.storeURL = url
		d, err = open(ctx, chosen.value)
	}
	if errors.Is(err, stores.ErrURL) {
		return nil, wrongURL(err, chosen)
	}
	if denied(err) {
		return nil, &exitError{exitDenied, err}
	}
	if err != nil {
		return nil, &exitError{exitUnavailable, err}
	}
	if a.verbose {
		a.tell(onStore, "", 0, "store %s", stores.Redact(url))
		a.check(ctx, d)
	}
	return d, nil
}

// checkBound limits how long an engine may take to check its configuration.
const checkBound = 4 * time.Second

// check reports a configuration that weakens the engine's locks. It runs in the background, and
// only close waits for it.
func (a *app) check(ctx context.Context, d driver.Driver) {
	checker, ok := d.(driver.Checker)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkBound)
	a.checks.Go(func() {
		defer cancel()
		found, err := checker.Check(ctx)
		for _, f := range found {
			if f.Level > driver.Fine {
				a.tell(onWarning, "", 0, "%v: %v", f.Level, f)
			}
		}
		if err != nil {
			a.tell(onWarning, "", 0, "warning: the configuration of the store cannot be checked: %v", err)
		}
	})
}

// close closes a driver that open returned.
func (a *app) close(d driver.Driver) error {
	a.checks.Wait()
	return d.Close()
}

// locker opens the chosen store for one command. The caller must call done.
func (a *app) locker(ctx context.Context, open opener, opts *leasehold.Options) (locks *leasehold.Locker, done func(), err error) {
	d, err := a.open(ctx, open)
	if err != nil {
		return nil, nil, err
	}
	locks, err = leasehold.New(d, opts)
	if err != nil {
		a.close(d)
		return nil, nil, err
	}
	return locks, func() { locks.Close(); a.close(d) }, nil
}

// with opens the chosen store and calls do. The context of do ends with a signal that ends a
// program.
func (a *app) with(ctx context.Context, open opener, opts *leasehold.Options, do func(ctx context.Context, locks *leasehold.Locker) error) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	locks, done, err := a.locker(ctx, open, opts)
	if err != nil {
		return orSignal(ctx, err)
	}
	defer quit(ctx, done)
	return orSignal(ctx, do(ctx, locks))
}

// quit calls done. If ctx has a deadline, it waits for a store that does not answer until shortly
// after it. Leases that are left then expire.
func quit(ctx context.Context, done func()) {
	if end, bounded := ctx.Deadline(); bounded {
		abandon.Within(time.Until(end)+quickBound/20, done)
	} else {
		done()
	}
}

// orSignal returns the signal that has ended ctx, if one has, instead of the error that followed
// from it.
func orSignal(ctx context.Context, err error) error {
	if stopped := signalIn(ctx); err != nil && stopped != nil {
		return stopped
	}
	return err
}

// signalIn returns the signal that has ended ctx, or nil.
func signalIn(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.As(cause, new(*signalError)) {
		return cause
	}
	return nil
}

// answerBound limits how long a command waits for one answer of the store.
const answerBound = 15 * time.Second

// print writes v as JSON if --json is set, else the output of plain.
func (a *app) print(v any, plain func(w io.Writer)) error {
	var b bytes.Buffer
	if !a.json {
		plain(&b)
	} else if err := writeJSON(&b, v, "  "); err != nil {
		return err
	}
	return a.output(b.Bytes())
}

// output writes all output of a command at once.
func (a *app) output(text []byte) error {
	if _, err := a.stdout.Write(text); err != nil {
		return internalErrorf("write the output: %w", err)
	}
	return nil
}

// writeJSON writes v on one line, or on several if indent is set. It does not escape names for
// HTML.
func writeJSON(w io.Writer, v any, indent string) error { return writeJSONWithin(w, v, "", indent) }

// writeJSONWithin is writeJSON with a prefix for all lines but the first.
func writeJSONWithin(w io.Writer, v any, prefix, indent string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, indent)
	return enc.Encode(v)
}

// internalErrorf returns an error of this machine or program, not of the store.
func internalErrorf(format string, args ...any) error {
	return &exitError{exitInternal, fmt.Errorf(format, args...)}
}

// interruptible returns a context that ends with the signals that end a program. Its cause then has
// the exit code that shells use for the signal. SIGHUP and SIGINT do not count if they are ignored
// from the start, as by nohup; Go does not tell that of other signals.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	guardian.Catch(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals) // a second signal ends a program that hangs
			cancel(bySignal(s.(syscall.Signal), fmt.Errorf("stopped by signal: %v", s)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// terminal returns the file of a stream if the file is a terminal.
func terminal(stream any) (*os.File, bool) {
	if c, ok := stream.(*console); ok {
		stream = c.file
	}
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}
