//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/several"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A farewell is the work that is left at the store when the command of a run has ended: its record
// and the release of the leases.
type farewell struct {
	run    *run
	locks  *leasehold.Locker
	leases *leasehold.Leases
	each   []*leasehold.Lease // the leases, NAME's first
	until  time.Time          // when the leases end without a further call
	keeps  time.Time          // when the leases are not kept any more
	ended  time.Time          // when the command ended
	code   int                // exit code of the command
	took   time.Duration
	known  bool // the outcome of the release is known
}

// lastWord is how long the store may still take after a signal. The signal may be the one that
// ended the command, and a reachable store answers sooner.
const lastWord = time.Second

// silentFor is how long the store may take before a warning.
const silentFor = 5 * time.Second

// say records the outcome of the command and releases the leases. A signal that ends a program
// stops it. say then returns the signal as well as the unknown outcome.
func (f *farewell) say(ctx context.Context) (released, stopped error) {
	ctx, signalled, stop := f.run.untilSignal(ctx)
	defer stop()
	try := f.try
	if f.insists() {
		var over context.CancelFunc
		ctx, over = context.WithTimeout(ctx, min(max(time.Until(f.matters()), silentFor), time.Until(f.until)))
		defer over()
		try = func(ctx context.Context) error { return f.insist(ctx, signalled) }
	}
	hasReturned, released := abandon.Call(ctx, func() (bool, error) { return true, try(ctx) })
	if !hasReturned {
		released = fmt.Errorf("%s: the store has not answered, so that the release is unknown", shown(f.run.name))
	}
	if f.known = answered(released); f.known {
		return released, nil
	}
	stopped = signalIn(signalled)
	if stopped != nil || f.insists() {
		released = fmt.Errorf("%w\nThe command has ended with exit code %d%s", released, f.code, f.consequence())
	}
	return released, stopped
}

// insist repeats try until the store has answered, a signal has come, or the release no longer
// matters. It then lets a release in flight finish, which takes at most 5 s.
func (f *farewell) insist(ctx, signalled context.Context) error {
	ctx, over := context.WithDeadline(ctx, f.matters())
	defer over()
	again := func(text string) {
		f.run.app.tell(onWarning, f.run.name, 0, "%s\nThe command has ended with exit code %d. Trying again until %s; otherwise %s",
			text, f.code, f.matters().Format(time.TimeOnly), f.stake())
	}
	silent := time.AfterFunc(silentFor, func() {
		if signalled.Err() == nil && ctx.Err() == nil {
			again(fmt.Sprintf("%s: the store has not answered for %v", shown(f.run.name), silentFor))
		}
	})
	defer silent.Stop()
	lost := false // one of the leases
	for tries := 0; ; tries++ {
		err := f.try(ctx)
		if tries > 0 && f.gives() && errors.Is(err, leasehold.ErrLost) { // an earlier attempt gave it back
			return nil
		}
		if !answered(err) && !f.gives() {
			lost = lost || errors.Is(err, leasehold.ErrLost)
			err = f.learned(ctx, err)
		}
		if err == nil && lost {
			return leasehold.ErrLost
		}
		if answered(err) || hopeless(err) || ctx.Err() != nil || signalled.Err() != nil {
			return err
		}
		if silent.Stop() {
			again(textOf(err))
		}
		if _, ended := waiting.Sleep(ctx, nil, signalled.Done(), waiting.Backoff(tries, firstAgain, lastAgain)); ended != nil {
			return err
		}
	}
}

// try makes one attempt to release the leases. Those that keep their names get a record of the
// outcome first. If the record matters, try does not release them without it before half of the
// time has passed.
func (f *farewell) try(ctx context.Context) error {
	if f.gives() {
		return f.run.giveBack(ctx, f.locks, f.leases)
	}
	err := f.record(ctx)
	if !answered(err) && !hopeless(err) && f.insists() && time.Until(f.matters()) > f.matters().Sub(f.ended)/2 {
		return err
	}
	return f.leases.Release(ctx)
}

