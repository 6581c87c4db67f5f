// Package recall_test measures what Options.Keep, recalls and a preferred leader cost and save: each row with and
// without, in turns. Lockers of different processes are stood in for by Lockers with a driver each.
package recall_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

var page = contest.Engine{Name: "Recall", Rounds: "the median of ten pairs, in turns; the spread is of their ratios"}

func TestMain(m *testing.M) { page.Main(m) }

const (
	pairs = 10
	lasts = time.Second // of one half of a pair
	keep  = time.Second
	// localTurn is what the goals of the issue assume for a turn inside the process.
	localTurn = 1700 * time.Nanosecond
)

var engines = []struct {
	name  string
	start func(b *testing.B) (url string)
}{
	{"Redis", func(b *testing.B) string { return "redis://" + servers.StartRedis(b).Addr() + "/0" }},
	{"etcd", func(b *testing.B) string { return "etcd://" + servers.StartEtcd(b, servers.EtcdCurrent).Addr() }},
	{"PostgreSQL", func(b *testing.B) string { return servers.StartPostgres(b, "max_connections=200").URL() }},
}

// A bench measures on one store.
type bench struct {
	*testing.B
	engine, url string
}

// BenchmarkRecall measures each engine.
func BenchmarkRecall(b *testing.B) {
	again := contest.NewTable("One goroutine locks one name again and again", "engine", "Keep off", "Keep on", "times", "spread", "a grant anew", "of what that allows")
	own := contest.NewTable("64 goroutines, own names", "engine", "Keep off", "Keep on", "times", "spread")
	turn := contest.NewTable("Another process wants a kept name", "engine", "gap, p50", "gap, p99", "kept, p50", "kept, p99")
	shared := contest.NewTable("8 drivers of 4 goroutines each, one name: turns between drivers", "engine", "Keep off", "Keep on", "times", "spread", "slowest beside the mean, off", "on")
	recalls := contest.NewTable("From the waiter's call having returned to Wanted elsewhere", "engine", "p50", "p99", "round trip")
	leaders := contest.NewTable("A planned change of leader", "engine", "p50", "longest")
	for _, e := range engines {
		b.Run(e.name, func(b *testing.B) {
			r := bench{b, e.name, e.start(b)}
			contest.Run(b,
				contest.Part{Name: "again", Run: func(b *testing.B) { r.with(b).again(again) }},
				contest.Part{Name: "own", Run: func(b *testing.B) { r.with(b).own(own) }},
				contest.Part{Name: "turn", Run: func(b *testing.B) { r.with(b).turn(turn) }},
				contest.Part{Name: "shared", Run: func(b *testing.B) { r.with(b).shared(shared) }},
				contest.Part{Name: "recall", Run: func(b *testing.B) { r.with(b).recall(recalls) }},
				contest.Part{Name: "leader", Run: func(b *testing.B) { r.with(b).leader(leaders) }},
			)
		})
	}
}

func (r bench) with(b *testing.B) bench {
	r.B = b
	return r
}

// driver opens the store once more.
func (r bench) driver() driver.Driver {
	d, err := stores.Open(r.Context(), r.url)
	if err != nil {
		r.Fatal(err)
	}
	return d
}

// lockers returns so many, with a driver each, and what closes them.
func (r bench) lockers(n int, o leasehold.Options) (all []*leasehold.Locker, end func()) {
	var drivers []driver.Driver
	for range n {
		d := r.driver()
		l, err := leasehold.New(d, &o)
		if err != nil {
			r.Fatal(err)
		}
		all, drivers = append(all, l), append(drivers, d)
	}
	return all, func() {
		for i, l := range all {
			l.Close()
			drivers[i].Close()
		}
	}
}

// cycles locks and unlocks name until a time, and returns how often, and by how many grants.
func (r bench) cycles(l *leasehold.Locker, name string, until time.Time) (n, grants int) {
	for time.Now().Before(until) {
		lease, err := l.Acquire(r.Context(), name)
		if err == nil {
			err = lease.Release(r.Context())
		}
		if err != nil {
			r.Error(err)
			return n, grants
		}
		if n++; lease.Token()%driver.FenceStep == 0 {
			grants++
		}
	}
	return n, grants
}

// compared is what a row with and without Keep came to.
type compared struct {
	off, on float64 // a second
	times   float64
	spread  string
}

