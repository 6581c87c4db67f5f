package leaseholdgocron

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/leasehold-go/leasehold"
)

// ErrNotLeader: another scheduler leads, or none does yet.
var ErrNotLeader = errors.New("leaseholdgocron: this scheduler does not lead")

// An Elector is a gocron.Elector: of several schedulers the leader runs all jobs, and when it is
// gone the next one leads. Give it to gocron.WithDistributedElector. It is safe for concurrent use.
type Elector struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when the campaign is over

	mu    sync.Mutex
	term  context.Context // guarded by mu; nil: it does not lead
	tasks *sync.WaitGroup // guarded by mu; of the term
	err   error           // guarded by mu; why the campaign is over
}

// NewElector returns an Elector that campaigns for name, by [leasehold.Locker.Lead] with opts, until
// Close. With [leasehold.Wait] the campaign is over when it has waited for so long. Jobs that are
// due while nobody leads, such as for a TTL after a leader was killed, are skipped by all.
func NewElector(locks *leasehold.Locker, name string, opts ...leasehold.Option) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		err := locks.Lead(ctx, name, e.lead, opts...)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.err = err
	}()
	return e
}

// lead is one term. The lease is given up when its tasks have ended: nobody else leads before.
func (e *Elector) lead(ctx context.Context) error {
	tasks := new(sync.WaitGroup)
	e.mu.Lock()
	e.term, e.tasks = ctx, tasks
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.term = nil
	e.mu.Unlock()
	tasks.Wait()
	return nil
}

// IsLeader implements gocron.Elector: nil while this scheduler leads, else [ErrNotLeader], or what
// has ended the campaign. It asks nobody.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.term != nil && e.term.Err() == nil:
		return nil
	case e.err != nil:
		return errors.Join(ErrNotLeader, e.err)
	}
	return ErrNotLeader
}

// Task makes a job's function of one that stops when its context ends, for gocron.NewTask.
//
// The context ends with the term and with that of the job; [leasehold.FromContext] finds the
// lease in it. Until fn has returned the term's lease is not given up, unless it is lost: then
// the task returns fn's error joined with one that matches [leasehold.ErrLost]. Where this
// scheduler does not lead it is [ErrNoLease], and fn is not called.
func (e *Elector) Task(fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		e.mu.Lock()
		term, tasks := e.term, e.tasks
		if term != nil {
			tasks.Add(1)
		}
		e.mu.Unlock()
		if term == nil {
			return ErrNoLease
		}
		defer tasks.Done()
		return under(ctx, term, fn)
	}
}

// Close ends the campaign and, where this scheduler leads, its term, and waits for the term's
// tasks. It returns nil; an error that the release of the lease has an unknown outcome, so that the
// next scheduler may lead only after the TTL; or what had ended the campaign before.
func (e *Elector) Close() error {
	e.cancel()
	<-e.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	if only(e.err, context.Canceled) {
		return nil
	}
	return e.err
}

// only reports whether err says nothing but target.
func only(err, target error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return only(e.Unwrap(), target)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !only(err, target) })
	}
	return err == target
}
