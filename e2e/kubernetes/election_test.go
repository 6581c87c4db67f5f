package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// candidate is leader election's own program: it leads until ctx ends, or it is lost.
func candidate(t testing.TB, c clientset.Interface, name, identity string, release bool, lead func(ctx context.Context)) *leaderelection.LeaderElector {
	t.Helper()
	const lease, renew, retry = 15 * time.Second, 10 * time.Second, time.Second
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: meta.ObjectMeta{Name: name, Namespace: namespace}, Client: c.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry, ReleaseOnCancel: release,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: lead, OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// leading runs a candidate until it leads; stop ends it.
func leading(t testing.TB, k *servers.Kubernetes, name, identity string, release bool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	leads, ended := make(chan struct{}), make(chan struct{})
	e := candidate(t, clients(t, k), name, identity, release, func(context.Context) { close(leads) })
	go func() {
		e.Run(ctx)
		close(ended)
	}()
	t.Cleanup(cancel)
	select {
	case <-leads:
	case <-time.After(2 * time.Minute):
		t.Fatal("the candidate does not lead")
	}
	return func() { cancel(); <-ended }
}

// A leader is seen as the holder, keeps us out for as long as it renews, and hands over at once when it
// says so.
func TestLeaderKeepsUsOut(t *testing.T) {
	t.Parallel()
	k := server(t)
	l := lockerOn(t, k)
	for name, release := range map[string]bool{"released": true, "died": false} {
		t.Run(name, func(t *testing.T) {
			var last uint64
			for range 2 {
				if err := l.Do(t.Context(), name, func(context.Context) error { return nil }); err != nil {
					t.Fatal(err)
				}
				stop := leading(t, k, name, "controller-1", release)
				busy, held := (*leasehold.BusyError)(nil), time.Now()
				for time.Since(held) < 18*time.Second { // it outlives its duration, as it renews
					if _, err := l.TryAcquire(t.Context(), name); !errors.As(err, &busy) || busy.Holder.Note != "controller-1" {
						t.Fatalf("beside a leader: %v, %v", busy, err)
					}
					if _, err := l.Acquire(t.Context(), name, leasehold.Wait(time.Second)); !errors.Is(err, leasehold.ErrBusy) {
						t.Fatalf("beside a leader: %v", err)
					}
				}
				stop()
				ended := time.Now()
				lease, err := l.Acquire(t.Context(), name, leasehold.Wait(2*time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(ended); !release && took < 10*time.Second {
					t.Errorf("taken over %v after a leader had ended that releases nothing", took)
				}
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A holder of ours keeps candidates out for as long as it renews, however often within a second, and for a
// whole TTL after the last time.
func TestHolderKeepsCandidatesOut(t *testing.T) {
	t.Parallel()
	k := server(t)
	d := open(t, k)
	t.Cleanup(func() { d.Close() })
	const lease = 15 * time.Second
	c := claimtest.New(t, d, driver.Request{Resource: "a", Owner: "a long owner of ours", Note: "web-1", TTL: lease, Mode: driver.Shared})
	claimtest.Granted(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	led := make(chan time.Time, 1)
	go candidate(t, clients(t, k), "a", "controller-1", true, func(context.Context) {
		led <- time.Now()
		cancel()
	}).Run(ctx)
	var last time.Time
	for begun := time.Now(); time.Since(begun) < 2*lease; {
		for range 5 {
			last = time.Now()
			if _, err := c.Renew(t.Context(), lease); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-led:
			t.Fatal("a candidate leads beside a holder")
		case <-time.After(lease / 5):
		}
	}
	select {
	case at := <-led:
		if early := last.Add(lease).Sub(at); early > 0 {
			t.Errorf("a candidate leads %v before the lease has ended", early)
		}
	case <-time.After(2 * time.Minute):
		t.Error("no candidate leads after the last holder")
	}
	if _, err := c.Renew(t.Context(), lease); !errors.Is(err, driver.ErrLost) {
		t.Errorf("renewed beside a leader: %v", err)
	}
}

// One contest: candidates and Lockers take turns on one Lease, and never two at once.
func TestContest(t *testing.T) {
	t.Parallel()
	k := server(t)
	const name, each, turns = "contest", 3, 5
	var inside, theirs, ours atomic.Int64
	enter := func(who *atomic.Int64) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d at once", n)
		}
		time.Sleep(20 * time.Millisecond)
		inside.Add(-1)
		who.Add(1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	done := func() bool { return ours.Load() >= each*turns && theirs.Load() >= each*turns || ctx.Err() != nil }
	ended := make(chan error)
	for i := range each {
		c := clients(t, k)
		go func() {
			for !done() {
				turn, stop := context.WithCancel(ctx)
				candidate(t, c, name, fmt.Sprint("controller-", i), true, func(context.Context) {
					enter(&theirs)
					stop()
				}).Run(turn)
				stop()
			}
			ended <- nil
		}()
		l := lockerOn(t, k)
		go func() {
			var last uint64
			for !done() {
				lease, err := l.Acquire(ctx, name)
				if err != nil {
					ended <- err
					return
				}
				enter(&ours)
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				if err := lease.Release(ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
				time.Sleep(100 * time.Millisecond) // candidates only ask once a second
			}
			ended <- nil
		}()
	}
	for range 2 * each {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if ours.Load() < each*turns || theirs.Load() < each*turns {
		t.Errorf("%d turns of ours, %d of theirs", ours.Load(), theirs.Load())
	}
	t.Logf("%d turns of ours, %d of theirs", ours.Load(), theirs.Load())
}
