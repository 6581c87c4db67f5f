// Package demo plays textbook problems of distributed locking with real processes and a real
// database. Each scenario runs without a lock and under one. The books of the business alone decide
// whether it went right.
//
// To add a scenario, write a file here and list it in Scenarios; e2e/demo runs it on every engine.
// Check once that it exits with 1 without its lock.
package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// ErrSettings is the error about settings that cannot be played. Other errors wrap it.
var ErrSettings = errors.New("demo")

// A Strategy is a way in which actors of a scenario avoid conflicts.
type Strategy string

// Strategies of several scenarios.
const (
	None       Strategy = "none"
	Lock       Strategy = "lock"
	Optimistic Strategy = "optimistic" // a write takes effect only if nobody has written since the read
)

// title is the head of a strategy's column.
func (s Strategy) title() string {
	switch s {
	case None:
		return "WITHOUT LOCK"
	case Lock:
		return "UNDER LOCK"
	}
	return strings.ToUpper(string(s))
}

// promises reports whether the books must be in order after a run. The other strategies show what
// goes wrong.
func (s Strategy) promises() bool { return s != None && s != async }

// An About describes a scenario to people.
type About struct {
	Name     string
	Short    string // one line
	Long     string
	Examples []string // arguments after the scenario's name

	Strategies []Strategy // the possible ones, in the order of the columns
	Headline   string     // of a report, with the present settings
}

// A Scenario is one story. Its exported fields are its settings, which its processes get as JSON.
type Scenario interface {
	About() About
	// AddFlags adds flags for the settings. Their present values are the defaults.
	AddFlags(flags *pflag.FlagSet)
	// Check returns nil for settings that can be played. Otherwise its error wraps ErrSettings.
	Check() error
	// play makes one run: it creates the books, lets processes work, and reads the books.
	play(ctx context.Context, r *run) (Result, error)
	// work is the part of one process in a run.
	work(ctx context.Context, w *worker) error
}

// Scenarios returns all scenarios with their default settings.
func Scenarios() []Scenario {
	return []Scenario{newSeckill(), newInventory(), newCoupon(), newCron(), newLongJob(), newParking(), newFailover()}
}

// find returns the scenario with this name and its default settings.
func find(name string) (Scenario, error) {
	for _, s := range Scenarios() {
		if s.About().Name == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("no scenario %q", name)
}

// A bound is a range for a setting.
type bound struct {
	what        string
	n, low, top int
}

// check returns an error about the first setting that is out of its range.
func check(bounds ...bound) error {
	for _, b := range bounds {
		if b.n < b.low || b.n > b.top {
			return fmt.Errorf("%w: %d %s, want %d to %d", ErrSettings, b.n, b.what, b.low, b.top)
		}
	}
	return nil
}

// maxProcesses is how many processes one machine can start in reasonable time.
const maxProcesses = 64

// Bounds for the TTL in scenarios that wait until a lease ends.
const leastTTL, mostTTL = 100 * time.Millisecond, time.Minute

func addTTL(flags *pflag.FlagSet, ttl *time.Duration) {
	flags.DurationVar(ttl, "ttl", *ttl, "`LENGTH` of the leases, at least what the store can serve")
}

func checkTTL(ttl time.Duration) error {
	if ttl < leastTTL || ttl > mostTTL {
		return fmt.Errorf("%w: leases of %v, want %v to %v", ErrSettings, ttl, leastTTL, mostTTL)
	}
	return nil
}

// beyond returns a time after which the holder of a lease that nobody renews no longer relies on
// it. The store may keep the lease for longer.
func beyond(ttl time.Duration) time.Duration { return ttl + ttl/4 }
