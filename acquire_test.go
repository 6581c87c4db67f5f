package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func TestWaitBoundIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, other := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
		lease := acquire(t, locks, "a", leasehold.Note("backup of db7"))
		for _, l := range []*leasehold.Locker{locks, other} { // in the process, and at the engine
			start := time.Now()
			_, err := l.Acquire(t.Context(), "a", leasehold.Wait(time.Minute))
			wantErr(t, err, leasehold.ErrBusy)
			wantDuration(t, "waited", time.Since(start), time.Minute, time.Minute+100*time.Millisecond)
			busy, ok := errors.AsType[*leasehold.BusyError](err)
			if !ok || busy.Holder.Note != "backup of db7" {
				t.Errorf("%v does not tell the holder", err)
			}
			start = time.Now()
			_, err = l.Acquire(t.Context(), "a", leasehold.Wait(0))
			wantErr(t, err, leasehold.ErrBusy)
			_, err = l.TryAcquire(t.Context(), "a")
			wantErr(t, err, leasehold.ErrBusy)
			wantDuration(t, "not waited", time.Since(start), 0, 0)
		}
		state, err := other.Inspect(t.Context(), "a")
		if err != nil || len(state.Waiters) != 0 {
			t.Errorf("left in the queue: %+v, %v", state.Waiters, err)
		}
		lease.Release(t.Context())
	})
}

func TestCancelledAcquireReturnsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		lease := acquire(t, newLocker(t, server.Connect(), nil), "a")
		locks := newLocker(t, server.Connect(), nil)
		why := errors.New("user went away")

		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err := locks.Acquire(ctx, "a")
		wantErr(t, err, why)
		_, err = locks.Acquire(ctx, "free") // cancelled beforehand
		wantErr(t, err, why)
		state, err := locks.Inspect(t.Context(), "a")
		if err != nil || len(state.Waiters) != 0 {
			t.Errorf("left in the queue: %+v, %v", state.Waiters, err)
		}
		lease.Release(t.Context())
	})
}

// An engine that hangs must not hold a caller past its bound, nor the clean-up.
func TestHungEngineDoesNotBreakTheBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		heal := mine.Sever()
		start := time.Now()
		_, err := locks.Acquire(t.Context(), "a", leasehold.Wait(2*time.Second))
		if err == nil || errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("got %v, but nobody knows whether it is busy", err)
		}
		wantDuration(t, "waited", time.Since(start), 2*time.Second, 2200*time.Millisecond)
		start = time.Now()
		_, err = locks.Acquire(t.Context(), "b")
		wantErr(t, err, context.DeadlineExceeded)
		wantDuration(t, "no bound given", time.Since(start), 5*time.Second, 5200*time.Millisecond)
		heal()
	})
}

func TestUnreachableEngineFailsTheFirstCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		mine.Always(locktest.OpTry, locktest.LoseRequest)
		start := time.Now()
		_, err := locks.Acquire(t.Context(), "a")
		wantErr(t, err, locktest.ErrInjected)
		wantDuration(t, "failed after", time.Since(start), 0, time.Second)
	})
}

// An engine that grants nothing to anybody yet is waited for, by those who wait.
func TestWaiterWaitsForAnEngineThatGrantsNothingYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := locktest.NewFaulty(memory.NewServer().Connect())
		locks := newLocker(t, engine, nil)
		engine.Always(locktest.OpTry, func(context.Context, func() error) error { return driver.ErrNotYet })
		_, err := locks.TryAcquire(t.Context(), "a")
		wantErr(t, err, driver.ErrNotYet)
		_, err = locks.Acquire(t.Context(), "a", leasehold.Wait(time.Second))
		wantErr(t, err, driver.ErrNotYet)
		wantErr(t, err, context.DeadlineExceeded)
		time.AfterFunc(time.Minute, func() { engine.Always(locktest.OpTry, nil) })
		start := time.Now()
		acquire(t, locks, "a")
		wantDuration(t, "waited", time.Since(start), time.Minute, time.Minute+time.Second)
	})
}

func TestWaiterComesBackAfterTheEngineWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		lease := acquire(t, newLocker(t, server.Connect(), nil), "a")
		mine := newFaulty(t, server)
		locks := newLocker(t, mine, nil)
		got := make(chan error)
		go func() {
			second, err := locks.Acquire(t.Context(), "a")
			if err == nil {
				second.Release(t.Context())
			}
			got <- err
		}()
		synctest.Wait()
		mine.Always(locktest.OpTry, locktest.LoseRequest)
		before := mine.Calls(locktest.OpTry)
		time.Sleep(time.Minute)
		if n := mine.Calls(locktest.OpTry) - before; n > 200 {
			t.Errorf("%d tries in a minute while the engine was away", n)
		}
		mine.Always(locktest.OpTry, nil)
		lease.Release(t.Context())
		start := time.Now()
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		wantDuration(t, "back after", time.Since(start), 0, time.Second)
	})
}

// Promise 4: a lost reply leaves no phantom holder.
func TestLostReplyOfAcquireLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks := newLocker(t, mine, nil)
		mine.Next(locktest.OpTry, locktest.LoseReply)
		_, err := locks.Acquire(t.Context(), "a")
		wantErr(t, err, locktest.ErrInjected)
		acquire(t, newLocker(t, server.Connect(), nil), "a", leasehold.Wait(0)).Release(t.Context())

		// While waiting, the granting reply is lost: the next try finds the own grant.
		lease := acquire(t, newLocker(t, server.Connect(), nil), "a")
		time.AfterFunc(time.Second, func() {
			mine.Next(locktest.OpTry, locktest.LoseReply)
			lease.Release(context.Background())
		})
		second := acquire(t, locks, "a")
		if second.Token() <= lease.Token() {
			t.Errorf("token %d after %d", second.Token(), lease.Token())
		}
		second.Release(t.Context())
	})
}

// A grant that is lost before its call learns of it is released once, also if the call ends while
// that release hangs. Nobody waits for two.
func TestGrantLostBeforeItsCallLearnsOfItIsReleasedOnce(t *testing.T) {
	for _, ends := range []string{"Close", "cancel"} {
		t.Run(ends, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				mine := newFaulty(t, server)
				locks := newLocker(t, mine, &leasehold.Options{TTL: time.Minute})
				mine.Next(locktest.OpTry, func(_ context.Context, apply func() error) error {
					err := apply()
					server.Flush()
					return err
				})
				mine.Always(locktest.OpRelease, locktest.HangRequest)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				got := make(chan error, 1)
				go func() {
					_, err := locks.Acquire(ctx, "a")
					got <- err
				}()
				synctest.Wait() // it is being released
				start, want := time.Now(), leasehold.ErrClosed
				if ends == "cancel" {
					cancel()
					want = context.Canceled
					wantErr(t, <-got, want)
				}
				locks.Close()
				wantDuration(t, "Close", time.Since(start), 4*time.Second, 6*time.Second)
				if ends == "Close" {
					wantErr(t, <-got, want)
				}
			})
		})
	}
}

