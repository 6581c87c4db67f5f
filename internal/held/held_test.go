package held

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A caller that has lost its lease may release it after another has acquired the name. The other's
// lease stays until both have released.
func TestALiveLeaseStaysUntilAllHaveGivenUp(t *testing.T) {
	server := memory.NewServer()
	locks, err := leasehold.New(server.Connect(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	var all Leases
	take := func() *leasehold.Lease {
		lease, err := locks.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		all.Put(lease)
		return lease
	}
	lost := take()
	server.Flush()
	<-lost.Context().Done()
	live := take()
	if all.Current("a") != live {
		t.Error("the lease that was lost counts, although there is a live one")
	}
	if err := all.Release(t.Context(), "a"); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("the first to give up: %v, want ErrLost", err)
	}
	if live.Context().Err() != nil || all.Current("a") != live {
		t.Error("the live lease was given up for the lost one")
	}
	if err := all.Release(t.Context(), "a"); err != nil || live.Context().Err() == nil {
		t.Errorf("the second: %v", err)
	}
	if err := all.Release(t.Context(), "a"); err == nil || all.Current("a") != nil {
		t.Errorf("nobody: %v, want an error", err)
	}
}

// faulty returns a Locker, and its link to the engine.
func faulty(t *testing.T) (*locktest.Faulty, *leasehold.Locker) {
	t.Helper()
	link := locktest.NewFaulty(memory.New())
	locks, err := leasehold.New(link, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	return link, locks
}

// A release with an unknown outcome can be repeated.
func TestAnUnknownReleaseIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, locks := faulty(t)
		lease, err := locks.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var all Leases
		all.Put(lease)
		link.Always(locktest.OpRelease, locktest.LoseRequest)
		if err := all.Release(context.Background(), "a"); err == nil || errors.Is(err, leasehold.ErrLost) {
			t.Fatalf("%v, want an unknown outcome", err)
		}
		link.Always(locktest.OpRelease, nil)
		if err := all.Release(context.Background(), "a"); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

// After a release with an unknown outcome, the next one is of the lease that was acquired since:
// nothing else would ever release it.
func TestAnUnknownReleaseIsNotTriedInPlaceOfTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, locks := faulty(t)
		var all Leases
		for _, lose := range []locktest.Fault{locktest.LoseRequest, nil} {
			lease, err := locks.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			all.Put(lease)
			link.Always(locktest.OpRelease, lose)
			if err := all.Release(context.Background(), "a"); (err == nil) != (lose == nil) || lease.Context().Err() == nil {
				t.Errorf("released with %v", err)
			}
		}
		if state, err := locks.Inspect(t.Context(), "a"); err != nil || len(state.Holders) > 0 {
			t.Errorf("%d holders, %v", len(state.Holders), err)
		}
	})
}

// So it is if the next one was acquired before the outcome was unknown.
func TestAnUnknownReleaseIsOverOnceTheNextIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		link := locktest.NewFaulty(server.Connect())
		var all Leases
		take := func(d driver.Driver) {
			locks, err := leasehold.New(d, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { locks.Close() })
			lease, err := locks.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			all.Put(lease)
		}
		take(link)
		link.Next(locktest.OpRelease, func(_ context.Context, apply func() error) error {
			apply()
			take(server.Connect())
			return locktest.ErrInjected
		})
		if err := all.Release(t.Context(), "a"); !errors.Is(err, locktest.ErrInjected) {
			t.Errorf("%v, want an unknown outcome", err)
		}
		if err := all.Release(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if err := all.Release(t.Context(), "a"); err == nil || errors.Is(err, locktest.ErrInjected) {
			t.Errorf("%v, want that it is not held", err)
		}
	})
}

// Each of two callers that release at once releases a lease of its own, and a lease that is being
// released cannot be replaced.
func TestTwoReleaseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, locks := faulty(t)
		var all Leases
		var both [2]*leasehold.Lease
		for i := range both {
			lease, err := locks.Acquire(t.Context(), "a", leasehold.Shared())
			if err != nil {
				t.Fatal(err)
			}
			both[i] = lease
			all.Put(lease)
		}
		gate := make(chan struct{})
		link.Next(locktest.OpRelease, func(_ context.Context, apply func() error) error {
			<-gate
			return apply()
		})
		first := make(chan error)
		go func() { first <- all.Release(context.Background(), "a") }()
		synctest.Wait()
		if all.Current("a") != both[1] || all.Replace(both[0], both[1]) {
			t.Error("a lease is being released, and counts as held")
		}
		if err := all.Release(t.Context(), "a"); err != nil || both[1].Context().Err() == nil {
			t.Errorf("the second: %v", err)
		}
		close(gate)
		if err := <-first; err != nil {
			t.Errorf("the first: %v", err)
		}
		if all.Current("a") != nil {
			t.Error("a lease is left")
		}
	})
}
