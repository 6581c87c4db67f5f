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

// ErrSettings is wrapped by the errors about settings that cannot be played.
var ErrSettings = errors.New("demo")

// A Strategy is how the actors of a scenario keep out of each other's way.
type Strategy string

// Strategies that several scenarios have.
const (
	None       Strategy = "none"
	Lock       Strategy = "lock"
	Optimistic Strategy = "optimistic" // a write that takes effect only if nobody wrote since the read
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

// promises reports whether a run must leave the books in order: the others are there to
// show what goes wrong.
func (s Strategy) promises() bool { return s != None && s != async }

// About is what people read of a scenario.
type About struct {
	Name     string
	Short    string // one line
	Long     string
	Examples []string // arguments after the name
}

// A Scenario is one story. Its exported fields are its settings; the processes get them
// as JSON.
type Scenario interface {
	About() About
	// AddFlags adds the settings, whose values are then the defaults, to a command line.
	AddFlags(flags *pflag.FlagSet)
	// Check returns nil for settings that can be played, else an error that wraps
	// ErrSettings.
	Check() error
	// Strategies are those it can be played with, in the order of the columns.
	Strategies() []Strategy

	headline() string
	// play is one run: it makes the books, has processes work, and reads the books.
	play(ctx context.Context, r *run) (Result, error)
	// work is the part of one process.
	work(ctx context.Context, w *worker) error
}

// Scenarios returns all of them with their default settings.
func Scenarios() []Scenario {
	return []Scenario{newSeckill(), newInventory(), newCoupon(), newCron(), newLongJob(), newParking(), newFailover()}
}

// find returns the scenario of that name with its default settings.
func find(name string) (Scenario, error) {
	for _, s := range Scenarios() {
		if s.About().Name == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("no scenario %q", name)
}

// bound is a range for a setting.
type bound struct {
	what        string
	n, low, top int
}

// check returns the first setting out of its range.
func check(bounds ...bound) error {
	for _, b := range bounds {
		if b.n < b.low || b.n > b.top {
			return fmt.Errorf("%w: %d %s, want %d to %d", ErrSettings, b.n, b.what, b.low, b.top)
		}
	}
	return nil
}

// maxProcesses is what one machine starts in reasonable time.
const maxProcesses = 64

// Leases of the scenarios that wait for one to end.
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

// beyond is a time after which the holder of a lease of ttl that nobody renews counts on it no
// more. The store may keep it longer.
func beyond(ttl time.Duration) time.Duration { return ttl + ttl/4 }
