package leasehold_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

const ttl = 10 * time.Second

// Promise 1: the context ends by its own timer, before a successor can be granted.
func TestHolderLearnsBeforeSuccessor(t *testing.T) {
	for _, link := range []struct {
		name  string
		fault locktest.Fault
	}{
		{"requests hang", locktest.HangRequest},
		{"replies hang", locktest.HangReply},
		{"requests fail", locktest.LoseRequest},
	} {
		t.Run(link.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				mine := newFaulty(t, server)
				first := acquire(t, newLocker(t, mine, nil), "a")
				mine.Always(locktest.OpRenew, link.fault)
				start := time.Now()
				second := acquire(t, newLocker(t, server.Connect(), nil), "a")
				select {
				case <-first.Context().Done():
				default:
					t.Fatal("the successor was granted while the holder's context was live")
				}
				wantErr(t, context.Cause(first.Context()), leasehold.ErrLost)
				if link.name == "requests hang" {
					wantDuration(t, "successor waited", time.Since(start), ttl, ttl+10*time.Millisecond)
				}
				if second.Token() <= first.Token() {
					t.Errorf("token %d after %d", second.Token(), first.Token())
				}
				wantErr(t, first.Release(t.Context()), leasehold.ErrLost)
				if err := second.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestDeadlineCountsFromBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		mine.Next(locktest.OpTry, locktest.SlowReply(3*time.Second))
		start := time.Now()
		lease := acquire(t, newLocker(t, mine, nil), "a")
		drift := ttl/100 + 2*time.Millisecond
		if got := lease.Deadline().Sub(start); got != ttl-drift {
			t.Errorf("deadline %v after the call was sent, want %v", got, ttl-drift)
		}
		lease.Release(t.Context())
	})
}

// An answer that comes after the deadline it would give is worth nothing.
func TestLateGrantIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		mine.Next(locktest.OpTry, locktest.SlowReply(990*time.Millisecond))
		lease := acquire(t, newLocker(t, mine, nil), "a", leasehold.TTL(time.Second))
		if left := time.Until(lease.Deadline()); left < 900*time.Millisecond {
			t.Errorf("granted with %v left", left)
		}
		if mine.Calls(locktest.OpTry) != 2 {
			t.Errorf("%d tries, want a second one", mine.Calls(locktest.OpTry))
		}
		lease.Release(t.Context())
	})
}

// Promise 3.
func TestReleaseTellsTheTruth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks, others := newLocker(t, mine, nil), newLocker(t, server.Connect(), nil)

		t.Log("released, on a context that has ended")
		ended, cancel := context.WithCancel(t.Context())
		lease, err := locks.Acquire(ended, "a")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := lease.Release(ended); err != nil {
			t.Fatal(err)
		}
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrReleased)
		wantErr(t, lease.Release(ended), leasehold.ErrReleased)

		t.Log("lost before")
		lease = acquire(t, locks, "a")
		if err := others.Evict(t.Context(), "a", lease.Owner(), "maintenance"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrLost)
		wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)

		t.Log("unknown, and bounded")
		lease = acquire(t, locks, "a")
		heal := mine.Sever()
		start := time.Now()
		err = lease.Release(t.Context())
		if err == nil || errors.Is(err, leasehold.ErrLost) || errors.Is(err, leasehold.ErrReleased) {
			t.Fatalf("release over a dead link: %v, want an unknown outcome", err)
		}
		wantDuration(t, "release over a dead link", time.Since(start), 0, 5*time.Second)
		heal()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatalf("repeated release: %v", err)
		}
		other, err := others.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other.Release(t.Context())
	})
}

// A release whose answer was lost is asked again; the no that follows proves nothing.
func TestReleaseWithLostReplyIsUnknownAndFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		lease := acquire(t, newLocker(t, mine, nil), "a")
		mine.Next(locktest.OpRelease, locktest.LoseReply)
		wantErr(t, lease.Release(t.Context()), locktest.ErrInjected)
		other := acquire(t, newLocker(t, server.Connect(), nil), "a", leasehold.Wait(0))
		other.Release(t.Context())
	})
}

