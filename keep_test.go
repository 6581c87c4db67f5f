package leasehold_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

const keep = 100 * time.Millisecond

// A keeping is a process that keeps leases, and another one.
type keeping struct {
	t             *testing.T
	server        *memory.Server
	mine          *locktest.Faulty
	locks, others *leasehold.Locker
	told          events
}

func newKeeping(t *testing.T) *keeping {
	k := &keeping{t: t, server: memory.NewServer()}
	k.mine = newFaulty(t, k.server)
	k.locks = newLocker(t, k.mine, &leasehold.Options{Keep: keep, Trace: k.told.trace})
	k.others = newLocker(t, k.server.Connect(), nil)
	return k
}

// release releases a lease that is live.
func (k *keeping) release(lease *leasehold.Lease) {
	k.t.Helper()
	if err := lease.Release(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
}

// cycle acquires and releases "a", and returns the token.
func (k *keeping) cycle(opts ...leasehold.Option) uint64 {
	k.t.Helper()
	lease := acquire(k.t, k.locks, "a", opts...)
	k.release(lease)
	return lease.Token()
}

// wantCalls checks how many calls there were.
func (k *keeping) wantCalls(tries, renewals, releases int) {
	k.t.Helper()
	if a, b, c := k.mine.Calls(locktest.OpTry), k.mine.Calls(locktest.OpRenew), k.mine.Calls(locktest.OpRelease); a != tries || b != renewals || c != releases {
		k.t.Fatalf("%d tries, %d renewals and %d releases, want %d, %d and %d", a, b, c, tries, renewals, releases)
	}
}

// isHeld reports whether "a" is held at the engine.
func (k *keeping) isHeld() bool {
	k.t.Helper()
	synctest.Wait()
	state, err := k.others.Inspect(k.t.Context(), "a")
	if err != nil {
		k.t.Fatal(err)
	}
	return len(state.Holders) > 0
}

// What is kept is taken without a call to the engine, with the next token. Unused, it is given back.
func TestKeptLeaseIsTakenWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		last := k.cycle()
		for range 100 {
			if token := k.cycle(); token != last+1 {
				t.Fatalf("token %d after %d", token, last)
			} else {
				last = token
			}
		}
		lease, err := k.locks.TryAcquire(t.Context(), "a")
		if err != nil || lease.Token() != last+1 {
			t.Fatal(lease, err)
		}
		k.release(lease)
		err = k.locks.Do(t.Context(), "a", func(ctx context.Context) error {
			if le, _ := leasehold.FromContext(ctx); le.Token() != last+2 {
				t.Errorf("token %d after %d", le.Token(), last+1)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		k.wantCalls(1, 0, 0)
		if lease.Context().Err() == nil {
			t.Error("a lease outlived its release")
		}
		time.Sleep(3 * keep)
		k.wantCalls(1, 1, 1) // confirmed once, because it was used
		wantFree(t, k.others, "a")
	})
}

func TestKeepStopsWhereTokensWouldOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		var tokens []uint64
		for range 3 * 1023 {
			tokens = append(tokens, k.cycle())
		}
		if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != len(tokens) {
			t.Error("tokens went back or repeated")
		}
		if n := k.mine.Calls(locktest.OpTry); n != 3 {
			t.Errorf("%d grants, want 3 of 1,023 leases each", n)
		}
	})
}

