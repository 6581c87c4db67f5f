package leasehold_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// Do reports a lease that was lost while the work ran, although the work returned nil.
func ExampleLocker_Do_lost() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	err := locks.Do(ctx, "migration", func(held context.Context) error {
		state, _ := locks.Inspect(ctx, "migration")
		locks.Evict(ctx, "migration", state.Holders[0].Owner.Reveal(), "wrong database")
		<-held.Done() // the holder hears of it
		fmt.Println(context.Cause(held))
		return nil
	})
	fmt.Println("roll back:", errors.Is(err, leasehold.ErrLost))
	// Output:
	// lease lost: evicted: wrong database
	// roll back: true
}
