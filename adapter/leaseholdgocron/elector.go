package leaseholdgocron

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// ErrNotLeader means that another scheduler leads, or none does yet.
var ErrNotLeader = errors.New("leaseholdgocron: this scheduler does not lead")

// An Elector is a gocron.Elector. Of several schedulers, the leader runs all jobs; when it is gone,
// another one leads. Pass it to gocron.WithDistributedElector. It is safe for concurrent use.
type Elector struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when the campaign is over

	mu    sync.Mutex
	term  context.Context // guarded by mu; nil: this scheduler does not lead
	tasks *sync.WaitGroup // guarded by mu; tasks of the term that are running
	err   error           // guarded by mu; why the last campaign has ended
}

// NewElector returns an Elector that campaigns for name until Close, by [leasehold.Locker.Lead]
// with opts. With [leasehold.Wait], the campaign ends after waiting that long. While the engine is
// away, the Elector tries again and again. If a job is due while nobody leads, all schedulers skip
// it: for up to a TTL after a leader was killed, for example.
func NewElector(locks *leasehold.Locker, name string, opts ...leasehold.Option) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		for fails := 0; ; fails++ {
			err := locks.Lead(ctx, name, e.lead, opts...)
			e.mu.Lock()
			e.err = err
			e.mu.Unlock()
			if waiting.Final(err) || errors.Is(err, leasehold.ErrBusy) || errors.Is(err, leasehold.ErrInvalidOption) {
				return
			}
			if _, err := waiting.Sleep(ctx, nil, nil, waiting.Backoff(fails, 20*time.Millisecond, time.Second)); err != nil {
				return
			}
		}
	}()
	return e
}

// lead is the callback of one term. It returns only after the term's tasks have ended, so the lease
// is not released before.
func (e *Elector) lead(ctx context.Context) error {
	tasks := new(sync.WaitGroup)
	e.mu.Lock()
	e.term, e.tasks, e.err = ctx, tasks, nil
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.term = nil
	e.mu.Unlock()
	tasks.Wait()
	return nil
}

// IsLeader implements gocron.Elector. It returns nil while this scheduler leads, else
// [ErrNotLeader], joined with the error that ended its last campaign, if any. It makes no call to
// the engine.
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

// Task wraps fn for gocron.NewTask. fn must stop when its context ends.
//
// The context ends with the term or with the job's context. [leasehold.FromContext] finds the lease
// in it. The term's lease is not released before fn has returned. If the lease is lost, the task
// returns fn's error, joined with one that matches [leasehold.ErrLost]. If this scheduler does not
// lead, the task returns [ErrNoLease] and does not call fn.
func (e *Elector) Task(fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		e.mu.Lock()
		term, tasks := e.term, e.tasks
		leads := term != nil && term.Err() == nil
		if leads {
			tasks.Add(1)
		}
		e.mu.Unlock()
		if !leads {
			return ErrNoLease
		}
		defer tasks.Done()
		return under(ctx, term, fn)
	}
}

// Close ends the campaign, and the term if this scheduler leads. It waits for the term's tasks.
//
// Close returns an error if the campaign had failed before, or if the outcome of the release is
// unknown. In the second case the next scheduler may have to wait for the TTL.
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

// only reports whether target is all that err consists of.
func only(err, target error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return only(e.Unwrap(), target)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !only(err, target) })
	}
	return err == target
}
