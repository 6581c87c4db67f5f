// Package redis_test compares Leasehold on Redis, and on Redlock, with other locks.
package redis_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/e2e/servers"
)

func TestMain(m *testing.M) { engine.Main(m) }

// waiters are those that wait, ours first; peers are the others.
var (
	peers   = []string{bsmLock, redsyncLoc, rueidisLoc}
	waiters = append([]string{ours}, peers...)
)

// BenchmarkRedis compares Leasehold on Redis with other locks, on servers that it starts
// itself. Each part runs once, with the locks in turns; the table is printed at the end,
// and is what counts: the times per operation that go test prints mean nothing here.
func BenchmarkRedis(b *testing.B) {
	redis.SetLogger(quiet{}) // a dead node is meant to be
	five := startFive(b)
	addr := servers.StartRedis(b).Addr()
	engine.CPU = func() time.Duration { return serverCPU(b, addr) }
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, addr) }},
		contest.Part{Name: "Own64", Run: func(b *testing.B) { ownKeys(b, addr, "", 64, 2.5) }},
		contest.Part{Name: "Own512", Run: func(b *testing.B) { ownKeys(b, addr, "", 512, 3.5) }},
		contest.Part{Name: "Distant512", Run: func(b *testing.B) {
			ownKeys(b, contest.Distant(b, addr), ", 0.5 ms further away", 512, 10)
		}},
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { oneProcess(b, addr) }},
		contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, addr) }},
		contest.Part{Name: "Gap", Run: func(b *testing.B) { gap(b, addr) }},
		contest.Part{Name: "Seckill", Run: func(b *testing.B) { seckill(b, addr) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { holding(b, addr) }},
		contest.Part{Name: "Redlock", Run: func(b *testing.B) { redlock(b, five) }},
	)
}

// quiet is go-redis' logger.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func alone(b *testing.B, addr string) {
	s := engine.Alone(b, addr, byHand, byHand, byHandPiped, ours, oursOnTheirs, bsmLock, redsyncLoc, rueidisLoc)
	contest.AtMost("alone: times the bare two commands", s.Ratio(ours, byHand), 1.15)
	contest.AtMost("alone: commands a cycle, with the subscription's pings", s.Commands(ours), 2.01)
}

func ownKeys(b *testing.B, addr, where string, goroutines int, wanted float64) {
	s := engine.OwnKeys(b, addr, where, goroutines, bsmLock, ours, byHand, byHandPiped, bsmLock, redsyncLoc, rueidisLoc)
	contest.AtLeast(s.Title+": times bsm/redislock", s.Ratio(ours, bsmLock), wanted)
}

func oneProcess(b *testing.B, addr string) {
	s := engine.OneProcess(b, addr, append([]string{ours, oursGlobal}, peers...)...)
	contest.AtLeast("one process: times the best peer", s.Ratio(ours, s.Best(peers...)), 20)
	contest.AtMost("one process: commands a section", s.Typical(ours).CommandsEach(), 0.2)
	contest.AtMost("one process: starved", float64(s.Typical(ours).Starved()), 0)
}

func processes(b *testing.B, addr string) {
	s := engine.Processes(b, addr, append([]string{ours, oursGlobal}, peers...)...)
	contest.AtLeast("8 processes: times the best peer", s.Ratio(ours, s.Best(peers...)), 1.5)
	global := s.Typical(oursGlobal)
	contest.AtMost("8 processes, HandOver -1: commands a section", global.CommandsEach(), 2.2)
	contest.AtLeast("8 processes, HandOver -1: slowest process / mean", global.Slowest(contest.Workers), 0.5)
}

func gap(b *testing.B, addr string) {
	g := engine.Gap(b, addr, waiters...)
	contest.AtMost("gap: p50 / rueidislock's", g.Percentile(ours, 50)/g.Percentile(rueidisLoc, 50), 0.7)
	contest.AtMost("gap: p99 / p50", g.Percentile(ours, 99)/g.Percentile(ours, 50), 2)
}

// seckill keeps the stock as a number in Redis.
func seckill(b *testing.B, addr string) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	shop := contest.Shop{
		Stock: func(ctx context.Context) (int, error) { return client.Get(ctx, "shop:stock").Int() },
		SetStock: func(ctx context.Context, pieces int) error {
			return client.Set(ctx, "shop:stock", strconv.Itoa(pieces), 0).Err()
		},
	}
	s := engine.Seckill(b, addr, shop, waiters...)
	contest.AtLeast("seckill: times faster than the fastest peer", s.Ratio(s.Fastest(peers...), ours), 3)
	contest.AtMost("seckill: times sync.Mutex", s.Ratio(ours, contest.Mutex), 1.5)
}

func holding(b *testing.B, addr string) {
	h := engine.Holding(b, addr, redsyncLoc, waiters...)
	contest.AtMost("10,000 leases: CPU / redsync's", h[ours].CPUEach()/h[redsyncLoc].CPUEach(), 0.1)
	contest.AtMost("10,000 leases: KiB a lease", h[ours].KiB(), 2)
	contest.AtMost("10,000 leases: goroutines a lease", h[ours].GoroutinesEach(), 0.01)
}
