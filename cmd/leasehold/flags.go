package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageErrorf returns an error about the command line.
func usageErrorf(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// argNames returns a check for exactly the named arguments. Those in brackets are optional. If the
// first is NAME, it must be a valid name.
func argNames(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return usageErrorf("unexpected argument %q\nUsage: %s", stray(args[len(names)]), cmd.UseLine())
		}
		if len(args) < len(names) && names[len(args)][0] != '[' {
			return usageErrorf("%s is missing\nUsage: %s", names[len(args)], cmd.UseLine())
		}
		if len(args) > 0 && names[0] == "NAME" {
			return checkName(args[0])
		}
		return nil
	}
}

// stray returns an argument in the wrong place in a form that may be printed. It may be the URL of a
// store with its password, or an owner.
func stray(arg string) string {
	const most = 8
	switch {
	case strings.ContainsAny(arg, ":@?="):
		return stores.Redact(arg)
	case len(arg) > most:
		return strings.ToValidUTF8(arg[:most], "") + "…"
	}
	return arg
}

// checkFilled refuses flags with an empty value.
func checkFilled(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch kind, text := f.Value.Type(), f.Value.String(); {
		case err != nil:
		case kind == "string":
			err = filled("--"+f.Name, text)
		case kind == "stringSlice" && text == "[]":
			err = filled("--"+f.Name, "")
		}
	})
	return err
}

func checkName(name string) error {
	if err := driver.CheckName(name); err != nil {
		return usageErrorf("%w\nA name is 1 to %d bytes of UTF-8 without control characters", err, driver.MaxName)
	}
	return nil
}

// claimFlags say what kind of lease to request, and how long to wait for it. The short flags are
// those of flock.
type claimFlags struct {
	set    *pflag.FlagSet
	began  time.Time // start of the command, from which waits count
	noWait bool
	wait   span
	alone  bool
	shared bool
	shares
	ttl span
	detailFlags
}

func (f *claimFlags) add(set *pflag.FlagSet, ttl time.Duration) {
	f.set, f.ttl, f.began = set, span(ttl), time.Now()
	set.BoolVarP(&f.noWait, "no-wait", "n", false, "fail at once if NAME is busy")
	set.VarP(&f.wait, "wait", "w", "wait at most `TIME`: seconds, or 5m (default no limit)")
	set.BoolVarP(&f.alone, "exclusive", "x", false, "share NAME with nobody (the default)")
	set.BoolVarP(&f.shared, "shared", "s", false, "share NAME with other shared holders")
	set.IntVar(&f.slots, "slots", 0, "the same as --limit `N`")
	set.StringArrayVar(&f.limit.texts, "limit", nil, "let at most `N` hold NAME at once (see --weight)")
	set.StringArrayVar(&f.weight.texts, "weight", nil, "use `W` of the limit (default 1)")
	set.Var(&f.ttl, "ttl", "lease NAME for `TIME`: seconds, or 5m")
	f.detailFlags.add(set, "holds NAME")
	addFlock(set, &f.alone)
}

// quickBound limits how long the store may take to answer if the command does not wait.
const quickBound = 2 * time.Second

// bounded returns ctx with the deadline that -n and -w set for everything until NAME is held,
// including the connection. A wait shorter than quickBound limits only the wait for other holders.
// The store then has as much time as with -n.
func (f *claimFlags) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if !f.noWait && !f.set.Changed("wait") {
		return ctx, func() {}
	}
	bound := max(time.Duration(f.wait), quickBound)
	// A little later than the wait, which must end first: then the outcome is "busy".
	return context.WithDeadlineCause(ctx, f.began.Add(bound+bound/20), fmt.Errorf("no answer within %v", bound))
}

// waiting returns the option for the time that is left to wait for other holders.
func (f *claimFlags) waiting() []leasehold.Option {
	switch {
	case f.noWait:
		return []leasehold.Option{leasehold.Wait(0)}
	case f.set.Changed("wait"):
		return []leasehold.Option{leasehold.Wait(max(0, time.Duration(f.wait)-time.Since(f.began)))}
	}
	return nil
}

