// Package memcached_test compares Leasehold on memcached with the recipe that everybody
// writes by hand.
package memcached_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestMain(m *testing.M) { engine.Main(m) }

// BenchmarkMemcached starts one memcached on the same machine.
func BenchmarkMemcached(b *testing.B) {
	server := servers.StartMemcached(b)
	addr := server.Addr()
	contest.Server(contest.Version(b, servers.Need(b, "memcached", "memcached"), "-V"))
	engine.CPU = func() time.Duration { return crowd.ProcessCPU(b, server.Pid()) }
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, addr) }},
		contest.Part{Name: "Own64", Run: func(b *testing.B) { ownKeys(b, addr) }},
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { oneProcess(b, addr) }},
		contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, addr) }},
		contest.Part{Name: "Gap", Run: func(b *testing.B) { gap(b, addr) }},
		contest.Part{Name: "Seckill", Run: func(b *testing.B) { seckill(b, addr) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { holding(b, addr) }},
	)
}

// alone: who compares before it deletes needs three commands, not two.
func alone(b *testing.B, addr string) {
	s := engine.Alone(b, addr, byHand, byHand, ours)
	contest.AtMost("alone: times by hand", s.Ratio(ours, byHand), 1.8)
	contest.AtMost("alone: commands a cycle", s.Commands(ours), 3.1)
}

func ownKeys(b *testing.B, addr string) {
	s := engine.OwnKeys(b, addr, "", 64, byHand, ours, byHand)
	contest.AtLeast(s.Title+": times by hand", s.Ratio(ours, byHand), 0.6)
}

func oneProcess(b *testing.B, addr string) {
	s := engine.OneProcess(b, addr, ours, oursGlobal, byHand)
	contest.AtLeast("one process: times by hand", s.Ratio(ours, byHand), 20)
	contest.AtMost("one process: starved", float64(s.Typical(ours).Starved()), 0)
}

func processes(b *testing.B, addr string) {
	s := engine.Processes(b, addr, ours, oursGlobal, byHand)
	contest.AtLeast("8 processes, most turns inside them: times by hand", s.Ratio(ours, byHand), 1.5)
}

func gap(b *testing.B, addr string) {
	g := engine.Gap(b, addr, ours, byHand)
	contest.AtMost("gap: p50 / by hand's", g.Percentile(ours, 50)/g.Percentile(byHand, 50), 1)
}

// seckill keeps the stock as a number in memcached.
func seckill(b *testing.B, addr string) {
	client := memcache.New(addr)
	defer client.Close()
	shop := contest.Shop{
		Stock: func(context.Context) (int, error) {
			item, err := client.Get("shop:stock")
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(string(item.Value))
		},
		SetStock: func(_ context.Context, pieces int) error {
			return client.Set(&memcache.Item{Key: "shop:stock", Value: []byte(strconv.Itoa(pieces))})
		},
	}
	s := engine.Seckill(b, addr, shop, ours, byHand)
	contest.AtLeast("seckill: times faster than by hand", s.Ratio(byHand, ours), 3)
}

func holding(b *testing.B, addr string) {
	h := engine.Holding(b, addr, byHand, ours, byHand)
	contest.AtMost("10,000 leases: KiB a lease", h[ours].KiB(), 2)
	contest.AtMost("10,000 leases: goroutines a lease", h[ours].GoroutinesEach(), 0.01)
}
