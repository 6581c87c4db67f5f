package caslock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
)

// A rushed store refuses each write while it is rushed, as if another process had always written first.
type rushed struct {
	caslock.Store
	slow time.Duration // what a refusal takes
	rush atomic.Bool
}

func (s *rushed) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if s.rush.Load() {
		time.Sleep(s.slow)
		return "", caslock.ErrChanged
	}
	return s.Store.Write(ctx, name, value, was, life)
}

// A waiter outlasts a crowd that always writes first, whether its tries or its time run out. An attempt without
// waiting fails.
func TestCrowdFailsNoWaiter(t *testing.T) {
	for _, slow := range []time.Duration{time.Millisecond, time.Second} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := &rushed{Store: &counting{}, slow: slow}
				locks, err := leasehold.New(process(t, store), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer locks.Close()
				store.rush.Store(true)
				_, err = locks.TryAcquire(t.Context(), "r")
				if !errors.Is(err, caslock.ErrContended) && !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, leasehold.ErrBusy) {
					t.Errorf("TryAcquire: %v; want to hear that nothing is known", err)
				}
				start := time.Now()
				time.AfterFunc(time.Minute, func() { store.rush.Store(false) })
				lease, err := locks.Acquire(t.Context(), "r")
				if err != nil {
					t.Fatalf("Acquire after %v: %v; want it to wait", time.Since(start), err)
				}
				if waited := time.Since(start); waited < time.Minute || waited > time.Minute+2*time.Second {
					t.Errorf("Acquire waited for %v; want a minute", waited)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// An unreachable store takes calls about a name and does not answer. For others its machine refuses connections.
type unreachable struct{ hashed }

func (*unreachable) Read(ctx context.Context, name string) (caslock.Item, error) {
	if name == "refused" {
		return caslock.Item{}, fmt.Errorf("nobody answers: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	}
	<-ctx.Done()
	return caslock.Item{}, ctx.Err()
}

// A refused connection is no answer, so a call that hangs meanwhile was not delayed by others.
func TestRefusedConnectionIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := process(t, &unreachable{})
		time.AfterFunc(time.Second, func() {
			if _, err := claimOf(t, d, driver.Request{Resource: "refused", Owner: "a"}).Try(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("Try: %v; want it refused", err)
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := claimOf(t, d, driver.Request{Owner: "b", Queue: true}).Try(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrNotYet) {
			t.Errorf("Try: %v; want that nobody answers", err)
		}
	})
}
