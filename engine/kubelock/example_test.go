package kubelock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"k8s.io/client-go/rest"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/kubelock"
)

// A pod has one driver and one Locker on the Leases of a namespace, as its own account.
func ExampleNew() {
	ctx := context.Background()
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	d, err := kubelock.New(config, "locks", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, &leasehold.Options{TTL: 15 * time.Second})
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
