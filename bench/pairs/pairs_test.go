// Package pairs_test compares this tree with a former one: both run the same rows in turns on one server. See
// scripts/bench-pairs.
package pairs_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/stores"
)

var (
	old   = flag.String("pairs.old", "", "compare with the test binary of the former tree")
	pairs = flag.Int("pairs.n", 10, "how many pairs")
	lasts = flag.Duration("pairs.lasts", time.Second, "how long each row of each run lasts")
	only  = flag.String("pairs.only", "", "rows that match, such as 'PostgreSQL, own'")
)

// These are set in a process that runs one row.
const sliceEnv, rowEnv = "LEASEHOLD_PAIRS_STORE", "LEASEHOLD_PAIRS_ROW"

// A row is what is measured until a time. It returns the time of each operation, of which the median is compared; or what
// one takes of the whole time, where many run at once.
type row struct {
	name string
	many bool
	run  func(open opener, until time.Time) []time.Duration
}

// An opener opens the store once more.
type opener func(opts *leasehold.Options) *leasehold.Locker

var rows = []row{
	{"alone", false, func(open opener, until time.Time) []time.Duration { return cycles(open(nil), "alone", until) }},
	{"own keys of 8", true, ownKeys(8)},
	{"own keys of 64", true, ownKeys(64)},
	{"gap", false, gap},
}

// inMemory are the rows of the core alone, on the memory engine.
var inMemory = []row{rows[0], {"turns of 1,000", true, turns}}

// noStore is opened as the memory engine.
const noStore = "memory:"

// cycles takes and releases a lock.
func cycles(locks *leasehold.Locker, name string, until time.Time) (times []time.Duration) {
	for start := time.Now(); start.Before(until); start = time.Now() {
		lease, err := locks.Acquire(context.Background(), name)
		if err == nil {
			err = lease.Release(context.Background())
		}
		if err != nil {
			panic(err)
		}
		times = append(times, time.Since(start))
	}
	return times
}

// ownKeys is cycles by so many goroutines, each on a lock of its own.
func ownKeys(goroutines int) func(open opener, until time.Time) []time.Duration {
	return func(open opener, until time.Time) (all []time.Duration) {
		locks := open(nil)
		var mu sync.Mutex
		var done sync.WaitGroup
		for g := range goroutines {
			done.Go(func() {
				times := cycles(locks, fmt.Sprint("own/", g), until)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, times...)
			})
		}
		done.Wait()
		return all
	}
}

// turns is cycles by 1,000 goroutines on one lock, which they hand to each other.
func turns(open opener, until time.Time) []time.Duration {
	locks := open(nil)
	all := make([][]time.Duration, 1000)
	var done sync.WaitGroup
	for g := range all {
		done.Go(func() { all[g] = cycles(locks, "turns", until) })
	}
	done.Wait()
	return slices.Concat(all...)
}

// gap is the time from the call that releases to the return of the waiter, in another Locker.
func gap(open opener, until time.Time) (times []time.Duration) {
	queued := make(chan struct{}, 1)
	opts := &leasehold.Options{Trace: func(_ context.Context, e leasehold.Event) {
		if e.Step == leasehold.StepQueued && !e.Local {
			select {
			case queued <- struct{}{}:
			default: // it is queued again
			}
		}
	}}
	lockers := [2]*leasehold.Locker{open(opts), open(opts)}
	held, err := lockers[0].Acquire(context.Background(), "gap")
	if err != nil {
		panic(err)
	}
	for turn := 1; time.Now().Before(until); turn++ {
		next := make(chan *leasehold.Lease)
		var returned time.Time
		go func() {
			lease, err := lockers[turn%2].Acquire(context.Background(), "gap")
			returned = time.Now()
			if err != nil {
				panic(err)
			}
			next <- lease
		}()
		<-queued
		time.Sleep(2 * time.Millisecond) // the holder works
		released := time.Now()
		if err := held.Release(context.Background()); err != nil {
			panic(err)
		}
		held = <-next
		times = append(times, returned.Sub(released))
	}
	if err := held.Release(context.Background()); err != nil {
		panic(err)
	}
	return times
}

// A result is what one run of a row comes to.
type result struct{ Time, CPU time.Duration }

