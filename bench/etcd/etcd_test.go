// Package etcd_test compares Leasehold on etcd with etcd's own clientv3/concurrency.
package etcd_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

var engine = contest.Engine{Name: "etcd", Competitors: competitors}

func TestMain(m *testing.M) { engine.Main(m) }

// BenchmarkEtcd measures on one member and on three, and one member of Debian's etcd.
func BenchmarkEtcd(b *testing.B) {
	for _, c := range []struct {
		where, version string
		members        int
	}{
		{"one member", servers.EtcdCurrent, 1},
		{"three members", servers.EtcdCurrent, 3},
		{"one member of 3.4", servers.EtcdDebian, 1},
	} {
		b.Run(strings.ReplaceAll(c.where, " ", "-"), func(b *testing.B) {
			measure(b, servers.StartEtcdCluster(b, c.version, c.members), c.where)
		})
	}
}

func measure(b *testing.B, members []*servers.Etcd, where string) {
	addr := strings.Join(servers.Endpoints(members...), ",")
	engine.Where = where
	contest.Server("etcd " + version(b, servers.Endpoints(members...)))
	engine.CPU = func() (sum time.Duration) {
		for _, m := range members {
			sum += crowd.ProcessCPU(b, m.Pid())
		}
		return sum
	}
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, addr, where) }},
		contest.Part{Name: "Own64", Run: func(b *testing.B) { ownKeys(b, addr, where) }},
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { oneProcess(b, addr, where) }},
		contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, addr, where) }},
		contest.Part{Name: "Gap", Run: func(b *testing.B) { gap(b, addr, where) }},
		contest.Part{Name: "Seckill", Run: func(b *testing.B) { seckill(b, addr, where) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { holding(b, addr, where) }},
	)
}

func version(b *testing.B, endpoints []string) string {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	status, err := client.Status(b.Context(), endpoints[0])
	if err != nil {
		b.Fatal(err)
	}
	return status.Version
}

func alone(b *testing.B, addr, where string) {
	s := engine.Alone(b, addr, ownSession, ownSession, ours, oneSession)
	contest.AtMost(where+", alone: times concurrency, with the fence", s.Ratio(ours, ownSession), 1.1)
}

func ownKeys(b *testing.B, addr, where string) {
	s := engine.OwnKeys(b, addr, "", 64, ownSession, append([]string{ours}, peers...)...)
	contest.AtLeast(where+", 64 goroutines, own keys: times concurrency, with the fence", s.Ratio(ours, s.Best(peers...)), 0.91)
}

func oneProcess(b *testing.B, addr, where string) {
	s := engine.OneProcess(b, addr, append([]string{ours, oursGlobal}, peers...)...)
	contest.AtLeast(where+", one process: times concurrency", s.Ratio(ours, s.Best(peers...)), 20)
	contest.AtMost(where+", one process: starved", float64(s.Typical(ours).Starved()), 0)
}

func processes(b *testing.B, addr, where string) {
	s := engine.Processes(b, addr, append([]string{ours, oursGlobal}, peers...)...)
	best := s.Best(peers...)
	contest.AtLeast(where+", 8 processes, most turns inside them: times concurrency", s.Ratio(ours, best), 5)
	contest.AtLeast(where+", 8 processes, HandOver -1: times concurrency", s.Ratio(oursGlobal, best), 2)
	contest.AtLeast(where+", 8 processes, HandOver -1: slowest process / mean", s.Typical(oursGlobal).Slowest(contest.Workers), 0.5)
}

func gap(b *testing.B, addr, where string) {
	g := engine.Gap(b, addr, append([]string{ours}, peers...)...)
	best := min(g.Percentile(ownSession, 50), g.Percentile(oneSession, 50))
	contest.AtMost(where+", gap: p50 / concurrency's", g.Percentile(ours, 50)/best, 1)
	contest.AtMost(where+", gap: p99 / p50", g.Percentile(ours, 99)/g.Percentile(ours, 50), 5)
}

// seckill keeps the stock as a number in etcd.
func seckill(b *testing.B, addr, where string) {
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(addr, ",")})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	shop := contest.Shop{
		Stock: func(ctx context.Context) (int, error) {
			resp, err := client.Get(ctx, "shop:stock")
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(string(resp.Kvs[0].Value))
		},
		SetStock: func(ctx context.Context, pieces int) error {
			_, err := client.Put(ctx, "shop:stock", strconv.Itoa(pieces))
			return err
		},
	}
	s := engine.Seckill(b, addr, shop, append([]string{ours}, peers...)...)
	contest.AtLeast(where+", seckill: times faster than concurrency", s.Ratio(s.Fastest(peers...), ours), 1)
}

func holding(b *testing.B, addr, where string) {
	h := engine.Holding(b, addr, oneSession, ours, oneSession)
	contest.AtMost(where+", 10,000 leases: share of a core", h[ours].Cores(), 0.01)
	contest.AtMost(where+", 10,000 leases: KiB a lease", h[ours].KiB(), 3)
	contest.AtMost(where+", 10,000 leases: goroutines a lease", h[ours].GoroutinesEach(), 0.01)
}
