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

// BenchmarkKept is BenchmarkUncontended with Keep: 1,022 of 1,023 sections do not ask the engine.
func BenchmarkKept(b *testing.B) {
	locks, _ := leasehold.New(memory.New(), &leasehold.Options{Keep: time.Second})
	defer locks.Close()
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

// BenchmarkTraced is BenchmarkUncontended with a Trace that counts the four events of each section.
func BenchmarkTraced(b *testing.B) {
	told := 0
	locks, _ := leasehold.New(memory.New(), &leasehold.Options{Trace: func(context.Context, leasehold.Event) { told++ }})
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
	if told != 4*b.N {
		b.Errorf("told of %d events in %d sections", told, b.N)
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
	var all, means []time.Duration
	for _, w := range waits {
		var sum time.Duration
		for _, d := range w {
			sum += d
		}
		all, means = append(all, w...), append(means, sum/time.Duration(len(w)))
	}
	slices.Sort(all)
	slices.Sort(means)
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "turns/s")
	b.ReportMetric(float64(means[goroutines-1])/float64(means[goroutines/2]), "slowest/median-goroutine")
	b.ReportMetric(float64(all[len(all)-1])/float64(all[len(all)/2]), "longest/median-wait")
}

// BenchmarkBaton is the floor of BenchmarkHandOver: 1,000 goroutines that pass a channel's
// value round, with nothing to decide and no lease.
func BenchmarkBaton(b *testing.B) {
	const goroutines = 1000
	ring := make([]chan struct{}, goroutines)
	for i := range ring {
		ring[i] = make(chan struct{}, 1)
	}
	waits := make([][]time.Duration, goroutines)
	var wg sync.WaitGroup
	b.ResetTimer()
	for g := range goroutines {
		wg.Go(func() {
			for range b.N/goroutines + 1 {
				start := time.Now()
				<-ring[g]
				waits[g] = append(waits[g], time.Since(start))
				ring[(g+1)%goroutines] <- struct{}{}
			}
		})
	}
	ring[0] <- struct{}{}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(waits...)
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "turns/s")
	b.ReportMetric(float64(all[len(all)-1])/float64(all[len(all)/2]), "longest/median-wait")
}
