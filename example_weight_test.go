package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// Jobs share the memory of a GPU: together they use at most its 24 GB, in all processes.
func ExampleWeight() {
	ctx := context.Background()
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	const size = 24
	var used, most atomic.Int64
	train := func(ctx context.Context, gigabytes int) error {
		if now := used.Add(int64(gigabytes)); now > most.Load() {
			most.Store(now)
		}
		defer used.Add(-int64(gigabytes))
		return nil
	}
	job := func(gigabytes int) {
		err := locks.Do(ctx, "gpu/0", func(ctx context.Context) error {
			return train(ctx, gigabytes) // stops when ctx ends
		}, leasehold.Limit(size), leasehold.Weight(gigabytes))
		if err != nil {
			log.Print(err)
		}
	}
	var jobs sync.WaitGroup
	for _, gigabytes := range []int{16, 6, 12, 3, 24, 8} {
		jobs.Go(func() { job(gigabytes) })
	}
	jobs.Wait()
	fmt.Println("within the memory:", most.Load() <= size)
	// Output: within the memory: true
}

// A tenant has at most two jobs, and all tenants together have a hundred slots, of which a large
// job takes three.
func ExampleFor() {
	ctx := context.Background()
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	leases, err := locks.AcquireAll(ctx, nil,
		leasehold.For("tenant/7", leasehold.Limit(2)),
		leasehold.For("total", leasehold.Limit(100), leasehold.Weight(3)))
	if err != nil {
		log.Fatal(err)
	}
	defer leases.Release(ctx)
	total, err := locks.Inspect(ctx, "total")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %d of %d used\n", leases.Names(), total.Used(), total.Holders[0].Limit)
	// Output: [tenant/7 total]: 3 of 100 used
}

// An operator lowers the limit of a tenant while its jobs run, and later ends the exception.
func ExampleLocker_SetLimit() {
	ctx := context.Background()
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	two := func() error {
		for range 2 {
			lease, err := locks.Acquire(ctx, "tenant/7", leasehold.Limit(5), leasehold.Wait(0))
			if err != nil {
				return err
			}
			defer lease.Release(ctx)
		}
		return nil
	}
	if err := locks.SetLimit(ctx, "tenant/7", 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println("with a limit of 1, busy:", errors.Is(two(), leasehold.ErrBusy))
	if err := locks.SetLimit(ctx, "tenant/7", 0); err != nil {
		log.Fatal(err)
	}
	fmt.Println("without:", two())
	// Output:
	// with a limit of 1, busy: true
	// without: <nil>
}
