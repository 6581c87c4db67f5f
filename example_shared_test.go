package leasehold_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// A semaphore: three parking bays, four cars.
func ExampleLimit() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	for car := 1; car <= 4; car++ {
		_, err := locks.TryAcquire(ctx, "bays/level-2", leasehold.Limit(3))
		fmt.Printf("car %d: parked %t\n", car, !errors.Is(err, leasehold.ErrBusy))
	}
	// A lease that ends before the car leaves ends its context too; see Lease.Context.
	// Output:
	// car 1: parked true
	// car 2: parked true
	// car 3: parked true
	// car 4: parked false
}
