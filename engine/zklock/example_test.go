package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/zklock"
)

// A service opens one driver for its ensemble, and one Locker on it.
func ExampleNew() {
	ctx := context.Background()
	d, err := zklock.New([]string{"zk1", "zk2", "zk3"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	err = locks.Do(ctx, "orders/42", func(ctx context.Context) error {
		fmt.Println("shipping order 42") // stop when ctx ends: the lease is over
		return nil
	})
	if errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another process may have shipped it meanwhile: roll back")
	}
}
