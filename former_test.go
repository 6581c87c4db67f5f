package leasehold_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// aRelay is a lease, a waiter of its process, and a link to the engine that can be made to hang.
// What is released is handed over.
type aRelay struct {
	link  *locktest.Faulty
	locks *leasehold.Locker
	first *leasehold.Lease
	next  chan *leasehold.Lease
}

func startRelay(t *testing.T, opts ...leasehold.Option) *aRelay {
	r := &aRelay{link: newFaulty(t, memory.NewServer()), next: make(chan *leasehold.Lease, 1)}
	r.locks = newLocker(t, r.link, &leasehold.Options{HandOver: time.Hour})
	r.first = acquire(t, r.locks, "a", opts...)
	go func() {
		lease, err := r.locks.Acquire(context.Background(), "a", leasehold.Note("the next one"))
		if err != nil {
			t.Error(err)
		}
		r.next <- lease
	}()
	synctest.Wait()
	return r
}

// calls are those of a lease that change its hold.
var calls = []struct {
	name string
	op   locktest.Op
	call func(*leasehold.Lease, context.Context) error
}{
	{"Extend", locktest.OpRenew, func(le *leasehold.Lease, ctx context.Context) error {
		return le.Extend(ctx, 50*time.Millisecond)
	}},
	{"SetNote", locktest.OpNote, func(le *leasehold.Lease, ctx context.Context) error {
		return le.SetNote(ctx, "the former one")
	}},
}

// A call that a holder made before its lease was released finds the next one's hold, whether it
// waited for a renewal that hangs or hangs itself.
func TestFormerHolderCannotTouchTheHold(t *testing.T) {
	for _, c := range calls {
		for _, hangs := range []string{"the renewal", "the call itself"} {
			t.Run(c.name+", while "+hangs+" hangs", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := startRelay(t)
					gate := make(chan struct{})
					op := c.op
					if hangs == "the renewal" {
						op = locktest.OpRenew
					}
					r.link.Next(op, func(ctx context.Context, apply func() error) error {
						select {
						case <-gate:
							return apply()
						case <-ctx.Done():
							return ctx.Err()
						}
					})
					if hangs == "the renewal" {
						time.Sleep(ttl / 3)
					}
					answer := make(chan error, 1)
					go func() { answer <- c.call(r.first, context.Background()) }()
					synctest.Wait()
					if err := r.first.Release(t.Context()); err != nil {
						t.Error(err)
					}
					next := <-r.next
					deadline := next.Deadline()
					close(gate)
					wantErr(t, <-answer, leasehold.ErrReleased)
					if next.Deadline().Before(deadline) {
						t.Errorf("the next holder's deadline went back by %v", deadline.Sub(next.Deadline()))
					}
					state, err := r.locks.Inspect(t.Context(), "a")
					if err != nil || len(state.Holders) != 1 || state.Holders[0].Note == "the former one" {
						t.Errorf("the engine shows %v, %v", state.Holders, err)
					}
					next.Release(t.Context())
				})
			})
		}
	}
}

// The deadline of a lease that was released is not that of the next one.
func TestDeadlineOfAFormerHolderStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRelay(t)
		deadline := r.first.Deadline()
		if err := r.first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := <-r.next
		time.Sleep(ttl)
		if got := r.first.Deadline(); !got.Equal(deadline) {
			t.Errorf("the deadline moved by %v after the release", got.Sub(deadline))
		}
		next.Release(t.Context())
	})
}
