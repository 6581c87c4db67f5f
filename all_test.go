package leasehold_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/several"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func acquireAll(t *testing.T, l *leasehold.Locker, names []string, opts ...leasehold.Option) *leasehold.Leases {
	t.Helper()
	all, err := l.AcquireAll(t.Context(), names, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wantFree fails unless nobody holds the names or waits for them.
func wantFree(t *testing.T, l *leasehold.Locker, names ...string) {
	t.Helper()
	for _, name := range names {
		state, err := l.Inspect(t.Context(), name)
		if err != nil || len(state.Holders)+len(state.Waiters) > 0 {
			t.Errorf("%s is not free: %+v, %v", name, state, err)
		}
	}
}

// together serves calls of several claims at once, and counts that.
type together struct {
	driver.Driver
	tries, releases *atomic.Int32
}

func newTogether(d driver.Driver) together {
	return together{d, new(atomic.Int32), new(atomic.Int32)}
}

func (d together) TryAll(ctx context.Context, trials []driver.Trial) {
	d.tries.Add(1)
	several.Bounded(len(trials), len(trials), func(i int) {
		trials[i].Grant, trials[i].Err = trials[i].Claim.Try(ctx)
	})
}

func (d together) ReleaseAll(ctx context.Context, endings []driver.Ending) {
	d.releases.Add(1)
	several.Bounded(len(endings), len(endings), func(i int) {
		endings[i].Err = endings[i].Claim.Release(ctx, endings[i].How)
	})
}

// eachWay tests drivers with calls of several claims at once, and without.
func eachWay(t *testing.T, test func(t *testing.T, way func(driver.Driver) driver.Driver)) {
	for name, way := range map[string]func(driver.Driver) driver.Driver{
		"one by one": func(d driver.Driver) driver.Driver { return struct{ driver.Driver }{d} },
		"together":   func(d driver.Driver) driver.Driver { return newTogether(d) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, way) })
		})
	}
}

// Acquiring free names takes one call of the driver, and releasing them another. Names that the process already holds
// take none.
func TestAllInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		d := newTogether(mine)
		locks, other := newLocker(t, d, nil), newLocker(t, server.Connect(), nil)
		all := acquireAll(t, locks, []string{"c", "a", "b"}, leasehold.For("d", leasehold.Limit(3), leasehold.Weight(2)))
		for i, name := range all.Names() {
			st, err := other.Inspect(t.Context(), name)
			if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != all.Lease(name).Token() || st.Holders[0].Token == 0 {
				t.Errorf("%d: %s with token %d: %+v, %v", i, name, all.Lease(name).Token(), st.Holders, err)
			}
		}
		nested, err := locks.AcquireAll(all.Context(), []string{"a", "e", "f"}, leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if n := d.tries.Load(); n != 2 || mine.Calls(locktest.OpTry) != 6 {
			t.Errorf("%d calls for %d tries", n, mine.Calls(locktest.OpTry))
		}
		for _, ls := range []*leasehold.Leases{nested, all} {
			if err := ls.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if n := d.releases.Load(); n != 2 || mine.Calls(locktest.OpRelease) != 6 {
			t.Errorf("%d calls for %d releases", n, mine.Calls(locktest.OpRelease))
		}
		wantFree(t, other, "a", "b", "c", "d", "e", "f")
	})
}

// Among what is released together, the first name is the last: who gets it finds the others free.
// One that waits in this process gets it only after the others are free.
func TestFirstOfAllIsReleasedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		names := &inOrder{Driver: server.Connect()}
		locks := newLocker(t, names, nil)
		all := acquireAll(t, locks, []string{"a", "b", "c"})
		if all.Release(t.Context()); names.released[len(names.released)-1] != "a" {
			t.Errorf("released in the order %q", names.released)
		}
		all = acquireAll(t, locks, []string{"a", "b"})
		var next *leasehold.Leases
		go func() { next, _ = locks.AcquireAll(context.Background(), []string{"a", "b"}) }()
		synctest.Wait()
		before := len(names.released)
		all.Release(t.Context())
		synctest.Wait()
		if next == nil || names.released[before] != "b" {
			t.Errorf("released in the order %q, and another holds them: %v", names.released, next != nil)
		}
		next.Release(t.Context())
		wantFree(t, locks, "a", "b", "c")
	})
}

