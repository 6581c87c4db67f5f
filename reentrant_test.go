package leasehold_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

func TestWaitingForOneselfIsRefused(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	err := locks.Do(t.Context(), "a", func(ctx context.Context) error {
		return locks.Do(ctx, "b", func(ctx context.Context) error { // another name between them
			deeper, cancel := context.WithCancel(ctx)
			defer cancel()
			_, err := locks.Acquire(deeper, "a")
			return err
		})
	})
	wantErr(t, err, leasehold.ErrDeadlock)
	acquire(t, locks, "a", leasehold.Wait(0)).Release(t.Context())
}

func TestNestedLeaseSharesTokenAndLastReleaseFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		outer := acquire(t, locks, "a")
		inner, err := locks.Acquire(outer.Context(), "a", leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if inner.Token() != outer.Token() || inner.Owner() != outer.Owner() {
			t.Error("a nested lease has its own token or owner")
		}
		if err := outer.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * ttl)
		if inner.Context().Err() != nil {
			t.Fatal("the nested lease ended with the outer one")
		}
		_, err = locks.TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrBusy)
		if err := inner.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		acquire(t, locks, "a", leasehold.Wait(0)).Release(t.Context())
	})
}

func TestLossEndsNestedLeasesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		outer := acquire(t, locks, "a", leasehold.NoRenew())
		inner, err := locks.Acquire(outer.Context(), "a", leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl)
		wantErr(t, context.Cause(inner.Context()), leasehold.ErrLost)
		wantErr(t, inner.Release(t.Context()), leasehold.ErrLost)
		wantErr(t, outer.Release(t.Context()), leasehold.ErrLost)
	})
}

func TestSharedHolderCannotNestAnExclusiveLease(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	shared := acquire(t, locks, "a", leasehold.Shared())
	_, err := locks.Acquire(shared.Context(), "a", leasehold.Reentrant())
	wantErr(t, err, leasehold.ErrDeadlock)
	nested, err := locks.Acquire(shared.Context(), "a", leasehold.Shared(), leasehold.Reentrant())
	if err != nil {
		t.Fatal(err)
	}
	nested.Release(t.Context())
	shared.Release(t.Context())
}

// What a nested lease uses is a part of what the outer one does, or the limit would be exceeded.
func TestLighterHolderCannotNestAHeavierLease(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	nests := func(outer *leasehold.Lease, opts ...leasehold.Option) {
		t.Helper()
		nested, err := locks.Acquire(outer.Context(), "a", append(opts, leasehold.Reentrant())...)
		if err != nil {
			t.Fatal(err)
		}
		nested.Release(t.Context())
	}
	for _, light := range []leasehold.Option{leasehold.Limit(5), leasehold.Weight(2)} {
		outer := acquire(t, locks, "a", light)
		_, err := locks.Acquire(outer.Context(), "a", leasehold.Weight(3), leasehold.Reentrant())
		wantErr(t, err, leasehold.ErrDeadlock)
		nests(outer, light)
		nests(outer, leasehold.Shared())
		outer.Release(t.Context())
	}
	alone := acquire(t, locks, "a")
	nests(alone, leasehold.Weight(3))
	alone.Release(t.Context())
}

func TestContextOfAnEndedLeaseWaitsInTurn(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	old := acquire(t, locks, "a")
	old.Release(t.Context())
	lease, err := locks.Acquire(context.WithoutCancel(old.Context()), "a")
	if err != nil {
		t.Fatal(err)
	}
	lease.Release(t.Context())
}

func TestNobodyNestsInASuccessorsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), &leasehold.Options{HandOver: time.Second})
		first := acquire(t, locks, "a")
		got := make(chan *leasehold.Lease)
		go func() { got <- acquire(t, locks, "a") }()
		synctest.Wait()
		first.Release(t.Context())
		second := <-got
		old := context.WithoutCancel(first.Context())
		for _, opts := range [][]leasehold.Option{nil, {leasehold.Reentrant()}} {
			_, err := locks.TryAcquire(old, "a", opts...)
			wantErr(t, err, leasehold.ErrBusy)
		}
		second.Release(t.Context())
	})
}

func TestEndedContextDoesNotNest(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	lease := acquire(t, locks, "a")
	ctx, cancel := context.WithCancel(lease.Context())
	cancel()
	_, err := locks.Acquire(ctx, "a", leasehold.Reentrant())
	wantErr(t, err, context.Canceled)
	lease.Release(t.Context())
}
