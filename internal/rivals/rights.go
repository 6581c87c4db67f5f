package rivals

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// Permitted does everything that a user of the locks must be able to do with the rights of both
// Lockers. other must not hand over.
func Permitted(t *testing.T, l, other *leasehold.Locker, name string) {
	t.Helper()
	const woken = 800 * time.Millisecond // a waiter that is not woken polls each second
	for _, one := range []struct {
		opt  []leasehold.Option
		most time.Duration
	}{
		{nil, woken},
		{[]leasehold.Option{leasehold.Limit(1)}, woken},
		{[]leasehold.Option{leasehold.AtLeast(200 * time.Millisecond)}, 10 * time.Second}, // the engine's clock may count whole seconds
	} {
		lease, err := l.Acquire(t.Context(), name, one.opt...)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		next := make(chan error, 1)
		go func() {
			lease, err := other.Acquire(t.Context(), name, one.opt...)
			if err == nil {
				err = lease.Release(context.Background())
			}
			next <- err
		}()
		waited(t, l)
		start := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-next; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > one.most {
			t.Errorf("the waiter was granted after %v: was it woken?", took)
		}
	}
	lease, err := l.Acquire(t.Context(), "evicted")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Evict(t.Context(), "evicted", lease.Owner(), "test"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(2 * time.Second):
		t.Error("the holder was not told of its eviction")
	}
}

// waited returns when one caller waits for the only lock.
func waited(t *testing.T, l *leasehold.Locker) {
	t.Helper()
	for {
		list, err := l.Page(t.Context(), leasehold.PageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.States) == 1 && len(list.States[0].Waiters) == 1 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
