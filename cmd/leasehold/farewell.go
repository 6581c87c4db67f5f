//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

// A farewell is what is left to do at the store when the command of a run is over.
type farewell struct {
	run    *run
	locks  *leasehold.Locker
	leases *leasehold.Leases
	each   []*leasehold.Lease // of leases, NAME's first
	until  time.Time          // when the leases end if the store hears nothing
	code   int                // of the command
	took   time.Duration
}

// lastWord is how long the store may still take after a signal. The signal may be the one that has
// ended the command, and a store that is there needs less.
const lastWord = time.Second

// say records what came of the command and gives the leases up. A signal that ends a program ends it,
// and is then returned beside the unknown outcome.
func (f *farewell) say(ctx context.Context) (released, stopped error) {
	signalled, stop := f.run.endedBySignal(ctx)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	context.AfterFunc(signalled, func() {
		time.AfterFunc(lastWord, func() { end(context.Cause(signalled)) })
	})
	done := make(chan error, 1)
	go func() { done <- f.insist(ctx) }()
	select {
	case released = <-done:
	case <-ctx.Done():
		released = fmt.Errorf("%s: the store has not answered whether it is released", shown(f.run.name))
	}
	stopped = signalIn(signalled)
	if settled(released) || stopped == nil {
		return released, nil
	}
	return fmt.Errorf("%w\nThe command has ended with exit code %d%s", released, f.code, f.consequence()), stopped
}

// insist ends the leases. What more than that depends on it tries until they have ended by themselves.
func (f *farewell) insist(ctx context.Context) error {
	insists := f.run.insists(f.code != 0)
	half := f.until.Add(-time.Until(f.until) / 2)
	for pause, tries := firstAgain, 0; ; pause, tries = min(2*pause, lastAgain), tries+1 {
		err := f.record(ctx)
		if !insists || settled(err) || time.Now().After(half) {
			err = f.release(ctx)
		}
		switch {
		case tries > 0 && f.gives() && errors.Is(err, leasehold.ErrLost): // by an earlier try
			return nil
		case err != nil && insists && time.Until(f.until) <= 0:
			return fmt.Errorf("%w\nThe command has ended with exit code %d%s", err, f.code, f.consequence())
		case !insists, settled(err), ctx.Err() != nil:
			return err
		case f.over(ctx) && time.Now().Before(f.until): // a try that had no answer did it
			return nil
		case tries == 0:
			f.run.app.tell(onWarning, f.run.name, 0, "%s\nThe command has ended with exit code %d. Trying again until %s, because %s",
				strings.TrimPrefix(err.Error(), "leasehold: "), f.code, f.until.Format(time.TimeOnly), f.stake())
		}
		select {
		case <-time.After(min(pause, time.Until(f.until))):
		case <-ctx.Done():
			return err
		}
	}
}

// settled reports whether asking again cannot help.
func settled(err error) bool {
	return err == nil || errors.Is(err, leasehold.ErrLost) || errors.Is(err, leasehold.ErrReleased) || hopeless(err)
}

// stake is what depends on the release.
func (f *farewell) stake() string {
	if f.gives() {
		return shown(f.run.name) + " stays taken otherwise"
	}
	return "it may run again before its time otherwise"
}

// consequence is what comes of it that nothing was released, for the end of a sentence.
func (f *farewell) consequence() string {
	if f.gives() || !f.run.insists(false) {
		return ""
	}
	return ", and may run again before its time"
}

// gives reports whether NAME is to be free at once.
func (f *farewell) gives() bool { return f.run.retry && f.code != 0 }

// record leaves what came of the command as the note of what holds the names from now on. Without it the former note
// still says who and when.
func (f *farewell) record(ctx context.Context) error {
	if !f.run.keeps() {
		return nil
	}
	note := fmt.Sprintf("%s (exit code %d after %s)", f.run.note, f.code, spanText(f.took))
	errs := make([]error, len(f.each))
	var calls sync.WaitGroup
	for i, lease := range f.each {
		calls.Go(func() { errs[i] = lease.SetNote(ctx, note) })
	}
	calls.Wait()
	return errors.Join(errs...)
}

func (f *farewell) release(ctx context.Context) error {
	if f.gives() {
		return f.run.giveBack(ctx, f.locks, f.leases)
	}
	return f.leases.Release(ctx)
}

// over reports whether the store shows nothing of the leases any more.
func (f *farewell) over(ctx context.Context) bool {
	for _, lease := range f.each {
		state, err := f.locks.Inspect(ctx, lease.Name())
		if err != nil {
			return false
		}
		for _, h := range state.Holders {
			if string(h.Owner) == lease.Owner() {
				return false
			}
		}
	}
	return true
}

// backTTL is how long a name stays taken whose lease is given back, should only the first of its two calls be answered.
const backTTL = 10 * time.Second

// giveBack ends leases without keeping their names. A lease that is resumed has no period
// for which it would be kept, and lasts for backTTL. Without an answer they end by themselves.
func (r *run) giveBack(ctx context.Context, locks *leasehold.Locker, leases *leasehold.Leases) (err error) {
	if !r.period.keeps() {
		return leases.Release(ctx)
	}
	for _, name := range leases.Names() {
		lease, resumed := locks.Resume(ctx, name, leases.Lease(name).Owner(), leasehold.NoRenew(), leasehold.TTL(backTTL))
		if resumed == nil {
			resumed = lease.Release(ctx)
		}
		err = errors.Join(err, resumed)
	}
	_ = leases.Release(ctx) // there is nothing left of them at the engine, unless that has failed
	return err
}