// A grant that ends before its call learns of it is not the one that the call ends with: the call
// goes on, unless an operator has ended the grant.
func TestGrantLostBeforeItsCallLearnsOfIt(t *testing.T) {
	flush := func(_ *testing.T, server *memory.Server, _ *leasehold.Locker) { server.Flush() }
	evict := func(t *testing.T, _ *memory.Server, others *leasehold.Locker) {
		state, err := others.Inspect(context.Background(), "a")
		if err == nil {
			err = others.Evict(context.Background(), "a", state.Holders[0].Owner.Reveal(), "for the test")
		}
		if err != nil {
			t.Error(err)
		}
	}
	lead := func(locks *leasehold.Locker) error {
		done := errors.New("done")
		if err := locks.Lead(context.Background(), "a", func(context.Context) error { return done }); !errors.Is(err, done) {
			return err
		}
		return nil
	}
	call := func(locks *leasehold.Locker) error {
		lease, err := locks.Acquire(context.Background(), "a")
		if err != nil {
			return err
		}
		return lease.Release(context.Background())
	}
	for name, c := range map[string]struct {
		ends func(*testing.T, *memory.Server, *leasehold.Locker)
		asks func(*leasehold.Locker) error
		want error
	}{
		"the engine forgets it":              {flush, call, nil},
		"the engine forgets it, of a leader": {flush, lead, nil},
		"it is evicted":                      {evict, call, leasehold.ErrEvicted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				mine, others := newFaulty(t, server), newLocker(t, server.Connect(), nil)
				first, got := acquire(t, others, "a"), make(chan error, 1)
				locks := newLocker(t, mine, nil)
				go func() { got <- c.asks(locks) }()
				synctest.Wait()
				mine.Next(locktest.OpTry, locktest.LoseReply)
				first.Release(t.Context())
				synctest.Wait() // granted, and about to try again
				c.ends(t, server, others)
				second := acquire(t, others, "a")
				time.Sleep(time.Hour)
				if ended := len(got) > 0; ended != (c.want != nil) {
					t.Errorf("ended before the next grant: %v", ended)
				}
				if err := second.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if err := <-got; !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				wantFree(t, others, "a")
			})
		})
		t.Run(name+", in the first try", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				mine, others := newFaulty(t, server), newLocker(t, server.Connect(), nil)
				mine.Next(locktest.OpTry, func(_ context.Context, apply func() error) error {
					err := apply()
					c.ends(t, server, others)
					return err
				})
				if err := c.asks(newLocker(t, mine, nil)); !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				wantFree(t, others, "a")
			})
		})
		t.Run(name+", as its lease begins", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				mine, others := newFaulty(t, server), newLocker(t, server.Connect(), nil)
				ctx := &endingValues{Context: t.Context(), ends: func() { c.ends(t, server, others) }}
				mine.Next(locktest.OpTry, func(_ context.Context, apply func() error) error {
					ctx.granted.Store(true)
					return apply()
				})
				lease, err := newLocker(t, mine, nil).TryAcquire(ctx, "a")
				if !errors.Is(err, c.want) || ctx.granted.Load() {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if err == nil {
					lease.Release(t.Context())
				}
				wantFree(t, others, "a")
			})
		})
		t.Run(name+", in the second request of a period", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				mine, others := newFaulty(t, server), newLocker(t, server.Connect(), nil)
				for _, d := range []driver.Driver{mine, deaf{mine}} {
					mine.Next(locktest.OpRenew, func(_ context.Context, apply func() error) error {
						c.ends(t, server, others)
						return apply()
					})
					lease, err := newLocker(t, d, nil).TryAcquire(t.Context(), "a", leasehold.OncePer(day))
					if !errors.Is(err, c.want) {
						t.Errorf("got %v, want %v", err, c.want)
					}
					if err != nil {
						continue
					}
					wantDuration(t, "left", time.Until(lease.Deadline()), day*8/10, day)
					server.Flush()
				}
			})
		})
	}
}

