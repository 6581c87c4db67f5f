// Package growth_test measures what a crowd costs that wants one name: from ten waiters to thousands, each in a Locker of
// its own, in twenty processes. It draws what it finds.
package growth_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/stores"
)

var page = contest.Engine{Name: "Growth", Rounds: "one round of each row"}

func TestMain(m *testing.M) { page.Main(m) }

const (
	processes = 20
	// patience bounds what a row may take, so that one that stalls does not stop the others.
	patience = 3 * time.Minute
	// idle is for how long a crowd is watched that waits.
	idle = 10 * time.Second
)

// BenchmarkGrowth measures each engine with crowds that grow.
func BenchmarkGrowth(b *testing.B) {
	waiters := crowd.Build(b, "github.com/leasehold-go/leasehold/e2e/crowd/testdata/waiters")
	peers := crowd.Build(b, "./testdata/peers")
	turns := contest.NewTable(fmt.Sprintf("Time per turn, %d processes", processes), "engine", "waiters", "all have places after", "a turn", "median", "longest", "beside 10")
	quiet := contest.NewTable(fmt.Sprintf("A crowd that waits, %v", idle), "engine", "waiters", "clients, cores", "store, cores", "writes a second")
	dead := contest.NewTable(fmt.Sprintf("Kill -9 of processes, leases of %v", crowd.TTL), "engine", "19 of 20 killed: the last is served after", "leader of 500 killed: the next after")
	for _, e := range engines {
		b.Run(e.name, func(b *testing.B) {
			contest.Run(b, contest.Part{Name: "crowds", Run: func(b *testing.B) {
				s := e.start(b)
				r := runner{TB: b, engine: e, store: s, waiters: waiters, others: peers}
				first := time.Duration(0)
				for _, n := range e.crowds {
					t, ok := r.turns(n, quiet)
					if !ok {
						turns.Row(e.name, n, t.placed, "not served", "", "", "")
						continue
					}
					first = cmp.Or(first, t.each)
					beside := float64(t.each) / float64(first)
					turns.Row(e.name, n, t.placed, t.each, t.median, t.longest, beside)
					if n == slices.Max(e.crowds) {
						contest.AtMost(fmt.Sprintf("%s: a turn with %d waiters, times that with %d", e.name, n, e.crowds[0]), beside, e.most)
					}
				}
				dead.Row(e.name, r.survivor(), r.leader())
				for _, peer := range e.peers {
					for _, n := range e.crowds[:min(3, len(e.crowds))] {
						r.peer(peer, n, turns, quiet)
					}
				}
			}})
		})
	}
}

// A runner measures on one store.
type runner struct {
	testing.TB
	engine
	store
	waiters, others string // programs
}

// A turn is what one crowd came to.
type turn struct {
	placed, each, median, longest time.Duration
}

// crowd starts one that waits, and returns it with the lease that it waits for, and when all have places.
func (r *runner) crowd(n int, how string) (*crowd.Fleet, *leasehold.Lease, time.Duration) {
	r.Helper()
	d, err := stores.Open(r.Context(), r.url)
	if err != nil {
		r.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{TTL: crowd.TTL})
	if err != nil {
		r.Fatal(err)
	}
	lease, err := locks.Acquire(r.Context(), crowd.Name)
	if err != nil {
		r.Fatal(err)
	}
	f := crowd.StartFleet(r, r.waiters, crowd.Order{URL: r.url, How: how}, processes, n)
	began := time.Now()
	f.Begin()
	f.Queued(patience)
	r.Cleanup(func() { locks.Close(); d.Close() })
	return f, lease, time.Since(began)
}

// turns has n waiters served, and notes what they cost before.
func (r *runner) turns(n int, quiet *contest.Table) (t turn, served bool) {
	r.Helper()
	f, lease, placed := r.crowd(n, "")
	defer f.Kill()
	t.placed = placed
	used, writes := r.idles(f, r.name, n, quiet)
	if n == slices.Max(r.crowds) {
		contest.AtMost(fmt.Sprintf("%s: cores of all clients of %d that wait", r.name, n), used, 0.1)
		if r.writes != nil {
			contest.AtMost(fmt.Sprintf("%s: writes a second of %d that wait", r.name, n), writes, 60)
		}
	}
	start := time.Now()
	if err := lease.Release(r.Context()); err != nil {
		r.Fatal(err)
	}
	all, missing := f.Turns(n, patience)
	if missing != nil {
		r.Log(missing)
		return t, false
	}
	if faults := crowd.Faults(all, r.fair); len(faults) > 0 {
		r.Fatalf("%d faults, such as: %s", len(faults), strings.Join(faults[:min(3, len(faults))], "\n"))
	}
	return turnsFrom(start.UnixNano(), all, placed), true
}

