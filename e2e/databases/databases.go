// Package databases contains the tests that all database servers share.
package databases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// margin is how late a busy machine may be.
const margin = 15 * time.Second

// Locker returns a Locker that is closed when the test ends.
func Locker(t testing.TB, d driver.Driver, opts leasehold.Options) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Lockers returns n Lockers with short leases, each on a driver of its own.
func Lockers(t testing.TB, n int, open func() Store) []*leasehold.Locker {
	t.Helper()
	var all []*leasehold.Locker
	for range n {
		all = append(all, Locker(t, open(), leasehold.Options{TTL: 3 * time.Second, HandOver: -1}))
	}
	return all
}

// Storm makes lockers contend for names while it calls disturb again and again. It fails if two
// hold at once, or if a call ends with an error that tolerate does not accept. It lasts for span,
// or on a busy machine until there were enough leases. Afterwards all names must be free.
func Storm(t *testing.T, lockers []*leasehold.Locker, span, every time.Duration, disturb func(), tolerate func(error) bool) {
	t.Helper()
	const enough, longest = 30, 3 * time.Minute
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var history locktest.History
	var all sync.WaitGroup
	for i, l := range lockers {
		for j := range 4 {
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					takeTurn(ctx, t, l, fmt.Sprint("storm-", (i+j+n)%3), j == 3, &history, tolerate)
				}
			})
		}
	}
	start := time.Now()
	for time.Since(start) < span || history.Len() < enough && time.Since(start) < longest {
		time.Sleep(every)
		disturb()
	}
	stop()
	all.Wait()
	if err := history.Check(); err != nil {
		t.Error(err)
	}
	t.Logf("%d leases in %v", history.Len(), time.Since(start))
	if history.Len() < enough {
		t.Errorf("only %d leases in %v", history.Len(), time.Since(start))
	}
	for i := range 3 {
		lease, err := lockers[0].Acquire(t.Context(), fmt.Sprint("storm-", i), leasehold.Wait(4*margin))
		if err != nil {
			t.Errorf("after the storm: %v", err)
			continue
		}
		if err := release(lease); err != nil {
			t.Errorf("after the storm: %v", err)
		}
	}
}

// release is lease.Release, but tolerates that a busy machine has left the lease to its deadline.
func release(lease *leasehold.Lease) error {
	deadline := lease.Deadline()
	err := lease.Release(context.Background())
	if errors.Is(err, leasehold.ErrLost) && time.Now().After(deadline) {
		return nil
	}
	return err
}

func takeTurn(ctx context.Context, t *testing.T, l *leasehold.Locker, name string, share bool, history *locktest.History, tolerate func(error) bool) {
	var opts []leasehold.Option
	if share {
		opts = append(opts, leasehold.Limit(2))
	}
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		if ctx.Err() == nil && !tolerate(err) {
			t.Errorf("Acquire: %v", err)
		}
		return
	}
	if !share {
		done := history.Believe(lease)
		time.Sleep(time.Millisecond)
		done()
	}
	if err := release(lease); err != nil && !tolerate(err) {
		t.Errorf("Release: %v", err)
	}
}

// Nothing disturbs nothing.
func Nothing() {}

// None tolerates no error.
func None(error) bool { return false }

// Unknown tolerates errors that mean an unknown outcome.
func Unknown(err error) bool {
	return !errors.Is(err, leasehold.ErrLost) && !errors.Is(err, leasehold.ErrBusy)
}

