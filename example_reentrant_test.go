package leasehold_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// Waiting for oneself is refused; nesting is asked for.
func ExampleReentrant() {
	locks, _ := leasehold.New(memory.New(), nil)
	err := locks.Do(context.Background(), "account/7", func(ctx context.Context) error {
		_, err := locks.Acquire(ctx, "account/7")
		fmt.Println("deadlock:", errors.Is(err, leasehold.ErrDeadlock))
		return locks.Do(ctx, "account/7", func(context.Context) error {
			fmt.Println("nested")
			return nil
		}, leasehold.Reentrant())
	})
	if errors.Is(err, leasehold.ErrLost) {
		fmt.Println("roll back")
	}
	// Output:
	// deadlock: true
	// nested
}
