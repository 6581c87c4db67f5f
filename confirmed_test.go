package leasehold_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// silent is an engine that tells nobody what it lost.
type silent struct{ *memory.Driver }

func (d silent) Claim(req driver.Request) (driver.Claim, error) {
	req.Lost = nil
	return d.Driver.Claim(req)
}

// wantGrant checks that lease is a grant of its own, and not one that was handed over.
func wantGrant(t *testing.T, lease, former *leasehold.Lease) {
	t.Helper()
	if lease.Token()%1024 != 0 || lease.Token() <= former.Token() {
		t.Errorf("token %d after %d, want that of a later grant", lease.Token(), former.Token())
	}
}

// Release says nil without asking only within the window. Who then begins by a grant that the
// engine has lost learns it soon, and acts no longer than the engine once said.
func TestHandOverOfAGrantThatTheEngineLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, others := newLocker(t, silent{server.Connect()}, nil), newLocker(t, server.Connect(), nil)
		first := acquire(t, locks, "a")
		next := make(chan *leasehold.Lease, 1)
		go func() { next <- acquire(t, locks, "a") }()
		synctest.Wait()
		server.Flush()
		other := acquire(t, others, "a")
		time.Sleep(leasehold.DefaultHandOver - time.Millisecond)
		if err := first.Release(t.Context()); err != nil {
			t.Fatalf("Release within the window: %v", err)
		}
		second, start := <-next, time.Now()
		if second.Deadline().After(first.Deadline()) {
			t.Errorf("the hand-over moved the deadline by %v", second.Deadline().Sub(first.Deadline()))
		}
		<-second.Context().Done()
		wantErr(t, context.Cause(second.Context()), leasehold.ErrLost)
		wantDuration(t, "lived on a grant that was lost", time.Since(start), 0, 50*time.Millisecond)
		wantErr(t, second.Release(t.Context()), leasehold.ErrLost)
		if err := other.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestReleaseAfterTheWindowAsksTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, others := newLocker(t, silent{server.Connect()}, nil), newLocker(t, server.Connect(), nil)
		first := acquire(t, locks, "a")
		next := make(chan *leasehold.Lease, 1)
		go func() { next <- acquire(t, locks, "a") }()
		synctest.Wait()
		server.Flush()
		other := acquire(t, others, "a")
		time.Sleep(leasehold.DefaultHandOver)
		wantErr(t, first.Release(t.Context()), leasehold.ErrLost)
		synctest.Wait()
		if len(next) != 0 {
			t.Fatal("two holders")
		}
		if err := other.Release(t.Context()); err != nil {
			t.Error(err)
		}
		second := <-next
		wantGrant(t, second, other)
		second.Release(t.Context())
	})
}

// Between a Release that hands over and the Acquire that is handed to, the process may stand
// still, and the lease may end.
func TestHandOverThatTakesLong(t *testing.T) {
	for what, meanwhile := range map[string]func(*leasehold.Locker, *leasehold.Lease){
		"nothing":          func(*leasehold.Locker, *leasehold.Lease) {},
		"it is evicted":    func(l *leasehold.Locker, le *leasehold.Lease) { l.Evict(context.Background(), "a", le.Owner(), "") },
		"its time is over": func(*leasehold.Locker, *leasehold.Lease) { time.Sleep(ttl) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := newLocker(t, memory.New(), nil)
				first := acquire(t, locks, "a")
				next := make(chan *leasehold.Lease, 1)
				goesOn := make(chan struct{})
				ctx := hanging{t.Context(), new(atomic.Int32), goesOn}
				go func() {
					lease, err := locks.Acquire(ctx, "a")
					if err != nil {
						t.Error(err)
					}
					next <- lease
				}()
				synctest.Wait()
				if err := first.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(leasehold.DefaultHandOver)
				meanwhile(locks, first)
				close(goesOn)
				second := <-next
				wantGrant(t, second, first)
				wantDuration(t, "left", time.Until(second.Deadline()), ttl*98/100, ttl)
				if err := second.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