// A call that does not wait is not refused because of a grant that an earlier call of its process
// is still cleaning up. If its context ends before that, it returns the context's error.
func TestNoCallIsRefusedByWhatItsProcessLeftBehind(t *testing.T) {
	slow := func(_ context.Context, apply func() error) error {
		time.Sleep(time.Second)
		return apply()
	}
	for name, leave := range map[string]func(t *testing.T, mine *locktest.Faulty, locks, others *leasehold.Locker){
		"an answer that was lost": func(t *testing.T, mine *locktest.Faulty, locks, _ *leasehold.Locker) {
			mine.Next(locktest.OpTry, locktest.LoseReply)
			_, err := locks.TryAcquire(t.Context(), "a")
			wantErr(t, err, locktest.ErrInjected)
		},
		"some of several names": func(t *testing.T, _ *locktest.Faulty, locks, others *leasehold.Locker) {
			acquire(t, others, "b")
			_, err := locks.AcquireAll(t.Context(), []string{"a", "b"}, leasehold.Wait(0))
			wantErr(t, err, leasehold.ErrBusy)
		},
		"the first of several names": func(t *testing.T, _ *locktest.Faulty, locks, others *leasehold.Locker) {
			acquire(t, others, "c")
			_, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c"}, leasehold.Wait(0))
			wantErr(t, err, leasehold.ErrBusy)
		},
		"a lease that was handed over too late": func(t *testing.T, _ *locktest.Faulty, locks, _ *leasehold.Locker) {
			lease := acquire(t, locks, "a")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			slow := &slowValues{Context: ctx}
			go locks.Acquire(slow, "a")
			synctest.Wait()
			slow.by.Store(int64(2 * leasehold.DefaultHandOver))
			lease.Release(t.Context())
			time.Sleep(3 * leasehold.DefaultHandOver)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				mine := newFaulty(t, server)
				locks := newLocker(t, mine, nil)
				mine.Next(locktest.OpRelease, slow)
				leave(t, mine, locks, newLocker(t, server.Connect(), nil))
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				_, err := locks.TryAcquire(ctx, "a")
				wantErr(t, err, context.DeadlineExceeded)
				acquire(t, locks, "a", leasehold.Wait(0))
				wantDuration(t, "the clean-up", time.Since(start), 900*time.Millisecond, time.Second)
			})
		})
	}
}

// Calls that do not wait do not wait for each other either while each of them fails and cleans up.
func TestCallsThatFailWaitForOneCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		mine.Always(locktest.OpTry, locktest.LoseReply)
		mine.Always(locktest.OpRelease, locktest.HangRequest)
		_, err := locks.TryAcquire(t.Context(), "a")
		wantErr(t, err, locktest.ErrInjected)
		start, calls := time.Now(), make(chan error)
		for range 10 {
			go func() {
				_, err := locks.TryAcquire(t.Context(), "a")
				calls <- err
			}()
		}
		for range 10 {
			wantErr(t, <-calls, locktest.ErrInjected)
		}
		wantDuration(t, "failing", time.Since(start), 4*time.Second, 6*time.Second)
	})
}

// endingValues is a context whose values end a grant, once.
type endingValues struct {
	context.Context
	granted atomic.Bool
	ends    func()
}

func (c *endingValues) Value(key any) any {
	if c.granted.CompareAndSwap(true, false) {
		c.ends()
	}
	return c.Context.Value(key)
}

// slowValues is a context whose values take a while.
type slowValues struct {
	context.Context
	by atomic.Int64
}

func (c *slowValues) Value(key any) any {
	time.Sleep(time.Duration(c.by.Load()))
	return c.Context.Value(key)
}

// noWakes is an engine whose waiters have to poll and whose Busy tells nothing.
type noWakes struct{ driver.Driver }

func (d noWakes) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return noWakesClaim{c}, err
}

type noWakesClaim struct{ driver.Claim }

func (c noWakesClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	if errors.Is(err, driver.ErrBusy) {
		err = &driver.Busy{}
	}
	return g, err
}

func TestWaiterPollsAnEngineWithoutWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		lease := acquire(t, newLocker(t, server.Connect(), nil), "a")
		mine := newFaulty(t, server)
		time.AfterFunc(time.Minute, func() { lease.Release(context.Background()) })
		start := time.Now()
		acquire(t, newLocker(t, noWakes{mine}, nil), "a").Release(t.Context())
		wantDuration(t, "waited", time.Since(start), time.Minute, time.Minute+250*time.Millisecond)
		if n := mine.Calls(locktest.OpTry); n > 60*6 {
			t.Errorf("%d tries in a minute, want at most six a second", n)
		}
	})
}

// wakesAlways is an engine whose Wake is closed at once, for no reason.
type wakesAlways struct{ driver.Driver }

func (d wakesAlways) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return wakesAlwaysClaim{c}, err
}

type wakesAlwaysClaim struct{ driver.Claim }

func (c wakesAlwaysClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	if busy, ok := errors.AsType[*driver.Busy](err); ok {
		closed := make(chan struct{})
		close(closed)
		err = &driver.Busy{Wake: closed, Retry: busy.Retry}
	}
	return g, err
}

