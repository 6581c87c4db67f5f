package redis_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// BenchmarkRest is what Options.Rest costs: how many turns two processes of ours have within ten seconds, that want
// one lock all the time, and how many a redsync has that does so, too. A turn lasts 5 ms.
func BenchmarkRest(b *testing.B) {
	for _, rest := range []time.Duration{0, 50 * time.Millisecond, 300 * time.Millisecond} {
		for _, beside := range []bool{false, true} {
			b.Run(fmt.Sprintf("rest=%v/redsync=%v", rest, beside), func(b *testing.B) { restBeside(b, rest, beside) })
		}
	}
}

func restBeside(b *testing.B, rest time.Duration, beside bool) {
	const span, turn, processes, goroutines = 10 * time.Second, 5 * time.Millisecond, 2, 2
	server := redis.Options{Addr: servers.StartRedis(b).Addr()}
	ctx, cancel := context.WithTimeout(context.Background(), span)
	defer cancel()
	var all sync.WaitGroup
	var ours, theirs atomic.Int64
	for range processes {
		d, err := redislock.Open(&server, &redislock.Options{NoPrefix: true, Rest: rest})
		if err != nil {
			b.Fatal(err)
		}
		defer d.Close()
		locks, err := leasehold.New(d, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer locks.Close()
		for range goroutines {
			all.Go(func() {
				for locks.Do(ctx, "orders/42", func(context.Context) error { time.Sleep(turn); return nil }) == nil {
					ours.Add(1)
				}
			})
		}
	}
	if beside {
		client := redis.NewClient(&server)
		defer client.Close()
		all.Go(func() {
			mutex := redsync.New(goredis.NewPool(client)).NewMutex("orders/42", redsync.WithTries(1000))
			for mutex.LockContext(ctx) == nil {
				time.Sleep(turn)
				theirs.Add(1)
				_, _ = mutex.UnlockContext(context.Background()) // what it leaves ends by itself
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(ours.Load()), "ours")
	b.ReportMetric(float64(theirs.Load()), "redsync's")
	b.ReportMetric(0, "ns/op") // it lasts as long as it lasts
}