// slice runs one row, in a process of its own.
func slice(r row, store string) (result, error) {
	open := func(opts *leasehold.Options) *leasehold.Locker {
		var d driver.Driver = memory.New()
		if store != noStore {
			opened, err := stores.Open(context.Background(), store)
			if err != nil {
				panic(err)
			}
			d = opened
		}
		locks, err := leasehold.New(d, opts)
		if err != nil {
			panic(err)
		}
		return locks
	}
	r.run(open, time.Now().Add(*lasts/4)) // opens connections, and has the processors awake
	before := used()
	times := r.run(open, time.Now().Add(*lasts))
	cpu := used() - before
	if len(times) == 0 {
		return result{}, fmt.Errorf("%s: nothing within %v", r.name, *lasts)
	}
	slices.Sort(times)
	got := result{times[len(times)/2], cpu / time.Duration(len(times))}
	if r.many {
		got.Time = *lasts / time.Duration(len(times))
	}
	return got, nil
}

// used is the processor time that this process has used.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestMain(m *testing.M) {
	flag.Parse()
	store := os.Getenv(sliceEnv)
	if store == "" {
		os.Exit(m.Run())
	}
	all := slices.Concat(rows, inMemory)
	i := slices.IndexFunc(all, func(r row) bool { return r.name == os.Getenv(rowEnv) })
	got, err := slice(all[i], store)
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		panic(err)
	}
}

// TestPairs prints the medians of the ratios new to old, with the least and the greatest, and how far the former tree's own
// runs are apart: its quartiles over its median. A ratio within that says nothing.
func TestPairs(t *testing.T) {
	if *old == "" {
		t.Skip("without -pairs.old there is nothing to compare with")
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "new to old, %d pairs\ttime\tleast\tmost\told's own\tCPU\tleast\tmost\told's own\n", *pairs)
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	both := func(store string) (was, is string) { return store, store }
	for _, store := range []struct {
		name  string
		rows  []row
		start func() (was, is string)
	}{
		{"memory", inMemory, func() (was, is string) { return both(noStore) }},
		{"Redis", rows, func() (was, is string) { return both("redis://" + servers.StartRedis(t).Addr()) }},
		// Tables may be of versions that the former tree refuses.
		{"PostgreSQL", rows, func() (was, is string) {
			url := servers.StartPostgres(t, "max_connections=500").URL()
			return with(url, "prefix", "old_"), with(url, "prefix", "new_")
		}},
		{"etcd", rows, func() (was, is string) {
			one := servers.Endpoints(servers.StartEtcdCluster(t, servers.EtcdCurrent, 1)...)[0]
			return both("etcd://" + strings.TrimPrefix(one, "http://"))
		}},
	} {
		unwanted := func(r row) bool { return !wanted.MatchString(store.name + ", " + r.name) }
		some := slices.DeleteFunc(slices.Clone(store.rows), unwanted)
		if len(some) == 0 {
			continue
		}
		formerly, now := store.start()
		for _, r := range some {
			var was, is []result
			for n := range *pairs {
				if n%2 == 1 { // each is the first one of half of the pairs
					is = append(is, run(t, os.Args[0], r, now))
				}
				was = append(was, run(t, *old, r, formerly))
				if n%2 == 0 {
					is = append(is, run(t, os.Args[0], r, now))
				}
			}
			fmt.Fprintf(table, "%s, %s\t%s\t%s\n", store.name, r.name,
				compared(was, is, func(r result) time.Duration { return r.Time }), compared(was, is, func(r result) time.Duration { return r.CPU }))
		}
	}
	table.Flush()
}

// with is the address of a store with an option.
func with(store, option, value string) string {
	u, err := url.Parse(store)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set(option, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func run(t *testing.T, binary string, r row, store string) (got result) {
	t.Helper()
	cmd := exec.Command(binary, fmt.Sprint("-pairs.lasts=", *lasts))
	cmd.Env, cmd.Stderr = append(os.Environ(), sliceEnv+"="+store, rowEnv+"="+r.name), os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", binary, r.name, err)
	}
	return got
}

// compared is the median, the least and the greatest ratio, and the spread of the former.
func compared(was, is []result, of func(result) time.Duration) string {
	var ratios, former []float64
	for i := range was {
		ratios = append(ratios, float64(of(is[i]))/float64(of(was[i])))
		former = append(former, float64(of(was[i])))
	}
	slices.Sort(ratios)
	slices.Sort(former)
	n := len(former)
	return fmt.Sprintf("%.2f\t%.2f\t%.2f\t%.2f to %.2f", ratios[n/2], ratios[0], ratios[n-1],
		former[n/4]/former[n/2], former[n-1-n/4]/former[n/2])
}
