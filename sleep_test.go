package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A machine is a Locker on an engine that does not sleep with it: while it does, time passes
// on the engine, and no goroutine of the Locker's runs.
type machine struct {
	clock boottime.Clock
	locks *leasehold.Locker
	link  *locktest.Faulty
}

func newMachine(t *testing.T, s *memory.Server, opts *leasehold.Options) *machine {
	t.Helper()
	m := &machine{link: newFaulty(t, s)}
	locks, err := leasehold.NewOnClock(m.link, opts, &m.clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	m.locks = locks
	return m
}

// sleep lets d pass without the monotonic clock, and nobody on the machine has run since.
func (m *machine) sleep(d time.Duration) { m.clock.Sleep(d) }

// A lease that ended while the machine slept has ended when it wakes up, says why, and is
// not released.
func TestLeaseEndsInASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, memory.NewServer(), nil)
		leases := make([]*leasehold.Lease, 1000)
		for i := range leases {
			leases[i] = acquire(t, m.locks, fmt.Sprint("lease ", i))
		}
		m.link.Always(locktest.OpRelease, locktest.LoseRequest) // the answer is known without the engine
		m.sleep(time.Hour)
		synctest.Wait() // and not a nanosecond more
		for _, lease := range leases {
			select {
			case <-lease.Context().Done():
			default:
				t.Fatal("the context goes on")
			}
			cause := context.Cause(lease.Context())
			wantErr(t, cause, leasehold.ErrLost)
			wantErr(t, cause, leasehold.ErrExpired)
			if !strings.Contains(cause.Error(), "the machine slept for 1h0m0s") {
				t.Fatalf("%v does not say that the machine slept", cause)
			}
			if left := time.Until(lease.Deadline()); left > -50*time.Minute {
				t.Fatalf("the deadline is in %v", left)
			}
			wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)
		}
	})
}

// Who runs before anything of the Locker's does finds the lease ended too.
func TestErrAndReleaseKnowOfASleep(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // what the clock starts runs later
	for what, look := range map[string]func(context.Context, *machine, *leasehold.Lease) error{
		"Err": func(_ context.Context, _ *machine, le *leasehold.Lease) error {
			le.Context().Err()
			return context.Cause(le.Context())
		},
		"Release": func(ctx context.Context, _ *machine, le *leasehold.Lease) error { return le.Release(ctx) },
		"Extend": func(ctx context.Context, _ *machine, le *leasehold.Lease) error {
			return le.Extend(ctx, time.Minute)
		},
		"TryAcquire": func(ctx context.Context, m *machine, le *leasehold.Lease) error {
			m.locks.TryAcquire(ctx, "a") // is refused by the engine, and not by the lease
			select {
			case <-le.Context().Done():
				return context.Cause(le.Context())
			default:
				return nil
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, memory.NewServer(), nil)
			lease := acquire(t, m.locks, "a")
			m.sleep(11 * time.Second)
			if err := look(t.Context(), m, lease); !errors.Is(err, leasehold.ErrLost) {
				t.Errorf("%s says %v after a sleep of more than the TTL", what, err)
			}
		})
	}
}

// A lease that outlives the sleep lives, for what is left of it, and is renewed at once: the
// engine has counted on.
func TestLeaseOutlivesAShortSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, memory.NewServer(), nil)
		lease := acquire(t, m.locks, "a", leasehold.TTL(10*time.Second))
		before := m.link.Calls(locktest.OpRenew)
		m.sleep(9 * time.Second)
		synctest.Wait()
		if m.link.Calls(locktest.OpRenew) == before {
			t.Error("was not renewed at once")
		}
		wantDuration(t, "left after a renewal", time.Until(lease.Deadline()), 9*time.Second, 10*time.Second)

		m.link.Always(locktest.OpRenew, locktest.LoseRequest)
		m.sleep(9 * time.Second)
		wantDuration(t, "left", time.Until(lease.Deadline()), 0, time.Second)
		time.Sleep(time.Until(lease.Deadline()) - time.Nanosecond)
		synctest.Wait()
		if err := lease.Context().Err(); err != nil {
			t.Errorf("ended before its deadline: %v", context.Cause(lease.Context()))
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrLost)
	})
}

// asleep is an engine whose next call takes until the machine has slept.
type asleep struct {
	driver.Driver
	call func()
}

func (d *asleep) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return asleepClaim{c, d}, err
}

type asleepClaim struct {
	driver.Claim
	of *asleep
}

func (c asleepClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	c.of.call()
	return g, err
}

func (c asleepClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	g, err := c.Claim.Renew(ctx, ttl)
	c.of.call()
	return g, err
}

// A sleep between a call and its answer counts: the deadline is by what was read before the call.
func TestSleepDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clock boottime.Clock
		d := &asleep{Driver: struct{ driver.Driver }{memory.New()}, call: func() { clock.Sleep(4 * time.Second) }}
		locks, err := leasehold.NewOnClock(d, nil, &clock)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		lease := acquire(t, locks, "a", leasehold.NoRenew())
		wantDuration(t, "left of a grant", time.Until(lease.Deadline()), 5*time.Second, 6*time.Second)
		if err := lease.Extend(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		wantDuration(t, "left of a renewal", time.Until(lease.Deadline()), 5*time.Second, 6*time.Second)
	})
}

// What was granted before a sleep is not handed over after it: the engine may have lost it.
func TestNoHandOverAcrossASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, memory.NewServer(), &leasehold.Options{TTL: time.Minute})
		lease := acquire(t, m.locks, "a")
		next := make(chan *leasehold.Lease)
		go func() { next <- acquire(t, m.locks, "a") }()
		synctest.Wait()
		m.sleep(time.Second)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if second := <-next; second.Token() < lease.Token()+driver.FenceStep {
			t.Errorf("token %d after %d: not asked anew", second.Token(), lease.Token())
		}
	})
}

// MaxHold counts the time that the machine sleeps, whatever is left of the lease.
func TestMaxHoldEndsInASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, memory.NewServer(), nil)
		capped := acquire(t, m.locks, "capped", leasehold.TTL(time.Hour), leasehold.MaxHold(time.Minute))
		looked := acquire(t, m.locks, "looked", leasehold.TTL(time.Hour), leasehold.MaxHold(time.Minute))
		longer := acquire(t, m.locks, "longer", leasehold.TTL(time.Hour), leasehold.MaxHold(2*time.Minute))
		m.sleep(time.Minute)
		if looked.Context().Err() == nil {
			t.Error("whoever looks first finds a lease that was held for MaxHold")
		}
		synctest.Wait() // and not a nanosecond more
		select {
		case <-capped.Context().Done():
		default:
			t.Fatal("held for more than MaxHold")
		}
		cause := context.Cause(capped.Context())
		wantErr(t, cause, leasehold.ErrLost)
		if !strings.Contains(cause.Error(), "held for MaxHold of 1m0s") {
			t.Errorf("lost by %v", cause)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if err := longer.Context().Err(); err != nil {
			t.Errorf("ended before MaxHold: %v", context.Cause(longer.Context()))
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		wantErr(t, context.Cause(longer.Context()), leasehold.ErrLost)
	})
}
