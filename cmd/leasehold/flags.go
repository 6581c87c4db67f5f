package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageErrorf returns an error that ends the program as a wrong command line does.
func usageErrorf(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// argNames returns a check for exactly the named arguments; those in brackets may be
// missing. The first argument NAME must be a valid name.
func argNames(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return usageErrorf("unexpected argument %q\nUsage: %s", args[len(names)], cmd.UseLine())
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

// checkFilled refuses flags that were given an empty text.
func checkFilled(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() == "string" {
			err = filled("--"+f.Name, f.Value.String())
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

// claimFlags say what kind of lease is wanted and how long to wait for it. The letters
// mean what they mean to flock.
type claimFlags struct {
	set    *pflag.FlagSet
	noWait bool
	wait   span
	shared bool
	slots  int
	ttl    span
	note   string
}

func (f *claimFlags) add(set *pflag.FlagSet, ttl time.Duration) {
	f.set, f.ttl = set, span(ttl)
	set.BoolVarP(&f.noWait, "no-wait", "n", false, "fail at once when NAME is busy")
	set.VarP(&f.wait, "wait", "w", "wait at most `SECONDS` (fractions allowed) instead of without limit")
	set.BoolVarP(&f.shared, "shared", "s", false, "share NAME with other shared holders")
	set.IntVar(&f.slots, "slots", 0, "share NAME among at most `N` holders, as a semaphore does")
	set.Var(&f.ttl, "ttl", "`LENGTH` of the lease: seconds, or with a unit such as 90s or 5m")
	set.StringVar(&f.note, "note", "", "`TEXT` for people who ask who holds NAME")
}

// options checks the flags against each other. The TTL is for leasehold.Options.
func (f *claimFlags) options() ([]leasehold.Option, error) {
	if _, err := ttlOption(f.ttl); err != nil {
		return nil, err
	}
	var opts []leasehold.Option
	switch wait := f.set.Changed("wait"); {
	case f.noWait && wait:
		return nil, usageErrorf("--no-wait and --wait exclude each other")
	case f.noWait:
		opts = append(opts, leasehold.Wait(0))
	case wait:
		opts = append(opts, leasehold.Wait(time.Duration(f.wait)))
	}
	switch {
	case f.set.Changed("slots") && f.slots < 1:
		return nil, usageErrorf("--slots %d is below 1", f.slots)
	case f.slots > 0:
		opts = append(opts, leasehold.Limit(f.slots))
	case f.shared:
		opts = append(opts, leasehold.Shared())
	}
	if f.note != "" {
		opts = append(opts, leasehold.Note(f.note))
	}
	return opts, nil
}

func ttlOption(ttl span) (leasehold.Option, error) {
	if ttl == 0 {
		return nil, usageErrorf("--ttl 0: a lease needs a length, such as 30s")
	}
	return leasehold.TTL(time.Duration(ttl)), nil
}

// A span is a flag that takes a length of time: seconds as flock takes them ("1.5"), or
// with a unit as Go has them ("90s", "5m").
type span time.Duration

func (s *span) String() string {
	if *s == 0 {
		return "0"
	}
	return time.Duration(*s).String()
}

// Type names the kind of value in help texts.
func (s *span) Type() string { return "duration" }

// Set refuses negative lengths, so that no command has to.
func (s *span) Set(text string) error {
	d, err := parseSpan(text)
	if err != nil {
		return err
	}
	*s = span(d)
	return nil
}

// maxSpan is a century: longer is a slip, and far from where nanoseconds overflow.
const maxSpan = 100 * 365 * 24 * time.Hour

func parseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if seconds, floatErr := strconv.ParseFloat(text, 64); floatErr == nil {
		// Written so that NaN fails it.
		if !(seconds >= 0 && seconds <= maxSpan.Seconds()) {
			return 0, errors.New("is out of range")
		}
		return time.Duration(math.Ceil(seconds * float64(time.Second))), nil
	}
	if err != nil {
		return 0, errors.New("want seconds, or a number with a unit such as 90s or 5m")
	}
	if d < 0 || d > maxSpan {
		return 0, errors.New("is out of range")
	}
	return d, nil
}
