package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// A transfer holds both accounts while it moves money, and gives each its token along with the write.
func ExampleLocker_DoAll() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	err := locks.DoAll(ctx, []string{"account/bob", "account/alice"}, func(ctx context.Context) error {
		both, _ := leasehold.AllFromContext(ctx)
		for _, name := range both.Names() {
			fmt.Println("writing", name, both.Lease(name).Token() > 0)
		}
		return ctx.Err() // it ends when either lease does
	})
	if errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another may have changed one of them meanwhile: roll back")
	}
	// Output:
	// writing account/alice true
	// writing account/bob true
}

// A transfer holds both accounts. Whoever lists them the other way round does not wait
// for us while we wait for them.
func ExampleLocker_AcquireAll() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	both, err := locks.AcquireAll(ctx, []string{"account/bob", "account/alice"})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range both.Names() {
		fmt.Println("holding", name, both.Lease(name).Token() > 0) // give each its token with the write
	}
	if both.Context().Err() == nil { // ends when either lease does
		fmt.Println("moving 10")
	}
	if err := both.Release(ctx); errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another may have changed one of them meanwhile: roll back")
	}
	// Output:
	// holding account/alice true
	// holding account/bob true
	// moving 10
}
