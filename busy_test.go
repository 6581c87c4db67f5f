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

// A refusal describes the holder as of the call's return, not as of its last question to the engine.
func TestRefusalTellsTheHolderAsOfItsReturn(t *testing.T) {
	const held, wait, ttl = 3 * time.Second, 4 * time.Second, time.Minute
	for name, ask := range map[string]func(ctx context.Context, l *leasehold.Locker, wait leasehold.Option) error{
		"Acquire": func(ctx context.Context, l *leasehold.Locker, wait leasehold.Option) error {
			_, err := l.Acquire(ctx, "a", wait)
			return err
		},
		"AcquireAll, of a later name": func(ctx context.Context, l *leasehold.Locker, wait leasehold.Option) error {
			_, err := l.AcquireAll(ctx, []string{"0", "a"}, wait)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				acquire(t, newLocker(t, server.Connect(), nil), "a", leasehold.TTL(ttl), leasehold.NoRenew())
				time.Sleep(held)
				for _, wait := range []time.Duration{wait, 0} {
					before := time.Now()
					err := ask(t.Context(), newLocker(t, server.Connect(), nil), leasehold.Wait(wait))
					busy, ok := errors.AsType[*leasehold.BusyError](err)
					if !ok || time.Since(before) != wait {
						t.Fatalf("%v after %v", err, time.Since(before))
					}
					if h := busy.Holder; h.Held != held+4*time.Second || h.Left != ttl-h.Held {
						t.Errorf("after a wait of %v: held for %v, %v left; want %v and the rest of %v", wait, h.Held, h.Left, held+4*time.Second, ttl)
					}
				}
			})
		})
	}
}

// A release that hangs outlasts the deadline of what it releases.
func TestRefusalAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		lease := acquire(t, locks, "a", leasehold.TTL(4*time.Second), leasehold.NoRenew())
		time.Sleep(3 * time.Second)
		mine.Always(locktest.OpRelease, locktest.HangRequest)
		done := make(chan error)
		go func() { done <- lease.Release(t.Context()) }()
		time.Sleep(2 * time.Second)
		_, err := locks.TryAcquire(t.Context(), "a")
		if busy, ok := errors.AsType[*leasehold.BusyError](err); !ok || busy.Holder.Left != 0 {
			t.Errorf("refused by %v, want a holder with no time left", err)
		}
		mine.Always(locktest.OpRelease, nil)
		<-done
	})
}

// A refusal within the process tells as much of a lease as the engine does.
func TestRefusalInTheProcessTellsTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		acquire(t, locks, "a", leasehold.TTL(time.Minute))
		time.Sleep(time.Second)
		_, err := locks.TryAcquire(t.Context(), "a")
		busy, ok := errors.AsType[*leasehold.BusyError](err)
		if want := held(t, locks); !ok || busy.Holder.TTL != want.TTL || busy.Holder.Left != want.Left {
			t.Errorf("refused by %v, want %v", busy.Holder, want)
		}
	})
}

// So it does after an Extend to a shorter TTL whose answer was lost.
func TestRefusalInTheProcessTellsOfAShorterExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		lease := acquire(t, locks, "a", leasehold.TTL(time.Hour))
		mine.Next(locktest.OpRenew, locktest.LoseReply)
		wantErr(t, lease.Extend(t.Context(), 10*time.Second), locktest.ErrInjected)
		_, err := locks.TryAcquire(t.Context(), "a")
		busy, ok := errors.AsType[*leasehold.BusyError](err)
		if want := held(t, locks); !ok || busy.Holder.TTL != want.TTL || busy.Holder.Left != want.Left {
			t.Errorf("refused by %v, want %v", busy.Holder, want)
		}
		lease.Release(t.Context())
	})
}
