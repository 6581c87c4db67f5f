package leasehold_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// limited is an engine that can do less.
type limited struct {
	driver.Driver
	features driver.Features
}

func (d limited) Features() driver.Features { return d.features }

func TestWhatCannotBePromisedIsRefusedWhenBuilt(t *testing.T) {
	poor := limited{memory.New(), driver.Features{MinTTL: 2 * time.Second, Step: time.Second}}
	_, err := leasehold.New(poor, &leasehold.Options{RequireFencing: true})
	wantErr(t, err, leasehold.ErrUnsupported)
	_, err = leasehold.New(poor, &leasehold.Options{TTL: time.Second})
	wantErr(t, err, leasehold.ErrUnsupported)
	for _, drift := range []float64{-1, 0.5, 2} {
		_, err = leasehold.New(memory.New(), &leasehold.Options{Drift: drift})
		wantErr(t, err, leasehold.ErrInvalidOption)
	}
	for _, none := range []driver.Driver{nil, (*memory.Driver)(nil)} {
		_, err = leasehold.New(none, nil)
		wantErr(t, err, leasehold.ErrInvalidOption)
	}
	_, err = leasehold.New(memory.New(), &leasehold.Options{Note: "\xff"})
	wantErr(t, err, leasehold.ErrInvalidOption)
	locks := newLocker(t, poor, nil)
	_, err = locks.Acquire(t.Context(), "a", leasehold.Shared())
	wantErr(t, err, leasehold.ErrUnsupported)
	_, err = locks.Resume(t.Context(), "a", "owner")
	wantErr(t, err, leasehold.ErrUnsupported)
	_, err = locks.Inspect(t.Context(), "a") // the wrapper hides the optional interfaces
	wantErr(t, err, leasehold.ErrUnsupported)
	_, err = locks.Page(t.Context(), leasehold.PageOptions{})
	wantErr(t, err, leasehold.ErrUnsupported)
	wantErr(t, locks.Evict(t.Context(), "a", "owner", ""), leasehold.ErrUnsupported)
}

func TestInvalidCallsReachNoEngine(t *testing.T) {
	mine := newFaulty(t, memory.NewServer())
	locks := newLocker(t, mine, nil)
	for _, opt := range []leasehold.Option{
		leasehold.TTL(0), leasehold.TTL(-time.Second), leasehold.TTL(time.Nanosecond), leasehold.Wait(-1),
		leasehold.Limit(0), leasehold.Limit(-1), leasehold.Limit(driver.MaxWeight + 1), leasehold.MaxHold(0), leasehold.AtLeast(-1), nil,
	} {
		_, err := locks.Acquire(t.Context(), "a", opt)
		wantErr(t, err, leasehold.ErrInvalidOption)
	}
	for _, name := range []string{"", "\x00", "a\nb", "a\rb", "\x7f", "\u0085", "\xff", strings.Repeat("x", 513)} {
		_, err := locks.Acquire(t.Context(), name)
		wantErr(t, err, leasehold.ErrInvalidName)
		_, err = locks.Inspect(t.Context(), name)
		wantErr(t, err, leasehold.ErrInvalidName)
		wantErr(t, locks.Evict(t.Context(), name, "o", ""), leasehold.ErrInvalidName)
	}
	if n := mine.Calls(locktest.OpTry) + mine.Calls(locktest.OpInspect) + mine.Calls(locktest.OpEvict); n != 0 {
		t.Errorf("%d calls reached the engine", n)
	}
}

// ttlSpy records what the engine is asked for.
type ttlSpy struct {
	driver.Driver
	features driver.Features
	asked    *time.Duration
}

func (d ttlSpy) Features() driver.Features { return d.features }
func (d ttlSpy) Claim(req driver.Request) (driver.Claim, error) {
	*d.asked = req.TTL
	return d.Driver.Claim(req)
}

func TestTTLIsRoundedUpToTheEnginesStep(t *testing.T) {
	var asked time.Duration
	spy := ttlSpy{memory.New(), driver.Features{Step: time.Second}, &asked}
	locks := newLocker(t, spy, nil)
	acquire(t, locks, "a", leasehold.TTL(2100*time.Millisecond)).Release(t.Context())
	if asked != 3*time.Second {
		t.Errorf("asked for %v, want 3s", asked)
	}
}

func TestBusyErrorDrivesNoTerminal(t *testing.T) {
	server := memory.NewServer()
	acquire(t, newLocker(t, server.Connect(), nil), "a", leasehold.Note("\x1b[2Jevil\r\n"))
	_, err := newLocker(t, server.Connect(), nil).TryAcquire(t.Context(), "a")
	if strings.ContainsAny(err.Error(), "\x1b\r\n") {
		t.Errorf("%q has control characters", err)
	}
}

