package leasehold_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// Giving up at once when somebody else is at it, as a cron job on many servers does.
func ExampleLocker_TryAcquire() {
	ctx := context.Background()
	server := memory.NewServer()
	here, _ := leasehold.New(server.Connect(), &leasehold.Options{Note: "web-1"})
	there, _ := leasehold.New(server.Connect(), &leasehold.Options{Note: "web-2"})

	lease, err := here.TryAcquire(ctx, "nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = there.TryAcquire(ctx, "nightly-report")
	if busy, ok := errors.AsType[*leasehold.BusyError](err); ok {
		fmt.Println("busy, held by", busy.Holder.Note)
	}
	if err := lease.Release(ctx); errors.Is(err, leasehold.ErrLost) {
		fmt.Println("the report may have been sent twice")
	}
	// Output: busy, held by web-1
}