func TestReleaseDuringRenewalDoesNotWaitForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, mine, nil)
		lease := acquire(t, locks, "a")
		mine.Next(locktest.OpRenew, locktest.HangReply)
		time.Sleep(ttl / 2)
		start := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantDuration(t, "release", time.Since(start), 0, time.Millisecond)
		time.Sleep(2 * ttl)
		if n := mine.Calls(locktest.OpRenew); n != 1 {
			t.Errorf("%d renewals, want none after the release", n)
		}
	})
}

func TestExtendMovesTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		lease := acquire(t, locks, "a", leasehold.NoRenew())
		if err := lease.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		wantDuration(t, "left", time.Until(lease.Deadline()), 59*time.Second, time.Minute)
		wantErr(t, lease.Extend(t.Context(), -1), leasehold.ErrInvalidOption)
		time.Sleep(time.Minute)
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrLost)
		wantErr(t, lease.Extend(t.Context(), time.Minute), leasehold.ErrLost)
		wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)

		lease = acquire(t, locks, "a")
		if err := lease.Extend(t.Context(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // renewals keep the new TTL
		wantDuration(t, "left", time.Until(lease.Deadline()), time.Second, 2*time.Second)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, lease.Extend(t.Context(), time.Minute), leasehold.ErrReleased)
	})
}

func TestExtendWithLostReplyLeavesTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		lease := acquire(t, newLocker(t, mine, nil), "a", leasehold.NoRenew())
		before := lease.Deadline()
		mine.Next(locktest.OpRenew, locktest.LoseReply)
		wantErr(t, lease.Extend(t.Context(), time.Minute), locktest.ErrInjected)
		if !lease.Deadline().Equal(before) {
			t.Error("an unknown outcome moved the deadline")
		}
		lease.Release(t.Context())
	})
}

func TestAtLeastOutlivesRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		lease := acquire(t, locks, "nightly", leasehold.AtLeast(time.Hour))
		start := time.Now()
		time.Sleep(time.Minute)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := locks.TryAcquire(t.Context(), "nightly")
		wantErr(t, err, leasehold.ErrBusy)
		acquire(t, locks, "nightly").Release(t.Context())
		wantDuration(t, "held", time.Since(start), time.Hour, time.Hour+10*time.Millisecond)

		lease = acquire(t, locks, "nightly", leasehold.AtLeast(time.Second))
		time.Sleep(2 * time.Second)
		lease.Release(t.Context())
		acquire(t, locks, "nightly", leasehold.Wait(0)).Release(t.Context())
	})
}

// A nested lease that AcquireAll gives up leaves its AtLeast to nobody, and takes away nobody's.
func TestAtLeastOfARefusedAcquireAllEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks := newLocker(t, server.Connect(), nil)
		acquire(t, newLocker(t, server.Connect(), nil), "z")
		outer := acquire(t, locks, "k")
		start := time.Now()
		inner, err := locks.Acquire(outer.Context(), "k", leasehold.Reentrant(), leasehold.AtLeast(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		inner.Release(t.Context())
		_, err = locks.AcquireAll(outer.Context(), []string{"k", "z"}, leasehold.Reentrant(), leasehold.AtLeast(time.Hour), leasehold.Wait(0))
		wantErr(t, err, leasehold.ErrBusy)
		if err := outer.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		acquire(t, locks, "k")
		wantDuration(t, "held", time.Since(start), time.Minute, time.Minute+10*time.Millisecond)
	})
}

func TestResumeTakesOverByOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		first := acquire(t, newLocker(t, server.Connect(), nil), "a", leasehold.NoRenew())
		locks := newLocker(t, server.Connect(), nil)
		second, err := locks.Resume(t.Context(), "a", first.Owner())
		if err != nil {
			t.Fatal(err)
		}
		if second.Token() != first.Token()+1023 {
			t.Errorf("token %d, want the top of the room of %d", second.Token(), first.Token())
		}
		third, err := locks.Resume(t.Context(), "a", first.Owner())
		if err != nil || third.Token() != second.Token() {
			t.Fatalf("token %d of the second Resume, %d of the first: %v", third.Token(), second.Token(), err)
		}
		time.Sleep(3 * ttl)
		if err := second.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = locks.Resume(t.Context(), "a", first.Owner())
		wantErr(t, err, leasehold.ErrLost)
		_, err = locks.Resume(t.Context(), "a", "")
		wantErr(t, err, leasehold.ErrInvalidOption)
	})
}

