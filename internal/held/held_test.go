package held

import (
	"context"
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold"
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
	if err := all.Release(t.Context(), "a"); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("the first to give up: %v, want ErrLost", err)
	}
	if live.Context().Err() != nil || all.Oldest("a") != live {
		t.Error("the live lease was given up for the lost one")
	}
	if err := all.Release(t.Context(), "a"); err != nil || live.Context().Err() == nil {
		t.Errorf("the second: %v", err)
	}
	if err := all.Release(t.Context(), "a"); err == nil || all.Oldest("a") != nil {
		t.Errorf("nobody: %v, want an error", err)
	}
}

// A release with an unknown outcome can be repeated.
func TestAnUnknownReleaseIsTriedAgain(t *testing.T) {
	link := locktest.NewFaulty(memory.New())
	locks, err := leasehold.New(link, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
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
}
