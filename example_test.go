package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// The first program: hold a name while something runs, and roll back when it was lost.
func Example() {
	locks, err := leasehold.New(memory.New(), nil) // any engine; leasehold/memory needs no server
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(context.Background(), "orders/42", func(ctx context.Context) error {
		fmt.Println("shipping order 42") // stop when ctx ends: the lease is over
		return nil
	})
	if errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another process may have shipped it meanwhile: roll back")
	} else if err != nil {
		log.Print(err)
	}
	// Output: shipping order 42
}