// Nothing is kept that others may act on, or that is not what the next call would be granted.
func TestNeverKept(t *testing.T) {
	manual := leasehold.WithDetails(leasehold.Details{Kind: leasehold.HolderManual})
	with := func(opts ...leasehold.Option) func(k *keeping) *leasehold.Lease {
		return func(k *keeping) *leasehold.Lease { return acquire(k.t, k.locks, "a", opts...) }
	}
	changed := func(change func(ctx context.Context, le *leasehold.Lease) error) func(k *keeping) *leasehold.Lease {
		return func(k *keeping) *leasehold.Lease {
			lease := acquire(k.t, k.locks, "a")
			if err := change(k.t.Context(), lease); err != nil {
				k.t.Error(err)
			}
			return lease
		}
	}
	for what, get := range map[string]func(k *keeping) *leasehold.Lease{
		"NoRenew": with(leasehold.NoRenew()), "MaxHold": with(leasehold.MaxHold(time.Hour)), "Yields": with(leasehold.Yields()),
		"Shared": with(leasehold.Shared()), "Kind": with(manual),
		"Owner": changed(func(_ context.Context, le *leasehold.Lease) error { le.Owner(); return nil }),
		"Extend": changed(func(ctx context.Context, le *leasehold.Lease) error {
			return le.Extend(ctx, time.Hour)
		}),
		"Extend of the same length": changed(func(ctx context.Context, le *leasehold.Lease) error { return le.Extend(ctx, ttl) }),
		"SetNote":                   changed(func(ctx context.Context, le *leasehold.Lease) error { return le.SetNote(ctx, "half") }),
		"SetDetails": changed(func(ctx context.Context, le *leasehold.Lease) error {
			return le.SetDetails(ctx, leasehold.Details{User: "anna"})
		}),
		"resumed": func(k *keeping) *leasehold.Lease {
			left := acquire(k.t, k.others, "a")
			lease, err := k.locks.Resume(k.t.Context(), "a", left.Owner())
			if err != nil {
				k.t.Fatal(err)
			}
			return lease
		},
		"AtLeast inside": func(k *keeping) *leasehold.Lease {
			lease := acquire(k.t, k.locks, "a")
			inner, err := k.locks.Acquire(lease.Context(), "a", leasehold.Reentrant(), leasehold.AtLeast(time.Nanosecond))
			if err != nil {
				k.t.Fatal(err)
			}
			k.release(inner)
			return lease
		},
		"MaxHold, taken from keep": func(k *keeping) *leasehold.Lease {
			last := k.cycle()
			lease := acquire(k.t, k.locks, "a", leasehold.MaxHold(time.Hour))
			if lease.Token() != last+1 {
				k.t.Errorf("token %d after %d", lease.Token(), last)
			}
			return lease
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeeping(t)
				k.release(get(k))
				time.Sleep(time.Millisecond) // AtLeast
				if k.isHeld() {
					t.Error("kept")
				}
			})
		})
	}
}

// Nor is a leader's, who has stepped down.
func TestLeadKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		c := runForLeader(t, k.locks)
		<-c.tokens
		c.cancel()
		<-c.result
		wantFree(t, k.others, "scheduler")
	})
}

// What was kept before its owner was read is given back.
func TestOwnerReadAfterTheReleaseEndsKeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		lease := acquire(t, k.locks, "a")
		k.release(lease)
		if !k.isHeld() {
			t.Fatal("not kept")
		}
		lease.Owner()
		if k.isHeld() {
			t.Error("kept although its owner is known")
		}
	})
}

func TestKeepIsRefused(t *testing.T) {
	for _, o := range []leasehold.Options{{Keep: -1}, {Keep: time.Millisecond}, {Keep: keep, HandOver: -1}} {
		_, err := leasehold.New(memory.New(), &o)
		wantErr(t, err, leasehold.ErrInvalidOption)
	}
	features := memory.New().Features()
	features.Keeps = false
	_, err := leasehold.New(limited{memory.New(), features}, &leasehold.Options{Keep: keep})
	wantErr(t, err, leasehold.ErrUnsupported)
}

// A call for a lease of another kind gives back what is kept, and is not refused because of it.
func TestOtherCallsGiveBackWhatIsKept(t *testing.T) {
	for what, opt := range map[string]leasehold.Option{
		"shared": leasehold.Shared(), "TTL": leasehold.TTL(time.Minute), "NoRenew": leasehold.NoRenew(),
		"AtLeast": leasehold.AtLeast(time.Nanosecond), "Yields": leasehold.Yields(),
	} {
		for _, wait := range []time.Duration{0, time.Hour} {
			t.Run(what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := newKeeping(t)
					first := acquire(t, k.locks, "a")
					k.release(first)
					next := acquire(t, k.locks, "a", opt, leasehold.Wait(wait))
					wantGrant(t, next, first)
					k.wantCalls(2, 0, 1)
					k.release(next)
				})
			})
		}
	}
}

