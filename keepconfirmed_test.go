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

// What is never used is not even confirmed.
func TestUnusedLeaseIsGivenBackAfterTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		time.Sleep(keep - time.Millisecond)
		if !k.isHeld() {
			t.Error("given back too early")
		}
		time.Sleep(keep / 4)
		if k.isHeld() {
			t.Error("not given back")
		}
		k.wantCalls(1, 0, 1)
	})
}

// A lease that is used now and then is confirmed while it is, and no longer.
func TestKeptLeaseIsConfirmedWhileItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		last, start := k.cycle(), time.Now()
		for time.Since(start) < 30*time.Second {
			time.Sleep(3 * keep / 4) // later than the first check finds it unused
			token := k.cycle()
			if token != last+1 {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
		}
		if n := k.mine.Calls(locktest.OpRenew); n < 250 || n > 700 {
			t.Errorf("%d renewals in 30 s, want some two in each %v", n, keep)
		}
		if n := k.mine.Calls(locktest.OpTry); n != 1 {
			t.Errorf("%d grants", n)
		}
	})
}

// One that was not used for a while is confirmed as soon as it is used again, and not at the end of
// the window.
func TestKeptLeaseIsConfirmedWhenItIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.mine.Always(locktest.OpRenew, locktest.SlowReply(keep/4))
		last := k.cycle()
		time.Sleep(6 * keep / 10)
		for range keep / time.Millisecond {
			token := k.cycle()
			if token != last+1 {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
			time.Sleep(time.Millisecond)
		}
	})
}

// A lease that is held for long is not renewed more often than without Keep.
func TestLongSectionsAreNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		lease := acquire(t, k.locks, "a")
		time.Sleep(time.Minute)
		if n := k.mine.Calls(locktest.OpRenew); n < 15 || n > 25 {
			t.Errorf("%d renewals in a minute", n)
		}
		k.release(lease)
	})
}

// However long the window is, half of the lease is left of what is taken.
func TestKeptLeaseHasHalfOfItsLengthLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), &leasehold.Options{Keep: time.Hour})
		for _, wait := range []time.Duration{ttl/2 - time.Second, ttl/2 + time.Second} {
			first := acquire(t, locks, "a")
			first.Release(t.Context())
			time.Sleep(wait)
			second := acquire(t, locks, "a")
			if wait < ttl/2 && second.Token() != first.Token()+1 {
				t.Errorf("token %d after %d", second.Token(), first.Token())
			}
			wantDuration(t, "left", time.Until(second.Deadline()), ttl/2, ttl)
			second.Release(t.Context())
			time.Sleep(ttl)
		}
	})
}

// The window counts from before the call that the engine last agreed to.
func TestWindowCountsFromTheEnginesWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.mine.Next(locktest.OpTry, locktest.SlowReply(keep))
		k.cycle()
		if k.isHeld() {
			t.Error("kept although the engine's answer was slow")
		}
		lease := acquire(t, k.locks, "a")
		time.Sleep(keep)
		k.release(lease)
		if k.isHeld() {
			t.Error("kept although the section was long")
		}
		lease = acquire(t, k.locks, "a")
		time.Sleep(keep - time.Millisecond)
		k.release(lease)
		time.Sleep(time.Millisecond)
		next := acquire(t, k.locks, "a")
		wantGrant(t, next, lease)
		k.release(next)
	})
}

// So it does after a confirmation, however late its answer comes.
func TestWindowCountsFromBeforeTheConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.mine.Always(locktest.OpRenew, locktest.SlowReply(8*keep/10))
		k.cycle()
		first := acquire(t, k.locks, "a")
		k.release(first)
		time.Sleep(155 * keep / 100) // the answer has come, and was asked for more than the window ago
		second := acquire(t, k.locks, "a")
		wantGrant(t, second, first)
		k.release(second)
	})
}

// A confirmation that hangs keeps nobody waiting, and ends keeping with the window.
func TestConfirmationThatHangsIsInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		last := k.cycle()
		k.mine.Always(locktest.OpRenew, locktest.HangRequest)
		start := time.Now()
		for time.Since(start) < keep-time.Millisecond {
			token := k.cycle()
			if token != last+1 {
				t.Fatalf("token %d after %d within the window", token, last)
			}
			last = token
			time.Sleep(time.Millisecond)
		}
		k.wantCalls(1, 1, 0)
		time.Sleep(2 * time.Millisecond)
		asked := time.Now()
		if token := k.cycle(); token < last+512 {
			t.Errorf("token %d after %d, taken after the window", token, last)
		}
		wantDuration(t, "waited", time.Since(asked), 0, 0)
		k.cycle()
		k.cycle()
		time.Sleep(2 * keep) // and what nobody takes is given back
		if k.isHeld() {
			t.Error("kept although the engine does not confirm it")
		}
	})
}

// A lease in use is renewed as without Keep, also if the engine's answers take longer than what
// confirms a kept one.
func TestLeaseInUseOutlivesSlowConfirmations(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, mine *locktest.Faulty, locks *leasehold.Locker, slow locktest.Fault) *leasehold.Lease{
		"taken": func(t *testing.T, mine *locktest.Faulty, locks *leasehold.Locker, slow locktest.Fault) *leasehold.Lease {
			acquire(t, locks, "a").Release(t.Context())
			mine.Always(locktest.OpRenew, slow)
			return acquire(t, locks, "a")
		},
		"handed over": func(t *testing.T, mine *locktest.Faulty, locks *leasehold.Locker, slow locktest.Fault) *leasehold.Lease {
			for _, op := range []locktest.Op{locktest.OpTry, locktest.OpRenew, locktest.OpRelease} {
				mine.Always(op, slow)
			}
			first, next := acquire(t, locks, "a"), make(chan *leasehold.Lease, 1)
			go func() { next <- acquire(t, locks, "a") }()
			synctest.Wait()
			first.Release(t.Context())
			second := <-next
			if second.Token() != first.Token()+1 {
				t.Errorf("token %d after %d", second.Token(), first.Token())
			}
			return second
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine := newFaulty(t, memory.NewServer())
				locks := newLocker(t, mine, &leasehold.Options{Keep: 50 * time.Millisecond, TTL: 2 * time.Second})
				lease := use(t, mine, locks, locktest.SlowReply(150*time.Millisecond))
				time.Sleep(10 * time.Second)
				if lease.Context().Err() != nil {
					t.Error(context.Cause(lease.Context()))
				}
				lease.Release(t.Context())
			})
		})
	}
}

// A renewal that fails while the lease is used is repeated after a while. If the lease is kept
// meanwhile, it is given back at the end of its window all the same.
func TestKeptBetweenTwoAttemptsIsGivenBackInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		k.mine.Always(locktest.OpRenew, locktest.LoseRequest)
		lease := acquire(t, k.locks, "a")
		time.Sleep(keep * 9 / 10)
		k.wantCalls(1, 1, 0)
		k.release(lease)
		if !k.isHeld() {
			t.Error("not kept")
		}
		time.Sleep(keep / 4)
		if k.isHeld() {
			t.Error("the lease is kept after its window")
		}
	})
}
