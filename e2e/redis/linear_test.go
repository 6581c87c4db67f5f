package redis

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/e2e/servers"
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
	linear.Check(t, func(t testing.TB) driver.Driver {
		d, err := openRedisAddress("single," + r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

// One node of three is away at most times, for longer than a call may take.
func TestRedlockIsLinearizable(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond // for its short TTLs
	nodes := startApart(t, 3)
	ctx, calm := context.WithCancel(t.Context())
	var faults sync.WaitGroup
	faults.Go(func() { disturb(ctx, t, nodes, limit) })
	defer faults.Wait()
	defer calm()
	linear.Check(t, func(t testing.TB) driver.Driver { return openRedlockWithin(t, nodes, -1, limit) })
}
