// Package several_test measures what is built from single leases, AcquireAll and Lead, on
// every engine.
package several_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
)

func TestMain(m *testing.M) {
	if part := os.Getenv(childEnv); part != "" {
		if err := play(part); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	(&contest.Engine{Name: "several leases"}).Main(m)
}

// BenchmarkSeveral prints its tables at the end; the times per operation that go test prints
// mean nothing here.
func BenchmarkSeveral(b *testing.B) {
	all := contest.NewTable("Ten names: AcquireAll, and ten Acquires made at once", "engine", "AcquireAll", "ten at once", "ratio")
	lead := contest.NewTable(fmt.Sprintf("Lead with a TTL of %v: from the leader's end to the next term, in another process", ttl),
		"engine", "kill -9 after a renewal, p50", "worst", "resignation, p50", "worst", "plain hand-over, p50", "a round trip")
	var parts []contest.Part
	for _, e := range engines {
		parts = append(parts, contest.Part{Name: e.name, Run: func(b *testing.B) {
			addr := e.start(b)
			locks := newLocker(b, e, addr)
			acquireAll(b, e, locks, all)
			failover(b, e, addr, locks, lead)
		}})
	}
	contest.Run(b, parts...)
}

func newLocker(b *testing.B, e engine, addr string) *leasehold.Locker {
	b.Helper()
	d, err := e.open(addr)
	if err != nil {
		b.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { locks.Close(); d.Close() })
	return locks
}

// acquireAll takes turns with ten Acquires that are made at once.
func acquireAll(b *testing.B, e engine, locks *leasehold.Locker, table *contest.Table) {
	rounds := 100
	if testing.Short() {
		rounds = 5
	}
	names := make([]string, 10)
	for i := range names {
		names[i] = fmt.Sprint("all/", i)
	}
	var together, singly []time.Duration
	for i := range rounds + rounds/10 { // the first open connections
		t, s := timeAll(b, locks, names), timeEach(b, locks, names)
		if i >= rounds/10 {
			together, singly = append(together, t), append(singly, s)
		}
	}
	all, each := contest.Median(together), contest.Median(singly)
	ratio := all.Seconds() / each.Seconds()
	table.Row(e.name, all, each, ratio)
	contest.AtMost(e.name+": AcquireAll of ten / ten Acquires at once", ratio, 1.5)
}

func timeAll(b *testing.B, locks *leasehold.Locker, names []string) time.Duration {
	b.Helper()
	start := time.Now()
	all, err := locks.AcquireAll(context.Background(), names)
	took := time.Since(start)
	if err == nil {
		err = all.Release(context.Background())
	}
	if err != nil {
		b.Fatal(err)
	}
	return took
}

func timeEach(b *testing.B, locks *leasehold.Locker, names []string) time.Duration {
	b.Helper()
	leases := make([]*leasehold.Lease, len(names))
	start := time.Now()
	var calls sync.WaitGroup
	for i, name := range names {
		calls.Go(func() {
			var err error
			if leases[i], err = locks.Acquire(context.Background(), name); err != nil {
				b.Error(err)
			}
		})
	}
	calls.Wait()
	took := time.Since(start)
	for _, lease := range leases {
		calls.Go(func() { lease.Release(context.Background()) })
	}
	calls.Wait()
	return took
}

// failover measures how soon this process leads after the leader, another, is gone.
func failover(b *testing.B, e engine, addr string, locks *leasehold.Locker, table *contest.Table) {
	kills, resignations := 5, 20
	if testing.Short() {
		kills, resignations = 1, 3
	}
	other := startChild(b, e, addr)
	trip := roundTrip(b, locks)
	var handedOver, resigned, killed []time.Duration
	for i := range resignations {
		name := fmt.Sprint("lead/", i)
		handedOver = append(handedOver, afterEnd(b, other, "hold", "plain/"+name, locks, plain))
		resigned = append(resigned, afterEnd(b, other, "lead", name, locks, leading))
	}
	for i := range kills {
		killed = append(killed, afterKill(b, other, fmt.Sprint("kill/", i), locks))
		other = startChild(b, e, addr)
	}
	table.Row(e.name, contest.Median(killed), contest.Percentile(killed, 100), contest.Median(resigned), contest.Percentile(resigned, 100),
		contest.Median(handedOver), trip)
	late := contest.Percentile(killed, 100) - ttl
	contest.AtMost(e.name+": worst failover beyond the TTL, in ms (two round trips and the machine)", late.Seconds()*1000, 2*trip.Seconds()*1000)
	contest.AtMost(e.name+": resignation / plain hand-over", contest.Median(resigned).Seconds()/contest.Median(handedOver).Seconds(), 2)
}

// roundTrip is the time of a refusal, the cheapest call that asks the engine.
func roundTrip(b *testing.B, locks *leasehold.Locker) time.Duration {
	b.Helper()
	var all []time.Duration
	for range 50 {
		start := time.Now()
		lease, err := locks.TryAcquire(context.Background(), "trip")
		all = append(all, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
		lease.Release(context.Background())
	}
	return contest.Median(all)
}

// A claimant waits for name in the background, and says when it has it; the wait is over
// with ctx.
type claimant func(ctx context.Context, locks *leasehold.Locker, name string) (has <-chan time.Time, end func())

func plain(ctx context.Context, locks *leasehold.Locker, name string) (<-chan time.Time, func()) {
	has := make(chan time.Time, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		lease, err := locks.Acquire(ctx, name)
		has <- time.Now()
		if err == nil {
			lease.Release(ctx)
		}
	}()
	return has, func() { <-over }
}

func leading(ctx context.Context, locks *leasehold.Locker, name string) (<-chan time.Time, func()) {
	has := make(chan time.Time, 1)
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(over)
		_ = locks.Lead(ctx, name, func(term context.Context) error { // ends with ctx
			has <- time.Now()
			<-term.Done()
			return nil
		})
	}()
	return has, func() { cancel(); <-over }
}

// queued waits until this process waits at the engine, where that tells, else for as long
// as its first try takes.
func queued(b *testing.B, locks *leasehold.Locker, name string) {
	b.Helper()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if state, err := locks.Inspect(b.Context(), name); err == nil && len(state.Waiters) > 0 {
			return
		}
	}
}

// afterEnd is the time from the other process's release to our claim's grant.
func afterEnd(b *testing.B, other *child, do, name string, locks *leasehold.Locker, claim claimant) time.Duration {
	b.Helper()
	other.tell(do, name)
	other.hear("has")
	has, end := claim(b.Context(), locks, name)
	defer end()
	queued(b, locks, name)
	other.tell("end", name)
	gone := other.hear("gone")
	return (<-has).Sub(gone)
}

// afterKill is the time from a kill -9 of the leader, just after it has renewed its lease,
// to our term.
func afterKill(b *testing.B, other *child, name string, locks *leasehold.Locker) time.Duration {
	b.Helper()
	other.tell("lead", name)
	other.hear("has")
	has, end := leading(b.Context(), locks, name)
	defer end()
	queued(b, locks, name)
	renewed := other.hear("renewed")
	other.kill()
	return (<-has).Sub(renewed)
}
