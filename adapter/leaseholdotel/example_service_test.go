package leaseholdotel_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"go.opentelemetry.io/otel"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdotel"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// The span of a call to a service is a child of its caller's.
func ExampleObserver_Call() {
	observer, err := leaseholdotel.New(nil)
	if err != nil {
		panic(err)
	}
	service, err := serve.New(memory.New(), &serve.Options{Trace: observer.Call})
	if err != nil {
		panic(err)
	}
	defer service.Close()
	web := httptest.NewServer(service)
	defer web.Close()

	d, err := httplock.Connect(context.Background(), web.URL, &httplock.Options{Headers: leaseholdotel.Inject})
	if err != nil {
		panic(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, nil)
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
