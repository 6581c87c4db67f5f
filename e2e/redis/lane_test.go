package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/redislock"
)

// openBehindProxy is a driver with connections of its own that go through a proxy.
func openBehindProxy(t *testing.T) (*redislock.Driver, *servers.Proxy) {
	t.Helper()
	p := servers.StartProxy(t, servers.StartRedis(t).Addr())
	d, err := redislock.Open(&redis.Options{Addr: p.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Pass()
		d.Close()
	})
	return d, p
}

// Calls to a server that does not answer end with their contexts, keep nothing, and the
// driver goes on by itself when the server is back.
func TestRedisCallsEndWithTheirContext(t *testing.T) {
	d, p := openBehindProxy(t)
	first := lateClaim(t, d, "first", "a", time.Minute)
	mustTry(t, first)
	goroutines := runtime.NumGoroutine()
	p.Dark()
	var calls sync.WaitGroup
	for i := range 200 {
		calls.Go(func() {
			c := lateClaim(t, d, fmt.Sprint("dark ", i), "a", time.Minute)
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				start := time.Now()
				_, err := c.Try(ctx)
				if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
					t.Errorf("Try of a dark server: %v, after %v", err, took)
				}
				cancel()
			}
		})
	}
	calls.Wait()
	// Those that went together end by the client's timeouts: as many as may hang at once.
	if n := runtime.NumGoroutine(); n > goroutines+100 {
		t.Errorf("%d goroutines, and %d before", n, goroutines)
	}
	p.Pass()
	c := lateClaim(t, d, "first", "b", time.Minute)
	if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("Try of another when the server is back: %v", err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Errorf("Release when the server is back: %v", err)
	}
	mustTry(t, c)
}

// Calls are given up at any instant, on connections that others use before and after.
// Nobody gets an answer that was another's: the fences of a name rise, and its lock is
// free when its claim was released.
func TestRedisCallsGivenUpMidway(t *testing.T) {
	t.Parallel()
	d, p := openBehindProxy(t)
	p.Delay(200 * time.Microsecond)
	end := time.Now().Add(3 * time.Second)
	var workers sync.WaitGroup
	for i := range 24 {
		workers.Go(func() {
			var last uint64
			var granted, cut int
			for n := 0; time.Now().Before(end) || granted == 0 || cut == 0; n++ {
				c := lateClaim(t, d, fmt.Sprint("midway ", i), fmt.Sprint("owner-", i, "-", n), time.Minute)
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(5*time.Millisecond))
				g, err := c.Try(ctx)
				cancel()
				switch {
				case err == nil && g.Fence <= last:
					t.Errorf("%d: fence %d after %d", i, g.Fence, last)
				case err == nil:
					last = g.Fence
					granted++
				case errors.Is(err, context.DeadlineExceeded):
					cut++
				default:
					t.Errorf("%d: %v", i, err)
					return
				}
				if err := c.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Errorf("%d: Release: %v", i, err)
					return
				}
			}
		})
	}
	workers.Wait()
}
