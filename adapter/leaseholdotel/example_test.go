package leaseholdotel_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdotel"
	"github.com/leasehold-go/leasehold/memory"
)

// The spans of a request show how long it waited for its lock and how long it held it. They go
// where the global providers send them, which a program sets up before.
func Example() {
	observer, err := leaseholdotel.New(nil)
	if err != nil {
		panic(err)
	}
	locks, err := leasehold.New(memory.New(), &leasehold.Options{Trace: observer.Trace})
	if err != nil {
		panic(err)
	}
	defer locks.Close()

	ctx, span := otel.Tracer("shop").Start(context.Background(), "POST /orders/42/ship")
	defer span.End()
	err = locks.Do(ctx, "orders/42", func(context.Context) error {
		fmt.Println("shipping order 42")
		return nil
	})
	if err != nil {
		panic(err) // with ErrLost: roll back
	}
	// Output: shipping order 42
}