// Where a note cannot be changed, what is kept goes to a call with the same one.
func TestKeptLeaseWithoutNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, fixedNotes{memory.New()}, &leasehold.Options{Keep: keep})
		var last *leasehold.Lease
		for i, note := range []string{"a", "a", "b", "b"} {
			lease := acquire(t, locks, "a", leasehold.Note(note))
			if d := held(t, locks).Details(); d.Text != note || d.Kind != leasehold.HolderKeeps {
				t.Errorf("shows %+v", d)
			}
			if i%2 == 0 && last != nil {
				wantGrant(t, lease, last)
			} else if last != nil && lease.Token() != last.Token()+1 {
				t.Errorf("token %d after %d", lease.Token(), last.Token())
			}
			lease.Release(t.Context())
			last = lease
		}
	})
}

// Elsewhere the next confirmation changes it.
func TestKeptLeaseShowsItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle(leasehold.Note("a"))
		lease := acquire(t, k.locks, "a", leasehold.Note("b"))
		time.Sleep(keep)
		if d := held(t, k.others).Details(); d.Text != "b" || d.Kind != leasehold.HolderKeeps {
			t.Errorf("shows %+v", d)
		}
		k.release(lease)
	})
}

// Of a Locker that is closed only what is kept is given back, and nothing is kept any more.
func TestCloseGivesBackWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		for _, name := range []string{"a", "b", "c"} {
			k.release(acquire(t, k.locks, name))
		}
		held := acquire(t, k.locks, "held")
		k.locks.Close()
		wantFree(t, k.others, "a", "b", "c")
		state, err := k.others.Inspect(t.Context(), "held") // recalls nothing
		if err != nil || len(state.Holders) != 1 || held.Context().Err() != nil {
			t.Error("Close ended a lease that is held")
		}
		k.release(held)
		wantFree(t, k.others, "held")
	})
}

// An engine that does not answer delays Close by no more than a clean-up.
func TestCloseWithAnEngineThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.cycle()
		k.mine.Always(locktest.OpRelease, locktest.HangRequest)
		start := time.Now()
		k.locks.Close()
		wantDuration(t, "Close", time.Since(start), 5*time.Second, 5*time.Second+time.Millisecond)
		if steps := k.told.of(leasehold.KindKeep); steps[len(steps)-1] != "unknown" {
			t.Errorf("keeps: %q", steps)
		}
	})
}

// Without Keep nothing is asked of the engine, and nothing shown.
func TestWithoutKeepNothingIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &recaller{Driver: memory.New()}
		locks := newLocker(t, d, nil)
		lease := acquire(t, locks, "a")
		if held(t, locks).Details().Kind != "" || d.asked.Load() != 0 {
			t.Errorf("shows %+v, %d claims ask for recalls", held(t, locks).Details(), d.asked.Load())
		}
		lease.Release(t.Context())
		wantFree(t, locks, "a")
	})
}

func TestTraceTellsOfKeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		first := acquire(t, k.locks, "a")
		k.release(first)
		time.Sleep(time.Millisecond)
		k.cycle()
		time.Sleep(3 * keep)
		if steps := k.told.of(leasehold.KindKeep); !slices.Equal(steps, []string{"begun", "taken", "begun", "given_back"}) {
			t.Errorf("keeps: %q", steps)
		}
		if steps := k.told.of(leasehold.KindWait); !slices.Equal(steps, []string{"begun", "granted", "begun", "taken"}) {
			t.Errorf("waits: %q", steps)
		}
		if steps := k.told.of(leasehold.KindHold); !slices.Equal(steps, []string{"begun", "released", "begun", "released"}) {
			t.Errorf("holds: %q", steps)
		}
		for _, e := range k.told.all {
			if e.Kind == leasehold.KindKeep && e.Step == leasehold.StepTaken && (e.Took != time.Millisecond || e.Token != first.Token()) {
				t.Errorf("%+v", e)
			}
		}
	})
}

// The check at the end of the window may come while the release of the last lease is on its way, as
// after a pause there.
func TestKeptTooLateIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		k.locks = newLocker(t, k.mine, &leasehold.Options{Keep: keep, Trace: func(_ context.Context, e leasehold.Event) {
			if e.Kind == leasehold.KindHold && e.Step == leasehold.StepReleased {
				time.Sleep(keep / 2)
			}
		}})
		lease := acquire(t, k.locks, "a")
		time.Sleep(keep - time.Millisecond)
		k.release(lease)
		time.Sleep(keep)
		if k.isHeld() {
			t.Error("the lease is kept after its window")
		}
	})
}

