package leasehold_test

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// A worker locks the same name for each item. With Keep only the first needs the engine.
func ExampleOptions_keep() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), &leasehold.Options{Keep: time.Second})
	defer locks.Close() // gives back what is kept
	last := uint64(0)
	for _, item := range []string{"a", "b", "c"} {
		err := locks.Do(ctx, "stock/7", func(ctx context.Context) error {
			lease, _ := leasehold.FromContext(ctx)
			fmt.Println("writing", item, lease.Token() > last)
			last = lease.Token()
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// writing a true
	// writing b true
	// writing c true
}