// compare runs a row with and without Keep, in turns.
func (r bench) compare(run func(o leasehold.Options) float64) compared {
	run(leasehold.Options{Keep: keep}) // warms up
	var off, on, times []float64
	for range pairs {
		off, on = append(off, run(leasehold.Options{})), append(on, run(leasehold.Options{Keep: keep}))
		times = append(times, on[len(on)-1]/off[len(off)-1])
	}
	return compared{contest.Median(off), contest.Median(on), contest.Median(times), fmt.Sprintf("%.2f to %.2f", slices.Min(times), slices.Max(times))}
}

// again is one goroutine with one name.
func (r bench) again(t *contest.Table) {
	c := r.compare(func(o leasehold.Options) float64 {
		l, end := r.lockers(1, o)
		defer end()
		n, _ := r.cycles(l[0], "again", time.Now().Add(lasts))
		return float64(n) / lasts.Seconds()
	})
	grant := time.Duration(float64(time.Second) / c.off)
	allowed := 1023 / (1022*localTurn + grant).Seconds()
	t.Row(r.engine, c.off, c.on, c.times, c.spread, grant, c.on/allowed)
	contest.AtLeast(r.engine+": one goroutine, of what 1,022 local turns and one grant allow", c.on/allowed, 0.8)
}

// own is 64 goroutines with a name each.
func (r bench) own(t *contest.Table) {
	c := r.compare(func(o leasehold.Options) float64 {
		all, _ := r.crowd(o, 1, 64, func(g int) string { return fmt.Sprint("own/", g) })
		return float64(all[0]) / lasts.Seconds()
	})
	t.Row(r.engine, c.off, c.on, c.times, c.spread)
	if r.engine == "Redis" {
		contest.AtLeast(r.engine+": cycles a second of 64 goroutines with own names", c.on, 500_000)
	}
}

// crowd has so many goroutines of each Locker lock their names, and returns how often each Locker did, and how many
// grants there were.
func (r bench) crowd(o leasehold.Options, lockers, goroutines int, name func(g int) string) (served []int, grants int) {
	all, end := r.lockers(lockers, o)
	defer end()
	served = make([]int, lockers)
	for _, l := range all { // a connection that is opened first would serve its driver first
		r.cycle(l, name(0))
	}
	until := time.Now().Add(lasts)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, l := range all {
		for g := range goroutines {
			wg.Go(func() {
				n, turns := r.cycles(l, name(g), until)
				mu.Lock()
				defer mu.Unlock()
				served[i] += n
				grants += turns
			})
		}
	}
	wg.Wait()
	return served, grants
}

