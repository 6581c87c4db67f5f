package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A program needs no way to the engine but the service's port.
func ExampleConnect() {
	ctx := context.Background()
	service, err := serve.New(memory.New(), nil) // "leasehold serve", on another machine
	if err != nil {
		log.Fatal(err)
	}
	defer service.Close()
	server := httptest.NewServer(service)
	defer server.Close()

	d, err := httplock.Connect(ctx, server.URL, nil)
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
	// Output: shipping order 42
}