// Promise 7: errors, also those that quote other errors, never carry an owner whole.
func TestErrorsKeepTheOwnerSecret(t *testing.T) {
	server := memory.NewServer()
	locks := newLocker(t, server.Connect(), nil)
	lease := acquire(t, locks, "a")
	_, busy := locks.TryAcquire(t.Context(), "a")
	_, busyElsewhere := newLocker(t, server.Connect(), nil).TryAcquire(t.Context(), "a")
	if err := locks.Evict(t.Context(), "a", lease.Owner(), "tidy"); err != nil {
		t.Fatal(err)
	}
	lost := lease.Release(t.Context())
	_, gone := locks.Resume(t.Context(), "a", lease.Owner())
	evicted := locks.Evict(t.Context(), "a", lease.Owner(), "again")
	for _, err := range []error{busy, busyElsewhere, lost, gone, evicted} {
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), lease.Owner()) {
			t.Errorf("error %q is nil or carries the owner", err)
		}
	}
	if !strings.Contains(lost.Error(), "evicted: tidy") {
		t.Errorf("%q does not say why the lease was lost", lost)
	}
	if errors.Is(lost, leasehold.ErrReleased) {
		t.Error("lost and released at once")
	}
}

func TestTTLBeyondReasonIsRefused(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	for _, d := range []time.Duration{math.MaxInt64, 11 * 365 * 24 * time.Hour} {
		for _, opt := range []leasehold.Option{leasehold.TTL(d), leasehold.MaxHold(d), leasehold.AtLeast(d), leasehold.OncePer(d)} {
			_, err := locks.TryAcquire(t.Context(), "a", opt)
			wantErr(t, err, leasehold.ErrInvalidOption)
		}
	}
}

// AtLeast is about a Release: who is lost leaves its TTL and no more, whether it calls Release or not.
// The TTL of OncePer is as long as its AtLeast.
func TestAtLeastEndsWithTheTTLOfWhoIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		opt  leasehold.Option
		held time.Duration
	}{
		"AtLeast": {leasehold.AtLeast(time.Hour), ttl},
		"OncePer": {leasehold.OncePer(time.Hour), 54 * time.Minute},
	} {
		for _, releases := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, releases), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					locks := newLocker(t, memory.New(), nil)
					start := time.Now()
					lease := acquire(t, locks, "a", c.opt, leasehold.MaxHold(time.Second))
					<-lease.Context().Done()
					if releases {
						wantErr(t, lease.Release(t.Context()), leasehold.ErrLost)
					}
					acquire(t, locks, "a")
					wantDuration(t, "held", time.Since(start), c.held, c.held+10*time.Millisecond)
				})
			})
		}
	}
}

// A second Release, after one without an answer, neither shortens nor lengthens what AtLeast keeps.
func TestAtLeastAfterASecondRelease(t *testing.T) {
	for name, lose := range map[string]locktest.Fault{"applied": locktest.HangReply, "not applied": locktest.HangRequest} {
		for opt, c := range map[string]leasehold.Option{"AtLeast": leasehold.AtLeast(time.Minute), "OncePer": leasehold.OncePer(time.Minute)} {
			t.Run(opt+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := memory.NewServer()
					mine := newFaulty(t, server)
					start := time.Now()
					lease := acquire(t, newLocker(t, mine, nil), "a", c)
					mine.Next(locktest.OpLinger, lose)
					mine.Always(locktest.OpLinger, locktest.HangRequest)
					if err := lease.Release(t.Context()); err == nil || errors.Is(err, leasehold.ErrLost) {
						t.Fatalf("Release: %v; want an unknown outcome", err)
					}
					mine.Always(locktest.OpLinger, nil)
					if err := lease.Release(t.Context()); (err == nil) != (name == "not applied") || errors.Is(err, leasehold.ErrLost) {
						t.Errorf("second Release: %v", err)
					}
					acquire(t, newLocker(t, server.Connect(), nil), "a")
					want := time.Minute
					if opt == "OncePer" {
						want = 54 * time.Second
					}
					wantDuration(t, "held", time.Since(start), want, want+10*time.Millisecond)
				})
			})
		}
	}
}

// A wait that is shorter than what AtLeast leaves is refused; a longer one is granted with its end.
func TestWaitCountsWhatAtLeastLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		start := time.Now()
		if err := acquire(t, locks, "a", leasehold.AtLeast(time.Minute)).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := locks.Acquire(t.Context(), "a", leasehold.Wait(time.Second))
		wantErr(t, err, leasehold.ErrBusy)
		wantDuration(t, "the refusal's wait", time.Since(start), time.Second, 2*time.Second)
		acquire(t, locks, "a", leasehold.Wait(time.Hour))
		wantDuration(t, "the grant's wait", time.Since(start), time.Minute, time.Minute+time.Second)
	})
}

// The smallest limit of the holders and of who asks counts, and takes no lease away.
func TestSmallestLimitCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		first, second := acquire(t, locks, "a", leasehold.Shared()), acquire(t, locks, "a", leasehold.Shared())
		_, err := locks.TryAcquire(t.Context(), "a", leasehold.Limit(2))
		wantErr(t, err, leasehold.ErrBusy)
		small := acquire(t, locks, "a", leasehold.Limit(3))
		_, err = locks.TryAcquire(t.Context(), "a", leasehold.Limit(10))
		wantErr(t, err, leasehold.ErrBusy)
		for _, le := range []*leasehold.Lease{first, second, small} {
			if err := le.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
