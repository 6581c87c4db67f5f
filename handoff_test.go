package leasehold_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// queueUp starts n waiters in order, each of which appends its number and token to what
// is returned, calls work, and releases.
func queueUp(t *testing.T, locks *leasehold.Locker, n int, work func(*leasehold.Lease)) (order *[]int, tokens *[]uint64, wait func()) {
	var wg sync.WaitGroup
	order, tokens = new([]int), new([]uint64)
	for i := range n {
		wg.Go(func() {
			lease, err := locks.Acquire(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			*order = append(*order, i) // the lease guards it
			*tokens = append(*tokens, lease.Token())
			work(lease)
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
	}
	return order, tokens, wg.Wait
}

func TestHandOverKeepsOrderAndRaisesTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		first := acquire(t, locks, "a")
		order, tokens, wait := queueUp(t, locks, 100, func(*leasehold.Lease) {})
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait()
		if !slices.IsSorted(*order) || len(*order) != 100 {
			t.Errorf("served in the order %v", *order)
		}
		last := first.Token()
		for _, token := range *tokens {
			if token != last+1 {
				t.Errorf("token %d after %d, want the next one", token, last)
			}
			last = token
		}
		if mine.Calls(locktest.OpTry) != 1 || mine.Calls(locktest.OpRelease) != 1 {
			t.Errorf("%d tries and %d releases at the engine, want 1 and 1", mine.Calls(locktest.OpTry), mine.Calls(locktest.OpRelease))
		}
	})
}

func TestHandOverEndsWithTheWindowAndTheCount(t *testing.T) {
	for _, c := range []struct {
		name    string
		opts    leasehold.Options
		section time.Duration
		grants  int
	}{
		{"off", leasehold.Options{HandOver: -1}, 0, 21},
		{"window", leasehold.Options{HandOver: 10 * time.Millisecond}, 5 * time.Millisecond, 7},
		{"all in the window", leasehold.Options{HandOver: time.Second}, 5 * time.Millisecond, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine := newFaulty(t, memory.NewServer())
				locks := newLocker(t, mine, &c.opts)
				first := acquire(t, locks, "a")
				_, tokens, wait := queueUp(t, locks, 20, func(*leasehold.Lease) { time.Sleep(c.section) })
				time.Sleep(c.section)
				first.Release(t.Context())
				wait()
				if got := mine.Calls(locktest.OpRelease); got < c.grants || got > c.grants+4 {
					t.Errorf("%d grants, want about %d", got, c.grants)
				}
				if !slices.IsSorted(*tokens) {
					t.Errorf("tokens went back: %v", *tokens)
				}
			})
		})
	}
}

func TestHandOverStopsWhereTokensWouldOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, &leasehold.Options{HandOver: time.Hour})
		first := acquire(t, locks, "a")
		_, tokens, wait := queueUp(t, locks, 3000, func(*leasehold.Lease) {})
		first.Release(t.Context())
		wait()
		if !slices.IsSorted(*tokens) || len(slices.Compact(*tokens)) != 3000 {
			t.Error("tokens went back or repeated")
		}
		if n := mine.Calls(locktest.OpRelease); n != 3 {
			t.Errorf("%d grants for 3001 leases, want 3 of at most 1024", n)
		}
	})
}

// What is handed over is worth having: with little left it goes through the engine.
func TestHandOverNeedsHalfOfTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, &leasehold.Options{HandOver: time.Hour})
		mine.Always(locktest.OpRenew, locktest.LoseRequest)
		first := acquire(t, locks, "a")
		_, _, wait := queueUp(t, locks, 1, func(lease *leasehold.Lease) {
			wantDuration(t, "left", time.Until(lease.Deadline()), ttl*9/10, ttl)
		})
		time.Sleep(ttl * 6 / 10)
		first.Release(t.Context())
		wait()
	})
}

func TestOtherProcessGetsItsTurnFromABusyOne(t *testing.T) {
	otherProcessGetsItsTurn(t, nil)
}

// Nor does it wait for longer if the busy one keeps leases.
func TestOtherProcessGetsItsTurnFromABusyKeeper(t *testing.T) {
	otherProcessGetsItsTurn(t, &leasehold.Options{Keep: time.Second})
}

func otherProcessGetsItsTurn(t *testing.T, o *leasehold.Options) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		busy, other := newLocker(t, server.Connect(), o), newLocker(t, server.Connect(), nil)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						lease := acquire(t, busy, "a")
						time.Sleep(time.Millisecond)
						lease.Release(t.Context())
					}
				}
			})
		}
		time.Sleep(time.Second)
		for range 10 {
			start := time.Now()
			lease := acquire(t, other, "a")
			wantDuration(t, "other process waited", time.Since(start), 0, 2*leasehold.DefaultHandOver)
			lease.Release(t.Context())
		}
		close(stop)
		wg.Wait()
	})
}

func TestCancelledWaiterFreesItsPlaceInTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		first := acquire(t, locks, "a")
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("user went away")
		errs := make(chan error)
		go func() {
			_, err := locks.Acquire(ctx, "a")
			errs <- err
		}()
		synctest.Wait()
		order, _, wait := queueUp(t, locks, 2, func(*leasehold.Lease) {})
		cancel(why)
		wantErr(t, <-errs, why)
		first.Release(t.Context())
		wait()
		if !slices.Equal(*order, []int{0, 1}) {
			t.Errorf("served in the order %v", *order)
		}
	})
}

// A lease that is lost by its holder, who never releases it, must not keep its place.
func TestLostLeaseFreesTheTurnOfItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		acquire(t, locks, "a", leasehold.NoRenew()) // never released
		start := time.Now()
		acquire(t, locks, "a").Release(t.Context())
		wantDuration(t, "waited", time.Since(start), ttl*98/100, ttl+10*time.Millisecond)
	})
}

// Grants, hand-overs, cancellations and evictions race; nothing is lost or held twice.
func TestNothingIsLeftAfterARace(t *testing.T) {
	server := memory.NewServer()
	inside := 0
	var wg sync.WaitGroup
	for range 2 {
		locks := newLocker(t, server.Connect(), &leasehold.Options{HandOver: time.Millisecond})
		for range 8 {
			wg.Go(func() {
				for range 300 {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(500*time.Microsecond))
					lease, err := locks.Acquire(ctx, "a")
					cancel()
					if err != nil {
						continue
					}
					inside++ // guarded by the lease: the race detector and the sum tell
					inside--
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if inside != 0 {
		t.Errorf("two holders at once: %d", inside)
	}
	state, err := newLocker(t, server.Connect(), nil).Inspect(t.Context(), "a")
	if err != nil || len(state.Holders)+len(state.Waiters) != 0 {
		t.Errorf("left behind: %+v, %v", state, err)
	}
}

func TestHandOverAndLossRace(t *testing.T) {
	server := memory.NewServer()
	locks := newLocker(t, server.Connect(), nil)
	raceWithEvictions(t, locks, newLocker(t, server.Connect(), nil), 8, func() {})
	acquire(t, locks, "a", leasehold.Wait(0)).Release(t.Context())
}

// raceWithEvictions acquires and releases in goroutines of locks, while other evicts whoever holds, with pauses.
func raceWithEvictions(t *testing.T, locks, other *leasehold.Locker, goroutines int, pause func()) {
	t.Helper()
	stop := make(chan struct{})
	var evictions, wg sync.WaitGroup
	evictions.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			pause()
			if st, _ := other.Inspect(t.Context(), "a"); len(st.Holders) > 0 {
				other.Evict(t.Context(), "a", st.Holders[0].Owner.Reveal(), "race")
			}
		}
	})
	for range goroutines {
		wg.Go(func() {
			for range 500 {
				lease, err := locks.Acquire(t.Context(), "a")
				if errors.Is(err, leasehold.ErrLost) {
					continue // evicted before Acquire returned
				}
				if err != nil {
					t.Error(err)
					return
				}
				lease.Release(t.Context())
			}
		})
	}
	wg.Wait()
	close(stop)
	evictions.Wait()
}

// A lease that is handed to a waiter at the moment it gives up goes on, in the background
// when the engine hangs.
func TestHandOverToAWaiterWhoGivesUpDoesNotHoldItUp(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			mine := newFaulty(t, memory.NewServer())
			locks := newLocker(t, mine, &leasehold.Options{HandOver: time.Second})
			first := acquire(t, locks, "a")
			ctx, cancel := context.WithCancel(t.Context())
			took := make(chan time.Duration, 1)
			go func() {
				lease, err := locks.Acquire(ctx, "a")
				if err == nil {
					go lease.Release(context.Background())
				}
				took <- time.Since(first.Deadline())
			}()
			synctest.Wait()
			mine.Always(locktest.OpRelease, locktest.HangRequest)
			given := time.Since(first.Deadline())
			go cancel()
			first.Release(t.Context())
			if late := <-took - given; late > 100*time.Millisecond {
				t.Fatalf("the cancelled Acquire returned after %v", late)
			}
			time.Sleep(ttl)
		})
	}
}

