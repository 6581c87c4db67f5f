// Package zookeeper_test compares Leasehold on ZooKeeper with go-zookeeper's own Lock.
package zookeeper_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

var engine = contest.Engine{Name: "ZooKeeper", Competitors: competitors}

func TestMain(m *testing.M) { engine.Main(m) }

// BenchmarkZooKeeper measures on one server, and on an ensemble of three.
func BenchmarkZooKeeper(b *testing.B) {
	for _, n := range []int{1, 3} {
		where := map[int]string{1: "one server", 3: "three servers"}[n]
		b.Run(strings.ReplaceAll(where, " ", "-"), func(b *testing.B) { measure(b, n, where) })
	}
}

func measure(b *testing.B, n int, where string) {
	addr, cpu := start(b, n)
	warm(b, addr)
	engine.CPU = cpu
	engine.Where = where
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, addr, where) }},
		contest.Part{Name: "Own64", Run: func(b *testing.B) { ownKeys(b, addr, where) }},
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { oneProcess(b, addr, where) }},
		contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, addr, where) }},
		contest.Part{Name: "Gap", Run: func(b *testing.B) { gap(b, addr, where) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { holding(b, addr, where) }},
	)
}

// start starts so many servers with ZooKeeper's own defaults.
func start(b *testing.B, n int) (addr string, cpu func() time.Duration) {
	opts := servers.ZooKeeperOptions{Tick: 2 * time.Second, Config: []string{"syncLimit=5", "initLimit=10", "forceSync=yes"}}
	var all []*servers.ZooKeeper
	if n == 1 {
		all = append(all, servers.StartZooKeeper(b, opts))
	} else {
		all = servers.StartZooKeepers(b, n, opts)
	}
	if version, err := all[0].Ask("srvr"); err == nil {
		line, _, _ := strings.Cut(version, "-")
		contest.Server(line)
	}
	var addrs []string
	for _, z := range all {
		addrs = append(addrs, z.Addr())
	}
	return strings.Join(addrs, ","), func() (sum time.Duration) {
		for _, z := range all {
			sum += crowd.ProcessCPU(b, z.Pid())
		}
		return sum
	}
}

// warm lets the Java machines compile what the locks use: whoever came first would else be
// the slowest.
func warm(b *testing.B, addr string) {
	for _, c := range competitors {
		l, err := c.Open(addr)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := contest.Contend(l, "warm/"+c.Name, 64, 2*time.Second); err != nil {
			b.Fatalf("%s: %v", c.Name, err)
		}
		var own sync.WaitGroup
		for i := range 64 {
			own.Go(func() {
				if _, err := contest.Contend(l, fmt.Sprintf("warm/%s/%d", c.Name, i), 1, 2*time.Second); err != nil {
					b.Errorf("%s: %v", c.Name, err)
				}
			})
		}
		own.Wait()
		l.Close()
	}
}

func alone(b *testing.B, addr, where string) {
	s := engine.Alone(b, addr, zkLock, zkLock, ours)
	contest.AtMost(where+", alone: times zk.Lock, with the fence", s.Ratio(ours, zkLock), 1.1)
}

func ownKeys(b *testing.B, addr, where string) {
	s := engine.OwnKeys(b, addr, "", 64, zkLock, ours, zkLock)
	contest.AtLeast(where+", 64 goroutines, own keys: times zk.Lock, with the fence", s.Ratio(ours, zkLock), 0.91)
}

func oneProcess(b *testing.B, addr, where string) {
	s := engine.OneProcess(b, addr, ours, oursGlobal, zkLock)
	contest.AtLeast(where+", one process: times zk.Lock", s.Ratio(ours, zkLock), 20)
	contest.AtMost(where+", one process: starved", float64(s.Typical(ours).Starved()), 0)
}

func processes(b *testing.B, addr, where string) {
	s := engine.Processes(b, addr, ours, oursGlobal, zkLock)
	contest.AtLeast(where+", 8 processes, most turns inside them: times zk.Lock", s.Ratio(ours, zkLock), 3)
	contest.AtLeast(where+", 8 processes: slowest process / mean", s.Typical(ours).Slowest(contest.Workers), 0.5)
}

func gap(b *testing.B, addr, where string) {
	g := engine.Gap(b, addr, ours, zkLock)
	contest.AtMost(where+", gap: p50 / zk.Lock's", g.Percentile(ours, 50)/g.Percentile(zkLock, 50), 1)
	contest.AtMost(where+", gap: p99 / p50", g.Percentile(ours, 99)/g.Percentile(ours, 50), 5)
}

func holding(b *testing.B, addr, where string) {
	h := engine.Holding(b, addr, zkLock, ours, zkLock)
	contest.AtMost(where+", 10,000 leases: share of a core", h[ours].Cores(), 0.01)
	contest.AtMost(where+", 10,000 leases: KiB a lease", h[ours].KiB(), 3)
	contest.AtMost(where+", 10,000 leases: goroutines a lease", h[ours].GoroutinesEach(), 0.01)
}