// turn is how long another process waits for what one keeps, beside the gap between two that keep nothing.
func (r bench) turn(t *contest.Table) {
	plain, end := r.lockers(2, leasehold.Options{})
	defer end()
	keepers, end := r.lockers(1, leasehold.Options{Keep: keep})
	defer end()
	var gaps, waits []time.Duration
	for range 30 * pairs {
		gaps = append(gaps, r.gap(plain[0], plain[1]))
		r.cycle(keepers[0], "turn")
		waits = append(waits, r.cycle(plain[1], "turn"))
	}
	p := func(all []time.Duration, n int) time.Duration { return contest.Percentile(all, n) }
	t.Row(r.engine, p(gaps, 50), p(gaps, 99), p(waits, 50), p(waits, 99))
	contest.AtMost(r.engine+": wait for what is kept, p50, times the gap", ratio(p(waits, 50), p(gaps, 50)), 2.5)
	contest.AtMost(r.engine+": wait for what is kept, p99, times the gap", ratio(p(waits, 99), p(gaps, 99)), 5)
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// cycle locks and unlocks name once, and returns how long it took to lock it.
func (r bench) cycle(l *leasehold.Locker, name string) (took time.Duration) {
	start := time.Now()
	lease, err := l.Acquire(r.Context(), name)
	took = time.Since(start)
	if err == nil {
		err = lease.Release(r.Context())
	}
	if err != nil {
		r.Fatal(err)
	}
	return took
}

// gap is the time from the call that releases to the return of the waiter.
func (r bench) gap(holder, waiter *leasehold.Locker) time.Duration {
	lease, err := holder.Acquire(r.Context(), "turn")
	if err != nil {
		r.Fatal(err)
	}
	returned := make(chan time.Time)
	go func() {
		next, err := waiter.Acquire(r.Context(), "turn")
		now := time.Now()
		if err == nil {
			err = next.Release(r.Context())
		}
		if err != nil {
			r.Error(err)
		}
		returned <- now
	}()
	for { // until it waits
		state, err := holder.Inspect(r.Context(), "turn")
		if err != nil {
			r.Fatal(err)
		}
		if len(state.Waiters) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	if err := lease.Release(r.Context()); err != nil {
		r.Fatal(err)
	}
	return (<-returned).Sub(start)
}

// shared is one name that many want: how often it goes from one driver to another.
func (r bench) shared(t *contest.Table) {
	const drivers, goroutines = 8, 4
	fair := make(map[bool][]float64) // by Keep
	c := r.compare(func(o leasehold.Options) float64 {
		served, grants := r.crowd(o, drivers, goroutines, func(int) string { return "shared" })
		all := 0
		for _, n := range served {
			all += n
		}
		keeps := o.Keep > 0
		fair[keeps] = append(fair[keeps], float64(slices.Min(served)*drivers)/float64(max(1, all)))
		return float64(grants) / lasts.Seconds()
	})
	off, on := contest.Median(fair[false]), contest.Median(fair[true])
	t.Row(r.engine, c.off, c.on, c.times, c.spread, off, on)
	contest.AtLeast(r.engine+": turns between 8 drivers, Keep on, times off", c.times, 0.9)
	contest.AtLeast(r.engine+": slowest driver beside the mean, Keep on", on, 0.9)
}

// recall is the time from the waiter's own call having returned to Wanted in another driver.
func (r bench) recall(t *contest.Table) {
	holders, waiters := r.driver(), r.driver()
	defer holders.Close()
	defer waiters.Close()
	var times, trips []time.Duration
	for i := range 20 * pairs {
		wanted := make(chan time.Time, 8)
		req := driver.Request{Resource: "recall", Owner: fmt.Sprintf("%032d", 2*i), TTL: contest.TTL, Wanted: func() { wanted <- time.Now() }}
		other := driver.Request{Resource: "recall", Owner: fmt.Sprintf("%032d", 2*i+1), TTL: contest.TTL, Queue: true}
		holder, err := holders.Claim(req)
		if err == nil {
			_, err = holder.Try(r.Context())
		}
		if err != nil {
			r.Fatal(err)
		}
		start := time.Now()
		if _, err := holder.Renew(r.Context(), req.TTL); err != nil {
			r.Fatal(err)
		}
		trips = append(trips, time.Since(start))
		waiter, err := waiters.Claim(other)
		if err != nil {
			r.Fatal(err)
		}
		if _, err := waiter.Try(r.Context()); err == nil || !strings.Contains(err.Error(), driver.ErrBusy.Error()) {
			r.Fatalf("granted or failed: %v", err)
		}
		returned := time.Now()
		select {
		case at := <-wanted:
			times = append(times, max(0, at.Sub(returned)))
		case <-time.After(10 * time.Second):
			r.Fatal("not recalled")
		}
		for _, c := range []driver.Claim{waiter, holder} {
			if err := c.Release(r.Context(), driver.End{}); err != nil {
				r.Fatal(err)
			}
		}
	}
	trip := contest.Median(trips)
	t.Row(r.engine, contest.Median(times), contest.Percentile(times, 99), trip)
	contest.AtMost(r.engine+": recall, p50, times a round trip", ratio(contest.Median(times), trip), 1)
}

// leader is the time until a candidate of higher preference leads.
func (r bench) leader(t *contest.Table) {
	var times []time.Duration
	for range 2 * pairs {
		ctx, cancel := context.WithCancel(r.Context())
		began := make(chan time.Time, 4)
		var leaders sync.WaitGroup
		candidates, end := r.lockers(2, leasehold.Options{})
		lead := func(preference int) {
			leaders.Go(func() {
				candidates[preference-1].Lead(ctx, "leader", func(ctx context.Context) error {
					began <- time.Now()
					<-ctx.Done()
					return nil
				}, leasehold.Preference(preference))
			})
		}
		lead(1)
		<-began
		start := time.Now()
		lead(2)
		times = append(times, (<-began).Sub(start))
		cancel()
		leaders.Wait()
		end()
	}
	t.Row(r.engine, contest.Median(times), slices.Max(times))
	contest.AtMost(r.engine+": planned change of leader, p50, ms", float64(contest.Median(times))/1e6, 50)
}
