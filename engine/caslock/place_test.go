package caslock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/caslock"
)

// A deaf store has a watch that never begins.
type deaf struct{ counting }

func (*deaf) Watch(context.Context, func(), func(caslock.Item)) error { return errors.New("no watch") }

func lockerOn(t *testing.T, s caslock.Store) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(process(t, s), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Who waits gets its turn though it is not told of it, also when its TTL is shorter than it would wait for the watch.
func TestShortTTLBesideAWatchThatFails(t *testing.T) {
	for _, ttl := range []time.Duration{200 * time.Millisecond, 900 * time.Millisecond, 3 * time.Second} {
		bubble(t, func(t *testing.T) {
			s := &deaf{}
			first, err := lockerOn(t, s).Acquire(t.Context(), "r", leasehold.TTL(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(1500*time.Millisecond, func() {
				if err := first.Release(context.Background()); err != nil {
					t.Error(err)
				}
			})
			next, err := lockerOn(t, s).Acquire(t.Context(), "r", leasehold.TTL(ttl), leasehold.Wait(10*time.Second))
			if err != nil {
				t.Fatalf("TTL %v: %v", ttl, err)
			}
			if err := next.Release(t.Context()); err != nil {
				t.Errorf("TTL %v: %v", ttl, err)
			}
		})
	}
}

// A waiter gives a sign each quarter of its place's time, so that two may be late.
func TestWaiterGivesASignEachQuarter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &counting{}
		first, err := lockerOn(t, s).Acquire(t.Context(), "r", leasehold.TTL(10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		before := s.last
		const waits = 20 * time.Second // 20 quarters of the default
		if _, err := lockerOn(t, s).Acquire(t.Context(), "r", leasehold.Wait(waits)); !errors.Is(err, leasehold.ErrBusy) {
			t.Fatal(err)
		}
		if n := s.last - before; n < 19 || n > 24 { // with the first one, and the release
			t.Errorf("%d writes in %v", n, waits)
		}
		if err := first.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