// People see who has a lease that was handed over, and not who had it before, as soon as it lasts longer than the
// window.
func TestHandOverShowsTheDetailsOfItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		of := func(tenant string) leasehold.Option {
			return leasehold.WithDetails(leasehold.Details{Labels: map[string]string{"tenant": tenant}})
		}
		first := acquire(t, locks, "a", of("a"))
		if err := first.SetNote(t.Context(), "90 % done"); err != nil {
			t.Fatal(err)
		}
		var leases [2]*leasehold.Lease
		for i := range leases {
			go func() { leases[i], _ = locks.Acquire(t.Context(), "a", of("b")) }()
			synctest.Wait()
		}
		release := func(lease *leasehold.Lease) {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		release(first)
		if leases[0] == nil || leases[0].Token() != first.Token()+1 {
			t.Fatalf("%v was not handed over to %v", first, leases[0])
		}
		if _, err := locks.TryAcquire(t.Context(), "a"); saidBy(err).Labels["tenant"] != "b" {
			t.Errorf("refused within the process: %+v", saidBy(err))
		}
		time.Sleep(time.Second)
		if d := held(t, locks).Details(); d.Labels["tenant"] != "b" || d.Text != "" {
			t.Errorf("after the window the engine shows %+v", d)
		}
		calls := mine.Calls(locktest.OpNote)
		release(leases[0])
		release(leases[1])
		if calls != 2 || mine.Calls(locktest.OpNote) != calls {
			t.Errorf("%d and then %d calls for notes, want one by SetNote and one after the window", calls, mine.Calls(locktest.OpNote)-calls)
		}
	})
}

// saidBy are the details of who is in the way.
func saidBy(err error) leasehold.Details {
	busy, ok := errors.AsType[*leasehold.BusyError](err)
	if !ok {
		return leasehold.Details{}
	}
	return busy.Holder.Details()
}

// A note that cannot be told at once is told with a later renewal.
func TestHandOverTellsDetailsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		first := acquire(t, locks, "a", leasehold.Note("first"))
		go locks.Acquire(t.Context(), "a", leasehold.Note("second"))
		synctest.Wait()
		mine.Next(locktest.OpNote, locktest.LoseRequest)
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if note := held(t, locks).Note; note != "first" || mine.Calls(locktest.OpNote) != 1 {
			t.Fatalf("the note is %q after %d calls", note, mine.Calls(locktest.OpNote))
		}
		time.Sleep(leasehold.DefaultTTL)
		if note := held(t, locks).Note; note != "second" || mine.Calls(locktest.OpNote) != 2 {
			t.Errorf("the note is %q after %d calls, want the holder's after 2", note, mine.Calls(locktest.OpNote))
		}
	})
}

// Where an engine cannot change a note, a lease goes to whom the note is true of.
func TestHandOverWithoutNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, fixedNotes{memory.New()}, nil)
		first := acquire(t, locks, "a", leasehold.Note("first"))
		var leases [2]*leasehold.Lease
		for i, note := range []string{"first", "second"} {
			go func() { leases[i], _ = locks.Acquire(t.Context(), "a", leasehold.Note(note)) }()
			synctest.Wait()
		}
		for i := range leases {
			if err := []*leasehold.Lease{first, leases[0]}[i].Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if want := []string{"first", "second"}[i]; leases[i] == nil || held(t, locks).Note != want {
				t.Fatalf("%v has the note %q, want %q", leases[i], held(t, locks).Note, want)
			}
		}
		if leases[0].Token() != first.Token()+1 || leases[1].Token() <= leases[0].Token()+1 {
			t.Errorf("tokens %d, %d and %d, want the second alone handed over", first.Token(), leases[0].Token(), leases[1].Token())
		}
	})
}

// fixedNotes is an engine that changes no note.
type fixedNotes struct{ driver.Driver }

func (d fixedNotes) Features() driver.Features {
	f := d.Driver.Features()
	f.Notes = false
	return f
}

func (d fixedNotes) Inspect(ctx context.Context, name string) (driver.State, error) {
	return d.Driver.(driver.Operator).Inspect(ctx, name)
}

func (d fixedNotes) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	return d.Driver.(driver.Operator).List(ctx, prefix, after, limit)
}

func (d fixedNotes) Evict(ctx context.Context, name, owner, reason string) error {
	return d.Driver.(driver.Operator).Evict(ctx, name, owner, reason)
}

func (d fixedNotes) RaiseFence(ctx context.Context, name string, fence uint64) error {
	return d.Driver.(driver.Operator).RaiseFence(ctx, name, fence)
}

func (d fixedNotes) SetLimit(ctx context.Context, name string, limit int) error {
	return d.Driver.(driver.Operator).SetLimit(ctx, name, limit)
}