// asked keeps the last request.
type asked struct {
	driver.Driver
	last driver.Request
}

func (d *asked) Claim(req driver.Request) (driver.Claim, error) {
	d.last = req
	return d.Driver.Claim(req)
}

// Nobody knows the owner of an Acquire before its grant. That of a Resume is known.
func TestOwnersAreFreshUnlessResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &asked{Driver: memory.New()}
		locks := newLocker(t, d, nil)
		lease := acquire(t, locks, "a")
		if !d.last.Fresh {
			t.Error("Acquire asks with an owner that others may know")
		}
		if _, err := locks.Resume(t.Context(), "a", lease.Owner()); err != nil || d.last.Fresh {
			t.Errorf("Resume asks with an owner that nobody else knows: %t, %v", d.last.Fresh, err)
		}
	})
}

// The engine may have taken the shorter TTL although its answer got lost.
func TestShorterExtendWithLostReplyEndsTheLeaseInTime(t *testing.T) {
	for _, opts := range [][]leasehold.Option{nil, {leasehold.NoRenew()}} {
		synctest.Test(t, func(t *testing.T) {
			server := memory.NewServer()
			mine := newFaulty(t, server)
			lease := acquire(t, newLocker(t, mine, nil), "a", opts...)
			mine.Always(locktest.OpRenew, locktest.LoseReply)
			wantErr(t, lease.Extend(t.Context(), time.Second), locktest.ErrInjected)
			if left := time.Until(lease.Deadline()); left > time.Second {
				t.Errorf("%v left, the engine may end it after 1s", left)
			}
			mine.Always(locktest.OpRenew, locktest.LoseRequest)
			other := acquire(t, newLocker(t, server.Connect(), nil), "a")
			if lease.Context().Err() == nil {
				t.Error("two holders")
			}
			other.Release(t.Context())
			lease.Release(t.Context())
		})
	}
}

// A context that ended because another lease was lost says nothing about this one.
func TestExtendUnderTheContextOfALostLease(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	a, b := acquire(t, locks, "a"), acquire(t, locks, "b")
	locks.Evict(t.Context(), "a", a.Owner(), "test")
	<-a.Context().Done()
	wantErr(t, b.Extend(a.Context(), ttl), context.Canceled)
	if b.Context().Err() != nil {
		t.Errorf("ended by %v, which the engine never said", context.Cause(b.Context()))
	}
	b.Release(t.Context())
}

// asksErr is an engine that polls the context of its call.
type asksErr struct{ driver.Driver }

func (d asksErr) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return asksErrClaim{c}, err
}

type asksErrClaim struct{ driver.Claim }

func (c asksErrClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	for range 200 {
		if ctx.Err() != nil {
			break
		}
	}
	return c.Claim.Renew(ctx, ttl)
}

