package migrate

import (
	"context"
	"errors"
	"log"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdgocron"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A redsyncLocker locks as gocron's own lockers for Redis do.
type redsyncLocker struct{ locks *redsync.Redsync }

type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLocker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	mutex := l.locks.NewMutex(key, redsync.WithTries(1), redsync.WithExpiry(time.Minute))
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncLock{mutex}, nil
}

func (l redsyncLock) Unlock(ctx context.Context) error {
	_, err := l.mutex.UnlockContext(ctx)
	return err
}

func gocronBefore(client *redis.Client, report func(ctx context.Context) error) (gocron.Scheduler, gocron.Task, error) {
	locker := redsyncLocker{redsync.New(goredis.NewPool(client))}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	return scheduler, gocron.NewTask(report), err // a report of more than a minute runs beside the next one
}

func gocronAfter(locks *leasehold.Locker, report func(ctx context.Context) error) (gocron.Scheduler, gocron.Task, error) {
	locker := leaseholdgocron.NewLocker(locks, leasehold.AtLeast(10*time.Second)) // clocks may differ by so much
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	return scheduler, gocron.NewTask(locker.Task("report", report)), err // ends when the lease is lost
}

func cronBefore(ctx context.Context, client *redis.Client, report func(ctx context.Context) error) cron.FuncJob {
	return func() {
		first, err := client.SetNX(ctx, "report", "taken", 50*time.Second).Result() // less than the minute between two runs
		if err != nil || !first {
			return
		}
		if err := report(ctx); err != nil {
			log.Print(err)
		}
	}
}

func cronAfter(ctx context.Context, locks *leasehold.Locker, report func(ctx context.Context) error) cron.FuncJob {
	return func() {
		err := locks.Do(ctx, "report", report, leasehold.OncePer(time.Minute)) // nine tenths of it
		if err != nil && !errors.Is(err, leasehold.ErrBusy) {
			log.Print(err)
		}
	}
}

// A gocron scheduler of before and one of after fire at the same instant, and one of them runs
// the job. It waits for the other's refusal.
func TestGocron(t *testing.T) {
	t.Parallel()
	server := &redis.Options{Addr: servers.StartRedis(t).Addr()}
	client := redis.NewClient(server)
	t.Cleanup(func() { client.Close() })
	locks := opened(t)(onRedis(server))

	refused, ended := make(chan error, 2), make(chan bool)
	var runs atomic.Int32
	report := func(ctx context.Context) error {
		runs.Add(1)
		select {
		case <-refused:
		case <-time.After(30 * time.Second):
			t.Error("the other scheduler was not refused")
		}
		close(ended) // twice, if both run
		return nil
	}
	at := time.Now().Add(time.Second)
	add := func(s gocron.Scheduler, task gocron.Task, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Shutdown() })
		_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(at)), task, gocron.WithName("report"),
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused <- err })))
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
	}
	add(gocronBefore(client, report))
	add(gocronAfter(locks, report))
	<-ended
	if n := runs.Load(); n != 1 {
		t.Errorf("the job ran %d times", n)
	}
}

// once is a schedule with one instant.
type once time.Time

func (o once) Next(now time.Time) time.Time {
	if at := time.Time(o); now.Before(at) {
		return at
	}
	return time.Time{} // never
}

// Of robfig/cron's programs of before and of after, one runs the job, whichever fires first, although
// the job has ended when the other one fires.
func TestRobfigCron(t *testing.T) {
	t.Parallel()
	for name, afterFirst := range map[string]bool{"before, after": false, "after, before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &redis.Options{Addr: servers.StartRedis(t).Addr()}
			client := redis.NewClient(server)
			t.Cleanup(func() { client.Close() })
			locks := opened(t)(onRedis(server))
			var runs, fired atomic.Int32
			report := func(context.Context) error { runs.Add(1); return nil }
			jobs := []cron.FuncJob{cronBefore(t.Context(), client, report), cronAfter(t.Context(), locks, report)}
			if afterFirst {
				jobs[0], jobs[1] = jobs[1], jobs[0]
			}
			at := time.Now().Add(time.Second)
			for i, job := range jobs {
				c := cron.New()
				c.Schedule(once(at.Add(time.Duration(i)*time.Second)), cron.FuncJob(func() { job(); fired.Add(1) }))
				c.Start()
				t.Cleanup(func() { <-c.Stop().Done() })
			}
			for end := time.Now().Add(30 * time.Second); fired.Load() < 2 && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			if fired, runs := fired.Load(), runs.Load(); fired != 2 || runs != 1 {
				t.Errorf("the job ran %d times of %d, want once of 2", runs, fired)
			}
		})
	}
}
