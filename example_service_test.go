package leasehold_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// What docs/testing.md shows: a service that uses a Locker, and its tests.

// A reporter writes the report, on one machine of several.
type reporter struct {
	locks locker
	write func(ctx context.Context) error // stops when ctx ends
}

// locker is what it uses of a *leasehold.Locker.
type locker interface {
	Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...leasehold.Option) error
}

// Run reports whether this machine wrote the report; false without an error: another does.
func (r *reporter) Run(ctx context.Context) (wrote bool, err error) {
	err = r.locks.Do(ctx, "report", r.write, leasehold.Wait(0))
	if errors.Is(err, leasehold.ErrBusy) {
		return false, nil
	}
	return err == nil, err // of ErrLost: another may have begun it meanwhile
}

func TestReportIsWrittenOnOneMachine(t *testing.T) {
	server := memory.NewServer() // the engine
	begun, end := make(chan bool), make(chan bool)
	first := &reporter{
		locks: newLocker(t, server.Connect(), nil), // one process
		write: func(context.Context) error { close(begun); <-end; return nil },
	}
	second := &reporter{
		locks: newLocker(t, server.Connect(), nil), // another
		write: func(context.Context) error { t.Error("both write"); return nil },
	}
	ended := make(chan error)
	go func() { _, err := first.Run(t.Context()); ended <- err }()
	<-begun
	if wrote, err := second.Run(t.Context()); wrote || err != nil {
		t.Errorf("the second one: wrote %v, %v", wrote, err)
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestReportStopsBeforeAnotherBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock runs as soon as all wait: the TTL takes no time
		server := memory.NewServer()
		link := locktest.NewFaulty(server.Connect())
		stopped := false
		cutOff := &reporter{
			locks: newLocker(t, link, nil),
			write: func(ctx context.Context) error {
				link.Sever() // the network is gone, and renewals with it
				<-ctx.Done()
				stopped = true
				return ctx.Err()
			},
		}
		ended := make(chan error, 1)
		go func() { _, err := cutOff.Run(t.Context()); ended <- err }()
		synctest.Wait()

		other := newLocker(t, server.Connect(), nil)
		lease, err := other.Acquire(t.Context(), "report", leasehold.Wait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release(t.Context())
		if !stopped {
			t.Error("another was let in before the first one stopped")
		}
		if err := <-ended; !errors.Is(err, leasehold.ErrLost) {
			t.Errorf("the first one: %v, want ErrLost", err)
		}
	})
}

func TestReportWhoseReleaseHasNoAnswer(t *testing.T) {
	link := locktest.NewFaulty(memory.New())
	r := &reporter{
		locks: newLocker(t, link, nil),
		write: func(context.Context) error { return nil },
	}
	link.Next(locktest.OpRelease, locktest.LoseReply) // the engine has released it, and nobody hears of it
	wrote, err := r.Run(t.Context())
	if wrote || err == nil || errors.Is(err, leasehold.ErrLost) {
		t.Errorf("wrote %v, %v; want an unknown outcome", wrote, err)
	}
}

// answers is a locker that has no engine: it answers what the test wants.
type answers func(ctx context.Context, fn func(ctx context.Context) error) error

func (a answers) Do(ctx context.Context, _ string, fn func(ctx context.Context) error, _ ...leasehold.Option) error {
	return a(ctx, fn)
}

func TestReportIsLeftToAnother(t *testing.T) {
	busy := answers(func(context.Context, func(context.Context) error) error { return leasehold.ErrBusy })
	r := &reporter{locks: busy}
	if wrote, err := r.Run(t.Context()); wrote || err != nil {
		t.Errorf("wrote %v, %v", wrote, err)
	}
}
