package adapters

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdgocron"
)

// schedule has a scheduler with opts run a job once, at the same instant as the others.
func schedule(t *testing.T, at time.Time, task any, jobOpts []gocron.JobOption, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() }) // it says that a job has been stopped
	job := append([]gocron.JobOption{gocron.WithName("report")}, jobOpts...)
	if _, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(at)), gocron.NewTask(task), job...); err != nil {
		t.Fatal(err)
	}
	s.Start()
	return s
}

// outcomes are what the jobs of all schedulers have come to.
type outcomes struct {
	skipped chan error
	ended   chan error
}

func newOutcomes() *outcomes {
	return &outcomes{skipped: make(chan error, 10), ended: make(chan error, 10)}
}

func (o *outcomes) listeners() []gocron.JobOption {
	return []gocron.JobOption{gocron.WithEventListeners(
		gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { o.skipped <- err }),
		gocron.AfterJobRuns(func(uuid.UUID, string) { o.ended <- nil }),
		gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { o.ended <- err }),
	)}
}

func next(t *testing.T, from chan error) error {
	t.Helper()
	select {
	case err := <-from:
		return err
	case <-time.After(margin):
		t.Fatal("nothing came")
		return nil
	}
}

// Two schedulers on one engine fire at the same instant: one runs the job, the other skips it,
// also when the first has long been done.
func TestTwoSchedulersRunAJobOnce(t *testing.T) {
	t.Parallel()
	s, o := newStore(t), newOutcomes()
	var runs atomic.Int32
	at := time.Now().Add(time.Second)
	for range 2 {
		l := leaseholdgocron.NewLocker(s.connect(t, 0), leasehold.AtLeast(time.Hour))
		schedule(t, at, l.Task("report", func(context.Context) error { runs.Add(1); return nil }),
			o.listeners(), gocron.WithDistributedLocker(l))
	}
	if err := next(t, o.ended); err != nil {
		t.Errorf("the job: %v", err)
	}
	if err := next(t, o.skipped); !errors.Is(err, leasehold.ErrBusy) {
		t.Errorf("the other scheduler: %v, want ErrBusy", err)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("the job ran %d times", n)
	}
}

// A job whose lease is lost is ended, and fails. An operator takes it away here; the holder hears
// of it from its next renewal.
func TestTaskEndsWithItsLease(t *testing.T) {
	t.Parallel()
	s, o := newStore(t), newOutcomes()
	locks := s.connect(t, 3*time.Second)
	l := leaseholdgocron.NewLocker(locks)
	task := l.Task("report", func(ctx context.Context) error {
		lease, ok := leasehold.FromContext(ctx)
		if !ok || lease.Token() == 0 {
			t.Error("the task finds no lease in its context")
			return nil
		}
		lose(t, locks, "report")
		select {
		case <-ctx.Done():
		case <-time.After(margin):
			t.Error("the context did not end")
		}
		return nil
	})
	schedule(t, time.Now().Add(500*time.Millisecond), task, o.listeners(), gocron.WithDistributedLocker(l))
	if err := next(t, o.ended); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("the job came to %v, want ErrLost", err)
	}
}

// A job that is no Task hears nothing of the loss: it runs on while another scheduler gets the lease.
func TestAnyOtherJobRunsOnAfterALoss(t *testing.T) {
	t.Parallel()
	s, o := newStore(t), newOutcomes()
	locks := s.connect(t, 3*time.Second)
	other := leaseholdgocron.NewLocker(s.connect(t, 0))
	job := func(ctx context.Context) error {
		lose(t, locks, "report")
		lock, err := other.Lock(t.Context(), "report")
		if err != nil {
			t.Errorf("the other scheduler, after the loss: %v", err)
			return nil
		}
		defer lock.Unlock(t.Context())
		time.Sleep(4 * time.Second) // beyond the TTL: the holder has heard of it
		return ctx.Err()
	}
	schedule(t, time.Now().Add(500*time.Millisecond), job, o.listeners(), gocron.WithDistributedLocker(leaseholdgocron.NewLocker(locks)))
	if err := next(t, o.ended); err != nil {
		t.Errorf("the job came to %v, want no error: gocron does not tell it", err)
	}
}

// A task does not run under a name that nobody has locked.
func TestTaskWithoutItsLeaseIsNotRun(t *testing.T) {
	t.Parallel()
	l := leaseholdgocron.NewLocker(newStore(t).connect(t, 0))
	err := l.Task("report", func(context.Context) error { t.Error("it ran"); return nil })(t.Context())
	if !errors.Is(err, leaseholdgocron.ErrNoLease) {
		t.Errorf("%v, want ErrNoLease", err)
	}
}

// The leader runs the jobs. When it is closed the other one leads, and not before the task of the
// former has ended.
func TestElectorsFollowEachOther(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := leaseholdgocron.NewElector(s.connect(t, 0), "schedulers")
	until(t, "the first leads", func() bool { return first.IsLeader(t.Context()) == nil })
	second := leaseholdgocron.NewElector(s.connect(t, 0), "schedulers")
	t.Cleanup(func() { second.Close() })
	if err := second.IsLeader(t.Context()); !errors.Is(err, leaseholdgocron.ErrNotLeader) {
		t.Errorf("the second: %v, want ErrNotLeader", err)
	}

	begun, o := make(chan bool), newOutcomes()
	var running atomic.Bool
	at := time.Now().Add(500 * time.Millisecond)
	for _, e := range []*leaseholdgocron.Elector{first, second} {
		schedule(t, at, e.Task(func(ctx context.Context) error {
			running.Store(true)
			close(begun) // twice, if both ran it
			<-ctx.Done()
			time.Sleep(500 * time.Millisecond) // cleans up
			running.Store(false)
			return nil
		}), o.listeners(), gocron.WithDistributedElector(e))
	}
	<-begun
	var closing sync.WaitGroup
	closing.Go(func() {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	})
	until(t, "the second leads", func() bool { return second.IsLeader(t.Context()) == nil })
	if running.Load() {
		t.Error("the second leads while the first one's task runs")
	}
	closing.Wait()
	if err := next(t, o.ended); err != nil {
		t.Errorf("the task of the first: %v", err)
	}
	if err := first.IsLeader(t.Context()); !errors.Is(err, leaseholdgocron.ErrNotLeader) {
		t.Errorf("the first, closed: %v", err)
	}
	if err := first.Task(func(context.Context) error { t.Error("it ran"); return nil })(t.Context()); !errors.Is(err, leaseholdgocron.ErrNoLease) {
		t.Errorf("a task of the first, closed: %v", err)
	}
}

// A leader that loses its lease leads no more, and its tasks end and fail.
func TestElectorLosesItsTerm(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	locks := s.connect(t, 3*time.Second)
	e := leaseholdgocron.NewElector(locks, "schedulers")
	t.Cleanup(func() { e.Close() })
	until(t, "it leads", func() bool { return e.IsLeader(t.Context()) == nil })
	err := e.Task(func(ctx context.Context) error {
		lose(t, locks, "schedulers")
		select {
		case <-ctx.Done():
		case <-time.After(margin):
			t.Error("the context did not end")
		}
		return ctx.Err()
	})(t.Context())
	if !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("the task came to %v, want ErrLost", err)
	}
	until(t, "it leads again", func() bool { return e.IsLeader(t.Context()) == nil })
}