// inOrder notes the names in the order of their releases.
type inOrder struct {
	*memory.Driver
	mu       sync.Mutex
	released []string // guarded by mu
}

func (d *inOrder) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return inOrderClaim{c, d, req.Resource}, err
}

type inOrderClaim struct {
	driver.Claim
	d    *inOrder
	name string
}

func (c inOrderClaim) Release(ctx context.Context, how driver.End) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.released = append(c.d.released, c.name)
	return c.Claim.Release(ctx, how)
}

func TestAllAreHeldOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, other := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
		before := acquire(t, locks, "b")
		before.Release(t.Context())
		all := acquireAll(t, locks, []string{"c", "a", "b", "a"})
		if got := all.Names(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("names %q", got)
		}
		for _, name := range all.Names() {
			_, err := other.TryAcquire(t.Context(), name)
			wantErr(t, err, leasehold.ErrBusy)
			if le := all.Lease(name); le.Name() != name || le.Deadline().Before(all.Deadline()) {
				t.Errorf("lease of %s is of %s, or ends before the first", name, le.Name())
			}
		}
		if all.Lease("b").Token() <= before.Token() || all.Lease("d") != nil {
			t.Errorf("token %d after %d, or a lease of what was not asked for", all.Lease("b").Token(), before.Token())
		}
		time.Sleep(time.Minute) // renewed
		if err := all.Context().Err(); err != nil {
			t.Errorf("ended: %v", context.Cause(all.Context()))
		}
		if err := all.Release(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, context.Cause(all.Context()), leasehold.ErrReleased)
		wantErr(t, all.Release(t.Context()), leasehold.ErrReleased)
		wantFree(t, other, "a", "b", "c")
	})
}

func TestAllChecksEverythingBeforeItAsks(t *testing.T) {
	mine := newFaulty(t, memory.NewServer())
	locks := newLocker(t, mine, nil)
	for _, c := range []struct {
		names []string
		opts  []leasehold.Option
		want  error
	}{
		{nil, nil, leasehold.ErrInvalidName},
		{[]string{"a", ""}, nil, leasehold.ErrInvalidName},
		{[]string{"a", "b\n"}, nil, leasehold.ErrInvalidName},
		{[]string{"a"}, []leasehold.Option{leasehold.TTL(-1)}, leasehold.ErrInvalidOption},
	} {
		all, err := locks.AcquireAll(t.Context(), c.names, c.opts...)
		wantErr(t, err, c.want)
		if all != nil {
			t.Error("leases beside an error")
		}
	}
	if n := mine.Calls(locktest.OpTry); n > 0 {
		t.Errorf("%d calls to the engine", n)
	}
}

// Everything that the joint context holds counts as held by it.
func TestAllAreHeldByTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		outer := acquire(t, locks, "o")
		all, err := locks.AcquireAll(outer.Context(), []string{"a", "b", "c"})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"o", "a", "b", "c"} {
			_, err := locks.Acquire(all.Context(), name)
			wantErr(t, err, leasehold.ErrDeadlock)
		}
		_, err = locks.AcquireAll(all.Context(), []string{"d", "b"})
		wantErr(t, err, leasehold.ErrDeadlock)
		wantFree(t, locks, "d")
		nested, err := locks.AcquireAll(all.Context(), []string{"b", "c"}, leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if nested.Lease("b").Token() != all.Lease("b").Token() {
			t.Error("a nested lease has another token")
		}
		// Several that fail leave alone what is held around them, AtLeast included.
		kept, busy := acquire(t, locks, "k", leasehold.AtLeast(time.Hour)), acquire(t, locks, "z")
		_, err = locks.AcquireAll(kept.Context(), []string{"k", "z"}, leasehold.Reentrant(), leasehold.Wait(0))
		wantErr(t, err, leasehold.ErrBusy)
		kept.Release(t.Context())
		busy.Release(t.Context())
		_, err = locks.TryAcquire(t.Context(), "k")
		wantErr(t, err, leasehold.ErrBusy)
		for _, release := range []func(context.Context) error{nested.Release, all.Release, outer.Release} {
			if err := release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		wantFree(t, locks, "o", "a", "b", "c")
	})
}

// slowTries is an engine whose tries take about a second.
type slowTries struct{ driver.Driver }

