package memcachelock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
)

// A service opens one driver for its servers, and one Locker on it. There is no fencing: a lock
// here saves work, no more.
func ExampleNew() {
	ctx := context.Background()
	d, err := memcachelock.New([]string{"10.0.0.1", "10.0.1.1:11212"}, nil)
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