// turnsFrom sums up all turns after the holder's release.
func turnsFrom(released int64, all []crowd.Turn, placed time.Duration) turn {
	var gaps []time.Duration
	last := released
	for _, one := range all {
		gaps = append(gaps, time.Duration(one.Held-last))
		last = one.Released
	}
	return turn{placed: placed, each: time.Duration(last-released) / time.Duration(len(all)), median: contest.Median(gaps), longest: slices.Max(gaps)}
}

// peer has n waiters served by another library. When they have places it does not tell.
func (r *runner) peer(name string, n int, turns, quiet *contest.Table) {
	r.Helper()
	addr := r.url[strings.Index(r.url, "://")+3:]
	addr, _, _ = strings.Cut(addr, "/")
	const settles = 10 * time.Second // for all to come, a session each
	o := crowd.Order{URL: addr, How: name, Holds: settles + idle}
	holder := crowd.StartFleet(r, r.others, o, 1, 1)
	defer holder.Kill()
	holder.Begin()
	o.Holds = 0
	f := crowd.StartFleet(r, r.others, o, processes, n)
	defer f.Kill()
	f.Begin()
	time.Sleep(settles / 2)
	title := r.name + ", " + name
	r.idles(f, title, n, quiet)
	held, missing := holder.Turns(1, patience)
	if missing != nil {
		r.Fatal(missing)
	}
	all, missing := f.Turns(n, patience)
	if missing != nil {
		turns.Row(title, n, time.Duration(-1), fmt.Sprint(len(all), " served in ", patience), "", "", "")
		return
	}
	t := turnsFrom(held[0].Released, all, -1)
	turns.Row(title, n, t.placed, t.each, t.median, t.longest, math.NaN())
}

// idles notes what a crowd costs that waits, and returns the cores of its processes and the store's writes a second.
func (r *runner) idles(f *crowd.Fleet, title string, n int, quiet *contest.Table) (cores, rate float64) {
	r.Helper()
	cpu := func() time.Duration {
		if r.pid == 0 {
			return 0
		}
		return crowd.FamilyCPU(r, r.pid)
	}
	time.Sleep(r.late)
	clients, server, writes := f.CPU(), cpu(), r.written()
	start := time.Now()
	time.Sleep(idle)
	took := time.Since(start).Seconds()
	clients, server, writes = f.CPU()-clients, cpu()-server, r.written()-writes
	rate = math.NaN()
	if r.writes != nil {
		rate = float64(writes) / took
	}
	quiet.Row(title, n, clients.Seconds()/took, server.Seconds()/took, rate)
	return clients.Seconds() / took, rate
}

func (r *runner) written() int64 {
	if r.writes == nil {
		return 0
	}
	return r.writes(r)
}

// survivor is when a waiter of the last process holds whose nineteen others were killed, once the holder released.
func (r *runner) survivor() time.Duration {
	r.Helper()
	f, lease, _ := r.crowd(r.most20(), "")
	defer f.Kill()
	last := len(f.Members) - 1
	for _, m := range f.Members[:last] {
		m.Kill()
	}
	start := time.Now()
	if err := lease.Release(r.Context()); err != nil {
		r.Fatal(err)
	}
	turns, missing := f.TurnsOf(f.Members[last], 1, patience)
	if missing != nil {
		r.Log(missing)
		return -1
	}
	return time.Unix(0, turns[0].Held).Sub(start)
}

// leader is when another leads whose leader was killed.
func (r *runner) leader() time.Duration {
	r.Helper()
	f, lease, _ := r.crowd(min(500, r.most20()), crowd.Lead)
	defer f.Kill()
	if err := lease.Release(r.Context()); err != nil {
		r.Fatal(err)
	}
	turns, missing := f.Turns(1, patience)
	if missing != nil {
		r.Fatal(missing)
	}
	start := time.Now()
	f.Members[turns[0].Member].Kill()
	turns, missing = f.Turns(2, patience)
	if missing != nil {
		r.Log(missing)
		return -1
	}
	took := time.Unix(0, turns[1].Held).Sub(start)
	contest.AtMost(r.name+": seconds until the next of 500 leads", took.Seconds(), max(1, r.lasts)*crowd.TTL.Seconds()+2)
	return took
}

// most20 is how many wait where processes are killed: no more than can be served.
func (r *runner) most20() int { return min(1000, slices.Max(r.crowds)) }
