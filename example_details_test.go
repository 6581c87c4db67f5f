package leasehold_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// Telling who holds a lock and what for, and reading it where the lock is busy.
func ExampleWithDetails() {
	ctx := context.Background()
	engine := memory.NewServer()
	locks, _ := leasehold.New(engine.Connect(), &leasehold.Options{Details: leasehold.Details{Host: "web-7"}})
	lease, err := locks.Acquire(ctx, "deploy", leasehold.WithDetails(leasehold.Details{
		Text: "release 17", Link: "https://ci.example.com/runs/17", Labels: map[string]string{"team": "payments"},
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	others, _ := leasehold.New(engine.Connect(), nil)
	_, err = others.TryAcquire(ctx, "deploy")
	if busy, ok := errors.AsType[*leasehold.BusyError](err); ok {
		d := busy.Holder.Details()
		fmt.Println(d.Text, "on", d.Host, "of", d.Labels["team"], d.Link)
	}
	if err := lease.Release(ctx); errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another may have deployed meanwhile: roll back")
	}
	// Output: release 17 on web-7 of payments https://ci.example.com/runs/17
}
