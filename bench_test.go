package leasehold_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

func BenchmarkUncontended(b *testing.B) {
	locks, _ := leasehold.New(memory.New(), nil)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		lease, err := locks.Acquire(ctx, "orders/42")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHandOver has 1,000 goroutines take turns on one name.
func BenchmarkHandOver(b *testing.B) {
	const goroutines = 1000
	locks, _ := leasehold.New(memory.New(), nil)
	ctx := context.Background()
	waits := make([][]time.Duration, goroutines)
	var wg sync.WaitGroup
	b.ResetTimer()
	for g := range goroutines {
		wg.Go(func() {
			for range b.N/goroutines + 1 {
				start := time.Now()
				lease, err := locks.Acquire(ctx, "one")
				if err != nil {
					b.Error(err)
					return
				}
				waits[g] = append(waits[g], time.Since(start))
				lease.Release(ctx)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	var all []time.Duration
	var slowest time.Duration
	for _, w := range waits {
		all = append(all, w...)
		slowest = max(slowest, slices.Max(w))
	}
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "turns/s")
	b.ReportMetric(float64(slowest)/float64(all[len(all)/2]), "slowest/median")
}
