package linear

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The server's clock goes back all the time, which makes leases longer and fences no smaller.
func TestRedisIsLinearizable(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	ctx, stop := context.WithCancel(t.Context())
	var stepping sync.WaitGroup
	defer stepping.Wait()
	defer stop()
	stepping.Go(func() {
		for back := time.Duration(0); ctx.Err() == nil; back += rand.N(50 * time.Millisecond) {
			clock.Set(-back)
			time.Sleep(100 * time.Millisecond)
		}
	})
	Check(t, func(t testing.TB) driver.Driver {
		d, err := redislock.Open(&redis.Options{Addr: r.Addr()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

// One node of three, whose clocks are hours apart, is stopped or dead at most times, for longer than a
// call may take.
func TestRedlockIsLinearizable(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond // for its short TTLs
	var nodes []*servers.Redis
	for i := range 3 {
		r, clock := servers.StartRedisWithClock(t, "--appendonly", "yes", "--appendfsync", "always")
		clock.Set(time.Duration(i-1) * time.Hour)
		nodes = append(nodes, r)
	}
	ctx, calm := context.WithCancel(t.Context())
	var faults sync.WaitGroup
	defer faults.Wait()
	defer calm()
	faults.Go(func() {
		for ctx.Err() == nil {
			back := away(t, nodes[rand.N(len(nodes))])
			time.Sleep(limit/2 + rand.N(5*limit/2))
			back()
			time.Sleep(limit + rand.N(4*limit)) // what was not released there ends
		}
	})
	Check(t, func(t testing.TB) driver.Driver {
		var clients []redis.UniversalClient
		for _, n := range nodes {
			c := redis.NewClient(&redis.Options{Addr: n.Addr()})
			t.Cleanup(func() { c.Close() })
			clients = append(clients, c)
		}
		d, err := redislock.NewRedlock(clients, &redislock.Options{NoMinUptime: true}, &quorum.Options{NodeTimeout: limit})
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

// away stops a server, or kills it, until back is called.
func away(t *testing.T, r *servers.Redis) (back func()) {
	if rand.N(2) == 0 {
		return r.Pause()
	}
	r.Kill()
	return func() { r.Start(t) }
}