// A lease that is kept just as its renewal is answered is given back at the end of its window, and not
// at the time of its next renewal.
func TestKeptAtItsRenewalIsGivenBackInTime(t *testing.T) {
	for name, way := range map[string]func(driver.Driver) driver.Driver{
		"one by one": func(d driver.Driver) driver.Driver { return struct{ driver.Driver }{d} },
		"together":   func(d driver.Driver) driver.Driver { return d },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeeping(t)
				leases := make(chan *leasehold.Lease, 1)
				k.locks = newLocker(t, way(k.mine), &leasehold.Options{Keep: keep, Trace: func(_ context.Context, e leasehold.Event) {
					if e.Kind == leasehold.KindRenewal && e.Step == leasehold.StepRenewed {
						k.release(<-leases)
					}
				}})
				leases <- acquire(t, k.locks, "a")
				time.Sleep(ttl/3 + 2*keep)
				if k.mine.Calls(locktest.OpRenew) == 0 || k.isHeld() {
					t.Error("the lease is kept after its window")
				}
			})
		})
	}
}

// hungReleases is an engine that does not answer the releases of some names.
type hungReleases struct {
	driver.Driver
	names []string
}

func (d hungReleases) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	if slices.Contains(d.names, req.Resource) {
		c = hungReleasesClaim{c}
	}
	return c, err
}

// RenewAll is there so that the keeper handles the leases together.
func (d hungReleases) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		r := &renewals[i]
		r.Answer(r.Claim.Renew(ctx, r.TTL))
	}
}

type hungReleasesClaim struct{ driver.Claim }

func (hungReleasesClaim) Release(ctx context.Context, _ driver.End) error {
	<-ctx.Done()
	return ctx.Err()
}

// What is given back does not wait for what hangs.
func TestHungReleasesDelayNoOtherName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		var hung, healthy []string
		for i := range 50 {
			hung, healthy = append(hung, fmt.Sprint("hung ", i)), append(healthy, fmt.Sprint("healthy ", i))
		}
		locks := newLocker(t, hungReleases{k.mine, hung}, &leasehold.Options{Keep: keep})
		for i := range hung {
			k.release(acquire(t, locks, hung[i]))
			k.release(acquire(t, locks, healthy[i]))
		}
		time.Sleep(keep + time.Second)
		wantFree(t, k.others, healthy...)

		for _, name := range healthy {
			k.release(acquire(t, locks, name))
		}
		k.mine.Always(locktest.OpRelease, locktest.HangRequest)
		start := time.Now()
		locks.Close()
		wantDuration(t, "Close", time.Since(start), 4*time.Second, 6*time.Second)
	})
}

// A lease that cannot be kept is not shown as kept after SetNote.
func TestChangedNoteShowsThatNothingIsKept(t *testing.T) {
	for what, begin := range map[string]func(k *keeping) *leasehold.Lease{
		"acquired": func(k *keeping) *leasehold.Lease { return acquire(k.t, k.locks, "a") },
		"resumed": func(k *keeping) *leasehold.Lease {
			lease, err := k.locks.Resume(k.t.Context(), "a", acquire(k.t, k.others, "a").Owner())
			wantErr(k.t, err, nil)
			return lease
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeeping(t)
				lease := begin(k)
				if err := lease.SetNote(t.Context(), "half"); err != nil {
					t.Fatal(err)
				}
				if d := held(t, k.others).Details(); d.Kind != "" || d.Text != "half" {
					t.Errorf("shows %+v", d)
				}
				k.release(lease)
			})
		})
	}
}

// A lease that was handed over is not kept if the one before could not be kept. So another process
// is refused at once, and does not wait for a recall.
func TestHandedOverFromALeaseThatIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeping(t)
		first := acquire(t, k.locks, "a", leasehold.MaxHold(time.Hour))
		got := make(chan *leasehold.Lease)
		go func() { got <- acquire(t, k.locks, "a", leasehold.Note("second")) }()
		synctest.Wait()
		k.release(first)
		second := <-got
		time.Sleep(leasehold.DefaultTTL)
		if d := held(t, k.others).Details(); d.Kind != "" || d.Text != "second" {
			t.Errorf("shows %+v", d)
		}
		start := time.Now()
		_, err := k.others.TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrBusy)
		wantDuration(t, "refused", time.Since(start), 0, 0)
		k.release(second)
		if k.isHeld() {
			t.Error("kept")
		}
	})
}
