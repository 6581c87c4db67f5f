package leaseholdgocron

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/leasehold-go/leasehold"
)

// ErrNoLease means that a task was run without its lease: the names of job and task differ, the
// scheduler does not use this Locker, or it is not the leader.
var ErrNoLease = errors.New("leaseholdgocron: the job has no lease")

// A Locker is a gocron.Locker. A job that is due runs on the scheduler that gets its lease. Pass it
// to gocron.WithDistributedLocker. It is safe for concurrent use, by several schedulers too.
type Locker struct {
	locks *leasehold.Locker
	opts  []leasehold.Option

	mu     sync.Mutex
	leases map[string][]*held // guarded by mu; of the jobs that are running, by name; oldest first
}

// NewLocker returns a Locker that acquires leases with opts. It does no I/O.
//
// Schedulers do not fire at the same instant. A job that has ended on one before it is due on
// another would run again there. To prevent that, pass [leasehold.AtLeast] with more than the
// schedulers may differ by, and less than the job's period. Or pass [leasehold.OncePer] with the
// period; such a lease is not renewed.
//
// The default is [leasehold.Wait] with 0: a scheduler that does not get the lease skips the job.
func NewLocker(locks *leasehold.Locker, opts ...leasehold.Option) *Locker {
	return &Locker{
		locks: locks, opts: append([]leasehold.Option{leasehold.Wait(0)}, opts...),
		leases: make(map[string][]*held),
	}
}

// Lock implements gocron.Locker. The key is the name of the job and of its lease. gocron skips the
// job on any error. The error matches [leasehold.ErrBusy] if the job runs elsewhere.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.locks.Acquire(ctx, key, slices.Clone(l.opts)...)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &held{l, &run{lease, taskDue}}
	l.leases[key] = append(l.leases[key], h)
	return h, nil
}

// Task wraps fn for gocron.NewTask. fn must stop when its context ends. The key is the job's name;
// see gocron.WithName.
//
// The context ends with the lease or with the job's context. [leasehold.FromContext] finds the
// lease in it. If the lease ended before fn did, the task returns fn's error, joined with one that
// matches [leasehold.ErrLost]: another scheduler may have run the job meanwhile. Runs of a job at
// the same time have a lease each. Without a lease the task returns [ErrNoLease] and does not call
// fn.
func (l *Locker) Task(key string, fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		r := l.begin(key)
		if r == nil {
			return fmt.Errorf("%w: job %q", ErrNoLease, key)
		}
		defer l.end(r)
		return under(ctx, r.lease.Context(), fn)
	}
}

// begin returns the oldest run of the job that has no task yet, or nil.
func (l *Locker) begin(key string) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.leases[key] {
		if h.run.task == taskDue {
			h.run.task = taskRuns
			return h.run
		}
	}
	return nil
}

func (l *Locker) end(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.task = taskEnded
}

// under calls fn with a context that ends when ctx or held ends. Its values are those of held.
func under(ctx, held context.Context, fn func(ctx context.Context) error) error {
	both, end := context.WithCancelCause(held)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	err := fn(taskContext{both, held})
	if lost := context.Cause(held); errors.Is(lost, leasehold.ErrLost) {
		err = errors.Join(err, lost)
	}
	return err
}

// A taskContext derives from held. Its Err checks the clock, as that of held does: after a pause the
// task may run before the deadline's timer does.
type taskContext struct {
	context.Context
	held context.Context
}

func (c taskContext) Err() error {
	_ = c.held.Err() // ends c too
	return c.Context.Err()
}

// A run is a lease and the state of the task that runs under it.
type run struct {
	lease *leasehold.Lease
	task  taskState // guarded by Locker.mu
}

// A taskState is the state of a run's task. Unlock releases the lease with the greatest state first.
type taskState int

const (
	taskRuns taskState = iota
	taskDue
	taskEnded
)

// held is the lease of a running job, as a gocron.Lock.
type held struct {
	locker *Locker
	run    *run // guarded by locker.mu
}

// Unlock implements gocron.Lock.
func (h *held) Unlock(ctx context.Context) error { return h.remove().Release(ctx) }

// remove removes h and returns the lease to release. gocron does not tell which task belongs to h. If
// h's lease has a running task, remove first swaps it for one whose task has ended or not begun.
func (h *held) remove() *leasehold.Lease {
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	name := h.run.lease.Name()
	all := h.locker.leases[name]
	if !slices.Contains(all, h) { // Unlock was called before
		return h.run.lease
	}
	spare := h
	for _, o := range all {
		if o.run.task > spare.run.task {
			spare = o
		}
	}
	h.run, spare.run = spare.run, h.run
	all = slices.DeleteFunc(all, func(o *held) bool { return o == h })
	if h.locker.leases[name] = all; len(all) == 0 {
		delete(h.locker.leases, name)
	}
	return h.run.lease
}
