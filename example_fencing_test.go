package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/memory"
)

// A holder that was paused for longer than its lease writes when it wakes up. Only the
// thing it writes to can refuse that: it remembers the largest token it has seen.
func Example_fencing() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	var stock fence.Memory // beside the stock, not beside the lock

	paused, _ := locks.Acquire(ctx, "stock", leasehold.TTL(50*time.Millisecond), leasehold.NoRenew())
	<-paused.Context().Done() // the pause
	next, _ := locks.Acquire(ctx, "stock")
	err := stock.Do(next, func() error { return nil })
	fmt.Println("present holder:", err)
	err = stock.Do(paused, func() error { return nil })
	fmt.Println("paused holder is refused:", errors.Is(err, fence.ErrStale))
	fmt.Println("and told so:", errors.Is(paused.Release(ctx), leasehold.ErrLost))
	next.Release(ctx)
	// Output:
	// present holder: <nil>
	// paused holder is refused: true
	// and told so: true
}

// Inside Do, the lease with its token is found through the context.
func ExampleFromContext() {
	locks, _ := leasehold.New(memory.New(), nil)
	var stock fence.Memory
	err := locks.Do(context.Background(), "stock", func(ctx context.Context) error {
		lease, _ := leasehold.FromContext(ctx)
		return stock.Do(lease, func() error {
			fmt.Println("written")
			return nil
		})
	})
	if errors.Is(err, leasehold.ErrLost) || errors.Is(err, fence.ErrStale) {
		fmt.Println("roll back")
	}
	// Output: written
}
