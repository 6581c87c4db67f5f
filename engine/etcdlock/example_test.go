package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
)

// A service has one client with keep-alives, one driver on it, and one Locker.
func ExampleNew() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:         []string{"etcd1:2379", "etcd2:2379", "etcd3:2379"},
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	d, err := etcdlock.New(client, nil)
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