func TestWaiterDoesNotSpinOnEarlyWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		lease := acquire(t, newLocker(t, server.Connect(), nil), "a")
		mine := newFaulty(t, server)
		time.AfterFunc(10*time.Second, func() { lease.Release(context.Background()) })
		acquire(t, newLocker(t, wakesAlways{mine}, nil), "a").Release(t.Context())
		if n := mine.Calls(locktest.OpTry); n > 10*100 {
			t.Errorf("%d tries in 10 seconds", n)
		}
	})
}

// Answers that take nearly the TTL would otherwise be asked for without end, while the
// engine keeps the resource for us.
func TestAnswersAlwaysTooLateAreAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, &leasehold.Options{TTL: 10 * time.Millisecond})
		mine.Always(locktest.OpTry, locktest.SlowReply(9*time.Millisecond))
		if _, err := locks.TryAcquire(t.Context(), "a"); err == nil || errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("got %v", err)
		}
		if n := mine.Calls(locktest.OpTry); n > 2 {
			t.Errorf("%d tries", n)
		}
	})
}

// Two late answers with a refusal in between are two pauses, not a TTL that is too short.
func TestLateAnswersOfALongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine, others := newFaulty(t, server), newLocker(t, server.Connect(), nil)
		locks := newLocker(t, mine, &leasehold.Options{TTL: time.Second})
		late := locktest.SlowReply(995 * time.Millisecond)
		mine.Next(locktest.OpTry, late, func(_ context.Context, apply func() error) error {
			for { // the late grant is over
				if lease, err := others.TryAcquire(t.Context(), "a"); err == nil {
					time.AfterFunc(time.Hour, func() {
						mine.Next(locktest.OpTry, late)
						lease.Release(context.Background())
					})
					return apply()
				}
				time.Sleep(time.Millisecond)
			}
		})
		acquire(t, locks, "a", leasehold.NoRenew()).Release(t.Context()) // uses no grant without a Try
	})
}

// A hung driver answers no attempt and no release.
type hung struct{ driver.Driver }

func (d hung) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return hungClaim{c}, err
}

type hungClaim struct{ driver.Claim }

func (hungClaim) Try(ctx context.Context) (driver.Grant, error) {
	<-ctx.Done()
	return driver.Grant{}, ctx.Err()
}

func (hungClaim) Release(ctx context.Context, _ driver.End) error {
	<-ctx.Done()
	return ctx.Err()
}

// While an engine has never answered nobody knows whether a name is busy, nor does who waits in the process behind one that asks.
func TestWaitBehindWhoHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, hung{memory.New()}, nil)
		go l.Acquire(t.Context(), "n", leasehold.Wait(4*time.Second))
		synctest.Wait()
		for _, name := range []string{"n", "other"} {
			_, err := l.Acquire(t.Context(), name, leasehold.Wait(time.Second))
			wantErr(t, err, context.DeadlineExceeded)
			if errors.Is(err, leasehold.ErrBusy) {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
	})
}

// A caller without rights hears so at once: what it may not take needs no clean-up that is denied again and again.
// An outcome that is unknown is cleaned up as long as ever.
func TestDeniedAcquireFailsAtOnce(t *testing.T) {
	denied := func(context.Context, func() error) error { return fmt.Errorf("no right: %w", leasehold.ErrDenied) }
	for name, tc := range map[string]struct {
		tries locktest.Fault
		took  time.Duration
	}{"denied": {denied, 0}, "unknown": {locktest.LoseReply, 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine := newFaulty(t, memory.NewServer())
				locks := newLocker(t, mine, nil)
				mine.Always(locktest.OpTry, tc.tries)
				mine.Always(locktest.OpRelease, denied)
				began := time.Now()
				if _, err := locks.Acquire(t.Context(), "a", leasehold.Wait(time.Hour)); err == nil || name == "denied" && !errors.Is(err, leasehold.ErrDenied) {
					t.Errorf("%v; want ErrDenied", err)
				}
				locks.Close() // which waits for the clean-up
				if took := time.Since(began); took != tc.took {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
			})
		})
	}
}
