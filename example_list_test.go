package leasehold_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// Going through all locks that are held, however many there are.
func ExampleLocker_List() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	for _, name := range []string{"orders/1", "orders/2", "reports"} {
		if _, err := locks.Acquire(ctx, name); err != nil {
			fmt.Println(err)
			return
		}
	}
	for state, err := range locks.List(ctx, "orders/") {
		if errors.Is(err, driver.ErrCorrupt) {
			fmt.Println("somebody has damaged one:", err)
			continue
		}
		if err != nil {
			fmt.Println("the list is not whole:", err)
			return
		}
		fmt.Println(state.Resource, len(state.Holders))
	}
	// Output:
	// orders/1 1
	// orders/2 1
}

// Showing locks in pages: Next of one is After of the next, in whatever process.
func ExampleLocker_Page() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	for i := range 5 {
		if _, err := locks.Acquire(ctx, fmt.Sprint("orders/", i)); err != nil {
			fmt.Println(err)
			return
		}
	}
	opts := leasehold.PageOptions{Prefix: "orders/", Limit: 2}
	for more := true; more; more = opts.After != "" {
		page, err := locks.Page(ctx, opts)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(len(page.States), "locks")
		opts.After = page.Next
	}
	// Output:
	// 2 locks
	// 2 locks
	// 1 locks
}
