// Package serve_test measures the HTTP service beside what it cannot be faster than, empty POSTs
// to the same server, and beside two others that lock over HTTP: etcd's own lock service by its gRPC
// gateway, and Consul's sessions.
package serve_test

import (
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestMain(m *testing.M) {
	if store := os.Getenv(serverEnv); store != "" {
		if err := serveStore(store); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	(&contest.Engine{Name: "HTTP service"}).Main(m)
}

// What is compared, as in the tables.
const (
	posts     = "two empty POSTs"
	inMemory  = "serve, memory"
	onRedis   = "serve, Redis"
	onEtcd    = "serve, etcd"
	inGateway = "etcd's gateway"
	inConsul  = "Consul"
)

var all = []string{posts, inMemory, onRedis, onEtcd, inGateway, inConsul}

// BenchmarkServe prints its tables at the end; the times per operation that go test prints mean
// nothing here.
func BenchmarkServe(b *testing.B) {
	redis, etcd, consul := servers.StartRedis(b), servers.StartEtcd(b, servers.EtcdCurrent), servers.StartConsul(b)
	mine := start(b, "memory:")
	byRedis, byEtcd := start(b, "redis://"+redis.Addr()), start(b, "etcd://"+etcd.Addr())
	gatewayURL := "http://" + etcd.Addr()
	user := func(name string, c *http.Client) cycle {
		switch name {
		case posts:
			return nothing(b.Context(), c, mine.url)
		case inMemory:
			return ours(b.Context(), c, mine.url)
		case onRedis:
			return ours(b.Context(), c, byRedis.url)
		case onEtcd:
			return ours(b.Context(), c, byEtcd.url)
		case inConsul:
			return kept(b.Context(), sessions{c, consul.Endpoint()})
		}
		return kept(b.Context(), gateway{c, gatewayURL})
	}
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, user) }},
		contest.Part{Name: "Own64", Run: func(b *testing.B) { ownNames(b, user) }},
		contest.Part{Name: "Waiters", Run: func(b *testing.B) { waiters(b, mine, etcd, consul) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { held(b, byRedis, redis) }},
	)
}

type users func(name string, c *http.Client) cycle

// run makes n cycles.
func (c cycle) run(name string, n int, took func(time.Duration)) error {
	for range n {
		began := time.Now()
		held, err := c.take(name)
		if err == nil {
			err = c.give(name, held)
		}
		if err != nil {
			return err
		}
		took(time.Since(began))
	}
	return nil
}

func rounds(many int) int {
	if testing.Short() {
		return many / 5
	}
	return many
}

// alone is one user on one connection. All take turns after a few cycles, so that each is compared with
// what the machine did at the same time.
func alone(b *testing.B, user users) {
	const cycles = 50
	took, ratios := make(map[string][]time.Duration), make(map[string][]float64)
	cyclesOf := make(map[string]cycle)
	for _, name := range all {
		client := client(false)
		defer client.CloseIdleConnections()
		cyclesOf[name] = user(name, client)
		if err := cyclesOf[name].run("alone", 2*cycles, func(time.Duration) {}); err != nil {
			b.Fatal(err)
		}
	}
	for range rounds(100) {
		base := time.Duration(0)
		for _, name := range all {
			began := time.Now()
			if err := cyclesOf[name].run("alone", cycles, func(d time.Duration) { took[name] = append(took[name], d) }); err != nil {
				b.Fatal(err)
			}
			lasted := time.Since(began)
			if name == posts {
				base = lasted
			}
			ratios[name] = append(ratios[name], lasted.Seconds()/base.Seconds())
		}
	}
	t := contest.NewTable("One connection: acquire and release", "what", "p50", "p99", "× two empty POSTs")
	for _, name := range all {
		t.Row(name, contest.Percentile(took[name], 50), contest.Percentile(took[name], 99), contest.Median(ratios[name]))
	}
	contest.AtMost("one connection, memory: times two empty POSTs", contest.Median(ratios[inMemory]), 2.5)
}

// ownNames is 64 users, each with a name and a connection of its own.
func ownNames(b *testing.B, user users) {
	const many = 64
	const lasts = 250 * time.Millisecond
	rates, ratios := make(map[string][]float64), make(map[string][]float64)
	for range rounds(40) {
		for _, name := range all {
			client := client(false)
			var working sync.WaitGroup
			counts := make([]int, many)
			began := time.Now()
			for i := range many {
				c := user(name, client)
				working.Go(func() {
					for time.Since(began) < lasts {
						if err := c.run(fmt.Sprint("own/", i), 1, func(time.Duration) { counts[i]++ }); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			working.Wait()
			sum := 0
			for _, n := range counts {
				sum += n
			}
			rate := float64(sum) / time.Since(began).Seconds()
			rates[name] = append(rates[name], rate)
			base := rates[posts]
			ratios[name] = append(ratios[name], rate/base[len(base)-1])
			client.CloseIdleConnections()
		}
	}
	t := contest.NewTable("64 users, own names", "what", "cycles/s", "× two empty POSTs")
	for _, name := range all {
		t.Row(name, contest.Median(rates[name]), contest.Median(ratios[name]))
	}
	contest.AtLeast("64 users, memory: times two empty POSTs", contest.Median(ratios[inMemory]), 0.5)
}