func (d slowTries) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return slowTriesClaim{c}, err
}

type slowTriesClaim struct{ driver.Claim }

func (c slowTriesClaim) Try(ctx context.Context) (driver.Grant, error) {
	time.Sleep(time.Second - rand.N(time.Millisecond))
	return c.Claim.Try(ctx)
}

// Ten free names cost one round trip, ten with one busy among them two more.
func TestAllCostAsManyRoundTripsAsTheyMust(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		locks, other := newLocker(t, way(slowTries{server.Connect()}), nil), newLocker(t, server.Connect(), nil)
		names := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
		start := time.Now()
		all := acquireAll(t, locks, names)
		wantDuration(t, "free", time.Since(start), 999*time.Millisecond, time.Second)
		all.Release(t.Context())

		busy := acquire(t, other, "4")
		time.AfterFunc(1500*time.Millisecond, func() { busy.Release(context.Background()) })
		start = time.Now()
		all = acquireAll(t, locks, names)
		wantDuration(t, "one was busy", time.Since(start), 2997*time.Millisecond, 3*time.Second)
		all.Release(t.Context())
	})
}

// Grants that come too late cost one more round trip, however many there are.
func TestAllThatAreLateCostOneMoreRoundTrip(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		names := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
		mine := newFaulty(t, memory.NewServer())
		locks := newLocker(t, way(mine), &leasehold.Options{TTL: time.Second})
		late := locktest.SlowReply(999 * time.Millisecond)
		mine.Next(locktest.OpTry, slices.Repeat([]locktest.Fault{late}, len(names))...)
		mine.Always(locktest.OpTry, locktest.SlowReply(300*time.Millisecond))
		start := time.Now()
		all := acquireAll(t, locks, names)
		wantDuration(t, "acquired", time.Since(start), 1299*time.Millisecond, 1300*time.Millisecond)
		all.Release(t.Context())
	})
}

// slowOf is an engine whose calls for one name take that long.
type slowOf struct {
	driver.Driver
	name  string
	takes time.Duration
}

func (d slowOf) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	if req.Resource == d.name {
		c = slowOfClaim{c, d.takes}
	}
	return c, err
}

type slowOfClaim struct {
	driver.Claim
	takes time.Duration
}

func (c slowOfClaim) Try(ctx context.Context) (driver.Grant, error) {
	if err := pause.For(ctx, c.takes); err != nil {
		return driver.Grant{}, err
	}
	return c.Claim.Try(ctx)
}

func (c slowOfClaim) Release(ctx context.Context, how driver.End) error {
	if err := pause.For(ctx, c.takes); err != nil {
		return err
	}
	return c.Claim.Release(ctx, how)
}

// An answer that a long lease has time for is not cut short by a lease beside it that is shorter, nor is that one lost
// meanwhile.
func TestAllHaveTheirOwnTime(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		locks := newLocker(t, way(slowOf{server.Connect(), "long", time.Second}), nil)
		for _, wait := range []time.Duration{0, time.Minute} {
			all, err := locks.AcquireAll(t.Context(), []string{"long", "short", "a"},
				leasehold.Wait(wait), leasehold.For("short", leasehold.TTL(300*time.Millisecond)), leasehold.For("a", leasehold.TTL(2*time.Second)))
			if err != nil {
				t.Fatal(err)
			}
			if err := all.Context().Err(); err != nil {
				t.Error(context.Cause(all.Context()))
			}
			wantErr(t, all.Release(t.Context()), nil)
		}
		wantFree(t, newLocker(t, server.Connect(), nil), "a", "long", "short")
	})
}

// While the others are released, which may take longer than the first lease's TTL, that one is
// renewed. So it is not lost meanwhile, and AtLeast keeps its resource.
func TestTheFirstOfAllIsHeldUntilTheOthersAreReleased(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(driver.Driver) driver.Driver) {
		server := memory.NewServer()
		locks := newLocker(t, way(slowOf{server.Connect(), "long", time.Second}), nil)
		all := acquireAll(t, locks, []string{"long"}, leasehold.For("a", leasehold.TTL(300*time.Millisecond), leasehold.AtLeast(time.Hour)))
		wantErr(t, all.Release(t.Context()), nil)
		_, err := newLocker(t, server.Connect(), nil).TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrBusy)
	})
}
