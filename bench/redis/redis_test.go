// Package redis_test compares Leasehold on Redis, and on Redlock, with other locks.
package redis_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/servers"
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
	server := servers.StartRedis(b)
	addr := server.Addr()
	contest.Server(contest.Version(b, servers.Need(b, "redis", "redis-server"), "--version"))
	engine.CPU = func() time.Duration { return serverCPU(b, addr) }
	var parts []contest.Part
	for _, p := range []contest.Part{
		{Name: "AloneOnOne", Run: func(b *testing.B) { alone(b, server, false, "client and server on one processor", 1.3) }},
		{Name: "Alone", Run: func(b *testing.B) { alone(b, server, true, "a processor each", 1.05) }},
		{Name: "Own64", Run: func(b *testing.B) { plain(ownKeys(b, addr, "", 64, 1.9)) }},
		{Name: "Own512", Run: func(b *testing.B) { ownKeys(b, addr, "", 512, 2.2) }},
		{Name: "Distant512", Run: func(b *testing.B) {
			ownKeys(b, contest.Distant(b, addr), ", 0.5 ms further away", 512, 8.5)
		}},
		{Name: "Gap", Run: func(b *testing.B) { gap(b, addr) }},
	} {
		parts = append(parts, p, awake(p))
	}
	parts = append(parts,
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { oneProcess(b, addr) }},
		awake(contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, addr) }}),
		contest.Part{Name: "Seckill", Run: func(b *testing.B) { seckill(b, addr) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { holding(b, addr) }},
		awake(contest.Part{Name: "Redlock", Run: func(b *testing.B) { redlock(b, five) }}),
		contest.Part{Name: "Size", Run: size},
	)
	contest.Run(b, parts...)
}

// awake is a part with the processors kept from sleeping, which is what its goals are for.
func awake(p contest.Part) contest.Part {
	return contest.Part{Name: p.Name + "Awake", Run: func(b *testing.B) {
		defer contest.KeepAwake(b)()
		engine.Where = "processors kept awake"
		defer func() { engine.Where = "" }()
		p.Run(b)
	}}
}

// titled says where what was measured, as the tables of an Engine do.
func titled(what string) string {
	if engine.Where == "" {
		return what
	}
	return what + ", " + engine.Where
}

// quiet is go-redis' logger.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// alone has this process on one processor, and the server on the same or apart.
func alone(b *testing.B, server *servers.Redis, apart bool, where string, wanted float64) {
	defer contest.Pin(b, server.Pid(), apart)()
	is := engine.Where
	engine.Where = strings.TrimSuffix(where+", "+is, ", ")
	defer func() { engine.Where = is }()
	s := engine.Alone(b, server.Addr(), byHand, byHand, byHandPiped, ours, oursOnTheirs, bsmLock, redsyncLoc, rueidisLoc)
	contest.AtMost(titled("alone: times the bare two commands"), s.Ratio(ours, byHand), wanted)
	contest.AtMost(titled("alone: commands a cycle, with the subscription's pings"), s.Commands(ours), 2.01)
}

func ownKeys(b *testing.B, addr, where string, goroutines int, wanted float64) *contest.Series {
	s := engine.OwnKeys(b, addr, where, goroutines, bsmLock, ours, byHand, byHandPiped, bsmLock, redsyncLoc, rueidisLoc)
	contest.AtLeast(s.Title+": times bsm/redislock", s.Ratio(ours, bsmLock), wanted)
	contest.AtLeast(s.Title+": times the best peer", s.Ratio(ours, s.Best(peers...)), 1)
	return s
}

// plain is what a cycle costs that nobody waits for. The bare commands are those that go-redis pipelines,
// because the server takes less for what comes together.
func plain(s *contest.Series) {
	contest.AtMost(s.Title+": Redis CPU a cycle, times the bare commands', pipelined too",
		float64(s.Typical(ours).ServerEach())/float64(s.Typical(byHandPiped).ServerEach()), 1.5)
	contest.AtMost(s.Title+": allocations a cycle, those of the benchmark among them", s.Typical(ours).MallocsEach(), 20)
}

func oneProcess(b *testing.B, addr string) {
	s := engine.OneProcess(b, addr, append([]string{ours, oursGlobal}, peers...)...)
	contest.AtLeast("one process: times the best peer", s.Ratio(ours, s.Best(peers...)), 20)
	contest.AtMost("one process: commands a section", s.Typical(ours).CommandsEach(), 0.2)
	contest.AtMost("one process: starved", float64(s.Typical(ours).Starved()), 0)
}

func processes(b *testing.B, addr string) {
	s := engine.Processes(b, addr, append([]string{ours, oursGlobal}, peers...)...)
	contest.AtLeast(titled("8 processes, most turns inside them: times the best peer"), s.Ratio(ours, s.Best(peers...)), 1.5)
	global := s.Typical(oursGlobal)
	most := 0.0 // of the peers
	for _, peer := range peers {
		t := s.Typical(peer)
		most = max(most, t.ASecond(t.ProcessTurns))
	}
	contest.AtLeast(titled("8 processes, HandOver -1: turns between processes, times the best peer's"), global.ASecond(global.ProcessTurns)/most, 2.4)
	contest.AtMost(titled("8 processes, HandOver -1: commands a section"), global.CommandsEach(), 2.2)
	contest.AtLeast(titled("8 processes, HandOver -1: slowest process / mean"), global.Slowest(contest.Workers), 0.95)
}

func gap(b *testing.B, addr string) {
	g := engine.Gap(b, addr, waiters...)
	contest.AtMost(titled("gap: p50 / rueidislock's"), g.Percentile(ours, 50)/g.Percentile(rueidisLoc, 50), 0.8)
	contest.AtMost(titled("gap: p99 / p50"), g.Percentile(ours, 99)/g.Percentile(ours, 50), 2)
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

// size is how much redislock is, without its tests.
func size(b *testing.B) {
	t := contest.NewTable("Lines of redislock, with comments, without tests", "what", "lines")
	for _, s := range []struct {
		what, files string
		most        float64
	}{{"Go", "*.go", 2000}, {"Lua", "scripts/*.lua", 450}} {
		all, err := filepath.Glob("../../engine/redislock/" + s.files)
		if err != nil {
			b.Fatal(err)
		}
		lines := 0
		for _, file := range all {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				b.Fatal(err)
			}
			lines += bytes.Count(text, []byte("\n"))
		}
		t.Row(s.what, lines)
		contest.AtMost("lines of redislock: "+s.what, float64(lines), s.most)
	}
}
