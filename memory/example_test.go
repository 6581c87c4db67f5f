package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// A test has two Lockers on one Server, as two processes would be on one engine.
func ExampleServer() {
	ctx := context.Background()
	server := memory.NewServer()
	var locks []*leasehold.Locker
	for range 2 {
		d := server.Connect()
		defer d.Close()
		l, err := leasehold.New(d, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer l.Close()
		locks = append(locks, l)
	}
	lease, err := locks[0].Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	_, err = locks[1].TryAcquire(ctx, "orders/42")
	fmt.Println("the second is refused:", errors.Is(err, leasehold.ErrBusy))
	server.Flush() // as an engine that restarts without its data
	<-lease.Context().Done()
	fmt.Println("the first is told:", errors.Is(context.Cause(lease.Context()), leasehold.ErrLost))
	// Output:
	// the second is refused: true
	// the first is told: true
}