// options checks the flags against each other and returns their options, except for the TTL and the
// wait. The TTL belongs to leasehold.Options, and the wait begins later.
func (f *claimFlags) options() ([]leasehold.Option, error) {
	if _, err := ttlOption(f.ttl); err != nil {
		return nil, err
	}
	if err := f.shares.parse(); err != nil {
		return nil, err
	}
	var opts []leasehold.Option
	switch {
	case f.noWait && f.set.Changed("wait"):
		return nil, usageErrorf("--no-wait and --wait exclude each other")
	case f.alone && (f.shared || f.shares.flag() != ""):
		return nil, usageErrorf("--exclusive excludes --shared, --slots, --limit and --weight")
	case f.set.Changed("slots") && f.slots < 1:
		return nil, usageErrorf("--slots %d is below 1", f.slots)
	case f.shared:
		opts = append(opts, leasehold.Shared())
	}
	return append(opts, f.shares.options()...), nil
}

func ttlOption(ttl span) (leasehold.Option, error) {
	if ttl == 0 {
		return nil, usageErrorf("--ttl 0: a lease needs a length, such as 30s")
	}
	return leasehold.TTL(time.Duration(ttl)), nil
}

// inOurWords returns the error for a flag's value without terms of the Go language.
func inOurWords(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	f := invalid.GetFlag()
	if _, ok := f.Value.(refusal); ok {
		return fmt.Errorf("%s: %w", flagText(f), invalid.Unwrap())
	}
	return fmt.Errorf("%s %q: %w", flagText(f), invalid.GetValue(), wanted(f, invalid.Unwrap()))
}

// wanted returns what a flag accepts, for a value that failed with cause.
func wanted(f *pflag.Flag, cause error) error {
	if _, ok := f.Value.(*span); ok {
		return cause
	}
	switch kind := f.Value.Type(); {
	case errors.Is(cause, strconv.ErrRange):
		return errOutOfRange
	case kind == "int":
		return errors.New("want a whole number")
	case kind == "bool":
		return errors.New("want true or false")
	case kind == "duration":
		return errors.New("want a number with a unit such as 90s or 5m")
	}
	return cause
}

func flagText(f *pflag.Flag) string {
	if f.Shorthand == "" || f.Shorthand == f.Name {
		return "--" + f.Name
	}
	return "-" + f.Shorthand + ", --" + f.Name
}

var errOutOfRange = errors.New("out of range")

// A span is a flag for a duration: seconds as in flock ("1.5"), days ("30d"), or with a unit as in
// Go ("90s", "5m").
type span time.Duration

func (s *span) String() string {
	if *s == 0 {
		return "0"
	}
	return time.Duration(*s).String()
}

// Type names the kind of value in help texts.
func (s *span) Type() string { return "duration" }

// Set refuses negative durations, so that no command has to.
func (s *span) Set(text string) error {
	d, err := parseSpan(text)
	if err != nil {
		return err
	}
	*s = span(d)
	return nil
}

// maxSpan is a century: more is a mistake, and still far from an overflow of nanoseconds.
const maxSpan = 100 * 365 * 24 * time.Hour

func parseSpan(text string) (time.Duration, error) {
	number, unit := text, time.Second
	if days, ok := strings.CutSuffix(text, "d"); ok {
		number, unit = days, 24*time.Hour
	}
	if n, err := strconv.ParseFloat(number, 64); err == nil {
		// written so that NaN fails
		if !(n >= 0 && n <= float64(maxSpan/unit)) {
			return 0, errOutOfRange
		}
		return time.Duration(math.Ceil(n * float64(unit))), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("want seconds, or a number with a unit such as 90s, 5m or 30d")
	}
	if d < 0 || d > maxSpan {
		return 0, errOutOfRange
	}
	return d, nil
}