// While a renewal hangs, Extend and SetNote wait for it, but no longer than their contexts.
func TestCallsBesideARenewalThatHangs(t *testing.T) {
	for what, call := range map[string]func(*leasehold.Lease, context.Context) error{
		"extend": func(le *leasehold.Lease, ctx context.Context) error { return le.Extend(ctx, time.Minute) },
		"note":   func(le *leasehold.Lease, ctx context.Context) error { return le.SetNote(ctx, "at work") },
	} {
		t.Run(what, func(t *testing.T) { // in real time: a mutex is waited for
			t.Parallel()
			mine := newFaulty(t, memory.NewServer())
			hangs, goesOn := make(chan struct{}), make(chan struct{})
			mine.Next(locktest.OpRenew, func(_ context.Context, call func() error) error {
				close(hangs)
				<-goesOn
				return call()
			})
			locks := newLocker(t, mine, nil)
			lease := acquire(t, locks, "a", leasehold.TTL(3*time.Second))
			<-hangs
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			ended := make(chan error)
			go func() { ended <- call(lease, ctx) }()
			select {
			case err := <-ended:
				wantErr(t, err, context.DeadlineExceeded)
			case <-time.After(time.Second):
				t.Error("the call outlives its context")
				defer func() { <-ended }()
			}
			close(goesOn)
			if err := call(lease, t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestExtendWithTheLeasesOwnContextAndReleaseDoNotDeadlock(t *testing.T) {
	locks := newLocker(t, asksErr{memory.New()}, nil)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		lease := acquire(t, locks, "a")
		extending := make(chan struct{})
		go func() {
			defer close(extending)
			for lease.Extend(lease.Context(), ttl) == nil {
			}
		}()
		lease.Release(context.Background())
		<-extending
	}
}

// A Release during another does not say that this one has succeeded: it waits for it, and tries again
// if its outcome is unknown.
func TestSecondReleaseWaitsForTheFirst(t *testing.T) {
	for name, c := range map[string]struct {
		fault         locktest.Fault
		first, second error
		took          time.Duration
	}{
		"released": {locktest.SlowReply(time.Second), nil, leasehold.ErrReleased, time.Second},
		"unknown":  {locktest.HangRequest, context.DeadlineExceeded, nil, 5 * time.Second},
	} {
		type releaser interface{ Release(context.Context) error }
		for what, acquires := range map[string]func(t *testing.T, locks *leasehold.Locker) releaser{
			"Lease":  func(t *testing.T, locks *leasehold.Locker) releaser { return acquire(t, locks, "a") },
			"Leases": func(t *testing.T, locks *leasehold.Locker) releaser { return acquireAll(t, locks, []string{"a", "b"}) },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mine := newFaulty(t, memory.NewServer())
					held := acquires(t, newLocker(t, mine, nil))
					mine.Always(locktest.OpRelease, c.fault)
					first := make(chan error, 1)
					start := time.Now()
					go func() { first <- held.Release(t.Context()) }()
					synctest.Wait()
					time.AfterFunc(time.Millisecond, func() { mine.Always(locktest.OpRelease, nil) })
					err := held.Release(t.Context())
					took := time.Since(start)
					if err := <-first; !errors.Is(err, c.first) {
						t.Errorf("the first: %v, want %v", err, c.first)
					}
					if !errors.Is(err, c.second) && (err != nil || what == "Lease") { // of several leases, it may have released the last
						t.Errorf("the second: %v, want %v", err, c.second)
					}
					wantDuration(t, "the second", took, c.took, 2*c.took)
				})
			})
		}
	}
}

func TestRepeatedReleaseStaysUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		lease := acquire(t, newLocker(t, mine, nil), "a")
		mine.Next(locktest.OpRelease, locktest.LoseReply)
		for range 2 {
			wantErr(t, lease.Release(t.Context()), locktest.ErrInjected)
		}
	})
}

// After a pause, before any timer has run.
func TestReleaseBeyondTheDeadlineIsALoss(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	locks := newLocker(t, memory.New(), nil)
	for range 4 {
		outer := acquire(t, locks, "a", leasehold.TTL(500*time.Millisecond), leasehold.NoRenew())
		nested, err := locks.Acquire(outer.Context(), "a", leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		for past := nested.Deadline().Add(time.Millisecond); time.Now().Before(past); { // a pause
		}
		wantErr(t, nested.Release(t.Context()), leasehold.ErrLost)
		wantErr(t, outer.Release(t.Context()), leasehold.ErrLost)
	}
}

// A release has the time that the lease has, and not only the time that it had at first.
func TestReleaseOfALeaseThatWasExtended(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, way(mine), nil)
		opts := []leasehold.Option{leasehold.TTL(100 * time.Millisecond), leasehold.NoRenew()}
		one, all := acquire(t, locks, "one", opts...), acquireAll(t, locks, []string{"a", "b"}, opts...)
		for _, le := range []*leasehold.Lease{one, all.Lease("a"), all.Lease("b")} {
			if err := le.Extend(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		mine.Always(locktest.OpRelease, locktest.SlowReply(150*time.Millisecond))
		wantErr(t, one.Release(t.Context()), nil)
		wantErr(t, all.Release(t.Context()), nil)
	})
}