// OneConnectionIsEnough makes many goroutines contend over a pool of one connection.
func OneConnectionIsEnough(t *testing.T, d Store) {
	d.DB.SetMaxOpenConns(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*margin)
	defer cancel()
	l := Locker(t, d, leasehold.Options{HandOver: -1})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 5 {
				var opts []leasehold.Option
				if i%4 == 3 {
					opts = append(opts, leasehold.Shared())
				}
				for {
					err := l.Do(ctx, "one connection", func(context.Context) error { return nil }, opts...)
					if err == nil {
						break
					}
					if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil { // otherwise a busy machine took too long for one call
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// WaitsCheaply makes two processes wait for a resource that is held for a while. Each may run at
// most most statements.
func WaitsCheaply(t *testing.T, open func() driver.Driver, count func() int, most int) {
	const span = 4 * time.Second
	holder, err := Locker(t, open(), leasehold.Options{TTL: time.Minute}).Acquire(t.Context(), "cheap")
	if err != nil {
		t.Fatal(err)
	}
	drivers := []driver.Driver{open(), open()}
	var waiting sync.WaitGroup
	for _, d := range drivers {
		l := Locker(t, d, leasehold.Options{TTL: time.Minute})
		if lease, err := l.Acquire(t.Context(), "warm"); err != nil || lease.Release(t.Context()) != nil {
			t.Fatal(err)
		}
		waiting.Go(func() {
			lease, err := l.Acquire(t.Context(), "cheap", leasehold.Wait(span+4*margin))
			if err != nil {
				t.Error(err)
				return
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	before, start := count(), time.Now()
	time.Sleep(span)
	each := float64(count()-before) / time.Since(start).Seconds() / float64(len(drivers))
	t.Logf("%.1f statements a second for each waiting process", each)
	if each > float64(most) {
		t.Errorf("%.1f statements a second for each waiting process; want at most %d", each, most)
	}
	if err := holder.Release(t.Context()); err != nil {
		t.Error(err)
	}
	waiting.Wait()
}

// RenewsInBatches holds leases until all have been renewed, except one that was evicted. It
// compares the number of statements with the number of renewals.
func RenewsInBatches(t *testing.T, d driver.Driver, count func() int) {
	const leases, ttl, batch = 1000, 20 * time.Second, 10
	var renewals atomic.Int64
	l := Locker(t, d, leasehold.Options{TTL: ttl, Trace: locktest.On(leasehold.StepRenewed, func(leasehold.Event) { renewals.Add(1) })})
	held := make([]*leasehold.Lease, leases)
	for i := range held {
		var opts []leasehold.Option
		if i%250 == 7 {
			opts = append(opts, leasehold.Shared()) // these are not renewed in a batch
		}
		var err error
		if held[i], err = l.Acquire(t.Context(), fmt.Sprint("lease/ü/", i), opts...); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.(driver.Operator).Evict(t.Context(), held[77].Name(), held[77].Owner(), "a test"); err != nil {
		t.Fatal(err)
	}
	start, before, renewedBefore := time.Now(), count(), renewals.Load()
	until(t, "all are renewed", 4*ttl, func() bool {
		return !slices.ContainsFunc(held, func(lease *leasehold.Lease) bool {
			return lease.Context().Err() == nil && lease.Deadline().Sub(start) < ttl*5/4
		})
	})
	ran, renewed := count()-before, int(renewals.Load()-renewedBefore)
	for i, lease := range held {
		if live := lease.Context().Err() == nil; live != (i != 77) {
			t.Errorf("lease %d: live %v: %v", i, live, context.Cause(lease.Context()))
		}
	}
	t.Logf("%d statements for %d renewals in %v", ran, renewed, time.Since(start))
	if ran*batch > renewed {
		t.Errorf("%d statements for %d renewals; want at most one for %d", ran, renewed, batch)
	}
	for i, lease := range held {
		if err := lease.Release(t.Context()); (err == nil) != (i != 77) {
			t.Errorf("release of lease %d: %v", i, err)
		}
	}
}

// GuardsWrites checks that a write and the check of its token are atomic.
func GuardsWrites(t *testing.T, d Store) {
	db, l := d.DB, Locker(t, d, leasehold.Options{HandOver: -1})
	old, err := l.Acquire(t.Context(), "stock/é")
	if err != nil {
		t.Fatal(err)
	}
	write := func(lease *leasehold.Lease, commit bool) error {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() // does nothing after Commit
		if err := d.CheckFence(t.Context(), tx, lease); err != nil || !commit {
			return err
		}
		return tx.Commit()
	}
	for range 2 {
		if err := write(old, true); err != nil {
			t.Errorf("a write of the holder: %v", err)
		}
	}
	if err := old.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	present, err := l.Acquire(t.Context(), "stock/é")
	if err != nil {
		t.Fatal(err)
	}
	if err := write(present, false); err != nil { // rolled back, so the guard has seen nothing
		t.Errorf("a check of the present holder: %v", err)
	}
	if err := write(old, true); err != nil {
		t.Errorf("a write before the present holder's: %v", err)
	}
	if err := write(present, true); err != nil {
		t.Errorf("a write of the present holder: %v", err)
	}
	for range 2 {
		if err := write(old, true); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a write of the former holder: %v; want ErrStale", err)
		}
	}
	// While one transaction holds the guard, another waits for its outcome.
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := d.CheckFence(t.Context(), tx, present); err != nil {
		t.Fatal(err)
	}
	if err := present.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next, err := l.Acquire(t.Context(), "stock/é")
	if err != nil {
		t.Fatal(err)
	}
	passed := make(chan error, 1)
	go func() { passed <- write(next, true) }()
	select {
	case err := <-passed:
		t.Errorf("the next holder did not wait for a transaction that is open: %v", err)
	case <-time.After(time.Second):
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-passed; err != nil {
		t.Errorf("a write of the next holder: %v", err)
	}
	guardsEpochs(t, d, next)
}

// guardsEpochs checks that a lease of a newer engine excludes those of the former one.
func guardsEpochs(t *testing.T, d Store, former *leasehold.Lease) {
	t.Helper()
	write := func(lease fence.Lease) error {
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() // does nothing after Commit
		return errors.Join(d.CheckFence(t.Context(), tx, lease), tx.Commit())
	}
	small, smaller := fence.LeaseOf(former.Name(), 8192, "b"), fence.LeaseOf(former.Name(), 4096, "a")
	for i, c := range []struct {
		lease  fence.Lease
		passes bool
	}{
		{small, false}, {former, true}, {fence.InEpoch(small, 1), true}, {fence.InEpoch(small, 1), true}, {former, false}, {small, false},
		{fence.InEpoch(smaller, 1), false}, {fence.InEpoch(fence.LeaseOf(former.Name(), 8192, "a"), 1), false}, {fence.InEpoch(smaller, 2), true},
	} {
		if err := write(c.lease); (err == nil) != c.passes || err != nil && !errors.Is(err, fence.ErrStale) {
			t.Errorf("%d: a write with token %d: %v", i, c.lease.Token(), err)
		}
	}
}

// LateAttemptChangesNothing delays an attempt to acquire until its caller has given up, and its
// Release has returned. Then the attempt arrives. The first connection of d uses proxy, later ones
// do not. count returns how many statements have arrived.
func LateAttemptChangesNothing(t *testing.T, d driver.Driver, proxy *servers.Proxy, count func() int) {
	warm := claimOf(t, d, driver.Request{Resource: "warm"})
	mustTry(t, warm)
	mustRelease(t, warm)
	proxy.Dark()
	c := claimOf(t, d, driver.Request{Resource: "late"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Try(ctx); err == nil || errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try over a dark link: %v; want its outcome to be unknown", err)
	}
	if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release: %v; want ErrLost, as nothing had arrived", err)
	}
	before := count()
	proxy.Pass()
	until(t, "the late attempt arrives", margin, func() bool { return count() > before })
	state, err := d.(driver.Operator).Inspect(t.Context(), "late")
	if err != nil || len(state.Holders) > 0 {
		t.Errorf("after a late attempt: %+v, %v; want no holder", state, err)
	}
	if err := Try(t, d, "late"); err != nil {
		t.Errorf("Try by another: %v", err)
	}
}
