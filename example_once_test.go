package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// Ten servers have the same line in their crontabs: the report is sent once a day.
func ExampleOncePer() {
	ctx := context.Background()
	engine := memory.NewServer()
	for server := range 10 {
		locks, _ := leasehold.New(engine.Connect(), nil)
		err := locks.Do(ctx, "daily-report", func(held context.Context) error {
			fmt.Println("sending the report")
			lease, _ := leasehold.FromContext(held)
			return lease.SetNote(ctx, "sent") // stays until the report is due again
		}, leasehold.OncePer(24*time.Hour), leasehold.TTL(time.Hour)) // an hour after a crash, another may try
		switch {
		case errors.Is(err, leasehold.ErrBusy): // it was sent already, or is being sent
		case errors.Is(err, leasehold.ErrLost):
			fmt.Println("another may have begun to send it too: see fence.Once")
		case err != nil:
			fmt.Println(server, err)
		}
	}
	locks, _ := leasehold.New(engine.Connect(), nil)
	state, _ := locks.Inspect(ctx, "daily-report")
	fmt.Println(state.Holders[0].Note)
	// Output:
	// sending the report
	// sent
}