// Nor is it only the time that the lease has if the engine has not applied the last Extend, or has
// applied it without an answer. After a shorter one an engine may keep the lease for longer than it
// says.
func TestReleaseHasTheLongestTimeOfTheLease(t *testing.T) {
	const short, long = 100 * time.Millisecond, time.Hour
	for what, c := range map[string]struct {
		ttl, extend time.Duration
		lose        locktest.Fault
		want        error
	}{
		"a longer one without an answer":  {short, long, locktest.LoseReply, locktest.ErrInjected},
		"a shorter one without an answer": {long, short, locktest.LoseRequest, locktest.ErrInjected},
		"a shorter one":                   {long, short, nil, nil},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine := newFaulty(t, memory.NewServer())
				lease := acquire(t, newLocker(t, mine, nil), "a", leasehold.TTL(short), leasehold.NoRenew())
				if err := lease.Extend(t.Context(), c.ttl); err != nil {
					t.Fatal(err)
				}
				mine.Next(locktest.OpRenew, c.lose)
				wantErr(t, lease.Extend(t.Context(), c.extend), c.want)
				mine.Always(locktest.OpRelease, locktest.SlowReply(150*time.Millisecond))
				wantErr(t, lease.Release(t.Context()), nil)
			})
		})
	}
}

// forgets is an engine that counts how often a claim is forgotten.
type forgets struct {
	driver.Driver
	n int
}

type forgetsClaim struct {
	driver.Claim
	of *forgets
}

func (d *forgets) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return forgetsClaim{c, d}, err
}

func (c forgetsClaim) Forget() { c.of.n++ }

// A lease that was renewed too late to be resumed stays as it is at the engine, and costs this
// process nothing.
func TestResumeThatFailsForgetsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		d := &forgets{Driver: mine}
		first := acquire(t, newLocker(t, server.Connect(), nil), "a", leasehold.NoRenew())
		locks := newLocker(t, d, nil)
		mine.Next(locktest.OpRenew, locktest.SlowReply(time.Second))
		if _, err := locks.Resume(t.Context(), "a", first.Owner(), leasehold.TTL(time.Second)); err == nil || d.n != 1 {
			t.Errorf("%v; forgotten %d times, want once", err, d.n)
		}
	})
}

// alarming is an engine that reports its first grant as lost before it answers, but keeps it.
type alarming struct {
	driver.Driver
	once *sync.Once
}

func (d alarming) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return alarmingClaim{c, d, req.Lost}, err
}

type alarmingClaim struct {
	driver.Claim
	of   alarming
	lost func(cause error)
}

func (c alarmingClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	if err == nil {
		c.of.once.Do(func() { c.lost(driver.ErrLost) })
	}
	return g, err
}

// A call whose grant was lost before it learned of it is not refused because of that grant, nor is
// the next one, however long its release takes.
func TestLostGrantRefusesNoCallOfItsProcess(t *testing.T) {
	for what, patience := range map[string]time.Duration{"waits for its release": time.Minute, "gives up before": 100 * time.Millisecond} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine := newFaulty(t, memory.NewServer())
				mine.Next(locktest.OpRelease, func(_ context.Context, apply func() error) error {
					time.Sleep(200 * time.Millisecond)
					return apply()
				})
				locks := newLocker(t, alarming{Driver: mine, once: new(sync.Once)}, nil)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				start := time.Now()
				lease, err := locks.TryAcquire(ctx, "a")
				if patience > time.Second {
					wantErr(t, err, nil)
					lease.Release(t.Context())
				} else {
					wantErr(t, err, context.DeadlineExceeded)
					wantDuration(t, "gave up", time.Since(start), patience, patience+50*time.Millisecond)
				}
				lease, err = locks.TryAcquire(t.Context(), "a")
				wantErr(t, err, nil)
				lease.Release(t.Context())
			})
		})
	}
}

// A call that waits for such a release ends with Close.
func TestCloseWhileALostGrantIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		mine.Always(locktest.OpRelease, locktest.HangRequest)
		locks := newLocker(t, alarming{Driver: mine, once: new(sync.Once)}, nil)
		time.AfterFunc(time.Second, func() { locks.Close() })
		start := time.Now()
		_, err := locks.TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrClosed)
		wantDuration(t, "TryAcquire", time.Since(start), time.Second, 1100*time.Millisecond)
	})
}
