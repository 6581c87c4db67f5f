package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/natslock"
)

// A service makes sure that there is a bucket, and has one driver and one Locker on it.
func ExampleNew() {
	ctx := context.Background()
	nc, err := nats.Connect("nats://localhost", nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	// Three replicas. An existing bucket is left as it is.
	if err := natslock.CreateBucket(ctx, js, "locks", 3); err != nil {
		log.Fatal(err)
	}
	d, err := natslock.New(js, "locks", nil)
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