// learned inspects leases that are kept and whose release returned err, to find out whether it was
// applied. A lease that is given back is not looked for: what keeps its name may be another run's.
func (f *farewell) learned(ctx context.Context, err error) error {
	kept := true
	for _, lease := range f.each {
		state, asked := f.locks.Inspect(ctx, lease.Name())
		if asked != nil {
			return err
		}
		nobodys := false
		for _, h := range state.Holders {
			if wire.Names(lease.Owner(), h.Owner) {
				return err
			}
			nobodys = nobodys || h.Owner.Reveal() == ""
		}
		kept = kept && nobodys
	}
	if !kept && boottime.Now().Sub(f.run.asked) >= f.run.length() { // what it kept may be over
		return err
	}
	if !kept {
		return fmt.Errorf("%w: the store has no record of it any more", leasehold.ErrLost)
	}
	return nil // an attempt without an answer was applied
}

// foundLost reports whether a release that returned err found a lease that had ended early. A lease
// that was lost later expired without an answer, after the command had ended. until does not count
// the time that the machine sleeps, Deadline does.
func (f *farewell) foundLost(err error) bool {
	now := time.Now()
	return errors.Is(err, leasehold.ErrLost) && now.Before(f.until) && now.Before(f.leases.Deadline())
}

// answered reports whether the outcome of a call is known, for each lease if err joins their errors.
func answered(err error) bool {
	each := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		each = joined.Unwrap()
	}
	return !slices.ContainsFunc(each, func(err error) bool {
		return err != nil && !errors.Is(err, leasehold.ErrLost) && !errors.Is(err, leasehold.ErrReleased)
	})
}

// insists reports whether the release must reach the store.
func (f *farewell) insists() bool {
	return f.run.insists(f.code != 0) && f.ended.Before(f.until) && (f.gives() || time.Now().Before(f.keeps))
}

// matters returns until when the release decides more than when the leases end.
func (f *farewell) matters() time.Time {
	if !f.gives() && f.keeps.Before(f.until) {
		return f.keeps
	}
	return f.until
}

// stake returns what happens if the release does not reach the store.
func (f *farewell) stake() string {
	if f.gives() {
		return shown(f.run.name) + " stays held"
	}
	return "it may run again before its time"
}

// consequence returns what follows if nothing was released, as the end of a sentence.
func (f *farewell) consequence() string {
	if f.gives() || !f.run.insists(false) || !time.Now().Before(f.keeps) {
		return ""
	}
	return ", and may run again before its time"
}

// gives reports whether NAME must be free at once.
func (f *farewell) gives() bool { return f.run.retry && f.code != 0 }

// record writes the outcome of the command to the details of the leases that are kept. Without it
// the former details still say who ran the command and when.
func (f *farewell) record(ctx context.Context) error {
	if !f.run.keeps() {
		return nil
	}
	done := f.done()
	return errors.Join(several.Errors(len(f.each), len(f.each), func(i int) error { return f.each[i].SetDetails(ctx, done) })...)
}

// done returns the details of leases that are kept for the finished command. It shortens a text
// that leaves no room for the exit code.
func (f *farewell) done() leasehold.Details {
	who := details.Details(f.run.who)
	who.Kind, who.Labels = details.Once, maps.Clone(who.Labels)
	if who.Labels == nil {
		who.Labels = make(map[string]string)
	}
	who.Labels[details.Exit] = strconv.Itoa(f.code)
	text, came := who.Who(), fmt.Sprintf(" (exit code %d after %s)", f.code, spanText(f.took))
	who.Text = came
	if room := driver.MaxNote - len(who.Note()); len(text) > room {
		text = strings.ToValidUTF8(text[:max(room, 0)], "")
	}
	who.Text = text + came
	return leasehold.Details(who)
}

// backTTL is how long a name stays held after the last attempt of giveBack if only the first of its
// two calls is applied.
const backTTL = 10 * time.Second

// giveBack ends leases without keeping their names. To do so it resumes a lease that would be kept,
// with backTTL, and releases it. It does not call Release of leases, which would keep the names of
// those that are left. Without an answer they expire, or end with the session of the store.
func (r *run) giveBack(ctx context.Context, locks *leasehold.Locker, leases *leasehold.Leases) error {
	if !r.period.keeps() {
		return leases.Release(ctx)
	}
	names := leases.Names()
	return errors.Join(several.Errors(len(names), len(names), func(i int) error {
		lease, err := locks.Resume(ctx, names[i], leases.Lease(names[i]).Owner(), leasehold.NoRenew(), leasehold.TTL(backTTL))
		if err == nil {
			err = lease.Release(ctx)
		}
		return err
	})...)
}
