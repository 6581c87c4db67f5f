package serve_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/httplock"
	process "github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/several"
)

// A grant is one waiter's.
type grant struct {
	at   time.Time
	held string
	err  error
}

// crowd is so many waiters on one name; the others have fewer, because etcd's gateway is slow to take them in.
const crowd, fewer = 5000, 200

// waiters measures what a crowd costs that waits, and how fast it is served.
func waiters(b *testing.B, mine *server, etcd *servers.Etcd, consul *servers.Consul) {
	t := contest.NewTable(fmt.Sprintf("%d calls that wait for one name", crowd),
		"what", "KiB each", "wake-ups a hand-over", "hand-over p50", "p99", "p99/p50", "empty POST p50", "p99", "p99/p50")
	wakes := int64(0)
	bytes := func() int64 { u := mine.ask(); wakes = u.Wakes; return u.Bytes }
	for _, v := range []struct {
		name string
		two  bool
	}{{"serve, memory, HTTP/1.1", false}, {"serve, memory, one connection of HTTP/2", true}} {
		c := client(v.two)
		beside := client(v.two)
		w := wait(b, crowd, func(ctx context.Context) cycle { return ours(ctx, c, mine.url) }, nothing(b.Context(), beside, mine.url), fmt.Sprint("crowd/", v.two), bytes, func() int64 { bytes(); return wakes })
		w.row(t, v.name)
		contest.AtMost(v.name+": KiB a waiter", w.kib, 40)
		contest.AtMost(v.name+": wake-ups a hand-over", w.wakes, 1.1)
		contest.AtMost(v.name+": hand-over p99/p50, median of rounds", w.handOver.ratio, 10)
		c.CloseIdleConnections()
		beside.CloseIdleConnections()
	}
	c := client(false)
	defer c.CloseIdleConnections()
	for _, v := range []struct {
		name string
		locks
		pid int
	}{{inGateway, gateway{c, "http://" + etcd.Addr()}, etcd.Pid()}, {inConsul, sessions{c, consul.Endpoint()}, consul.Pid()}} {
		w := wait(b, fewer, func(ctx context.Context) cycle { return each(ctx, v.locks) }, nothing(b.Context(), c, mine.url), "crowd", func() int64 { return resident(b, v.pid) }, nil)
		w.row(t, fmt.Sprintf("%s, %d calls (resident memory)", v.name, fewer))
	}
}

type waited struct {
	kib, wakes      float64
	handOver, empty spread
}

// A spread is how long something took: medians of some rounds, each of which has its own percentiles. A
// p99 of one round is that of the few moments in which another process had the processor.
type spread struct {
	p50, p99 time.Duration
	ratio    float64
}

func spreadOf(all [][]time.Duration) spread {
	var p50, p99 []time.Duration
	var ratios []float64
	for _, round := range all {
		half, most := contest.Percentile(round, 50), contest.Percentile(round, 99)
		p50, p99, ratios = append(p50, half), append(p99, most), append(ratios, most.Seconds()/half.Seconds())
	}
	return spread{contest.Median(p50), contest.Median(p99), contest.Median(ratios)}
}

func (w waited) row(t *contest.Table, name string) {
	t.Row(name, w.kib, w.wakes, w.handOver.p50, w.handOver.p99, w.handOver.ratio, w.empty.p50, w.empty.p99, w.empty.ratio)
}

// wait has n wait, and hands over a number of times, with an empty POST behind each hand-over.
func wait(b *testing.B, n int, user func(ctx context.Context) cycle, empty cycle, name string, bytes, wakes func() int64) (w waited) {
	b.Helper()
	many := 9
	if testing.Short() {
		many = 5
	}
	each := min(101, n/(many+1)) // who was served is gone
	ctx, cancel := context.WithCancel(b.Context())
	c := user(ctx)
	next, err := c.take(name)
	if err != nil {
		b.Fatal(err)
	}
	before := bytes()
	granted := make(chan grant, n)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for range n {
		waiting.Go(func() {
			held, err := c.take(name)
			granted <- grant{time.Now(), held, err}
		})
	}
	settle(bytes)
	w.kib = float64(bytes()-before) / 1024 / float64(n)
	if w.wakes = math.NaN(); wakes != nil {
		w.wakes = -float64(wakes())
	}
	gaps, empties := make([][]time.Duration, many), make([][]time.Duration, many)
	for i := range many * each {
		sent := time.Now()
		if err := c.give(name, next); err != nil {
			b.Fatal(err)
		}
		g := <-granted
		if g.err != nil {
			b.Fatal(g.err)
		}
		next = g.held
		gaps[i/each] = append(gaps[i/each], g.at.Sub(sent))
		sent = time.Now()
		if err := empty.give("", ""); err != nil {
			b.Fatal(err)
		}
		empties[i/each] = append(empties[i/each], time.Since(sent))
	}
	if wakes != nil {
		w.wakes = (w.wakes + float64(wakes())) / float64(many*each)
	}
	w.handOver, w.empty = spreadOf(gaps), spreadOf(empties)
	return w
}

// settle returns when what is used grows no more: all wait.
func settle(bytes func() int64) {
	for last := int64(0); ; {
		time.Sleep(time.Second)
		now := bytes()
		if now < last+last/100 {
			return
		}
		last = now
	}
}

// resident is what a process has in memory.
func resident(b *testing.B, pid int) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// held has one instance renew many leases.
func held(b *testing.B, s *server, redis *servers.Redis) {
	const leases, ttl = 10_000, 30 * time.Second
	d, err := httplock.Connect(b.Context(), s.url, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
	if err != nil {
		b.Fatal(err)
	}
	defer locks.Close()
	held := make([]*leasehold.Lease, leases)
	several.Bounded(leases, 64, func(i int) {
		lease, err := locks.Acquire(context.Background(), fmt.Sprint("held/", i))
		if err != nil {
			b.Error(err)
			return
		}
		held[i] = lease
	})
	if b.Failed() {
		return
	}
	lasts := 2 * ttl
	if testing.Short() {
		lasts = ttl
	}
	cpu := func() [3]time.Duration {
		return [3]time.Duration{process.ProcessCPU(b, s.cmd.Process.Pid), process.ProcessCPU(b, os.Getpid()), process.ProcessCPU(b, redis.Pid())}
	}
	before, began := cpu(), time.Now()
	time.Sleep(lasts)
	after, took := cpu(), time.Since(began)
	cores := func(i int) float64 { return (after[i] - before[i]).Seconds() / took.Seconds() }
	var lost atomic.Int64
	several.Bounded(leases, 64, func(i int) {
		if held[i].Context().Err() != nil {
			lost.Add(1)
		}
		_ = held[i].Release(context.Background()) // what is left ends by itself
	})
	if n := lost.Load(); n > 0 {
		b.Errorf("%d leases were lost", n)
	}
	t := contest.NewTable(fmt.Sprintf("10,000 leases of %v, held by httplock and renewed every third of that, one instance on Redis", ttl), "process", "of a core")
	for i, name := range []string{"the instance", "the client", "Redis"} {
		t.Row(name, cores(i))
	}
	contest.AtMost("10,000 leases: the instance's share of a core", cores(0), 0.5)
}
