package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/fence"
)

// A service opens one driver for its server, and one Locker on it.
func ExampleOpen() {
	ctx := context.Background()
	d, err := redislock.Open(&redis.Options{Addr: "localhost:6379"}, nil)
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

// Redlock: a majority of servers that know nothing of each other.
func ExampleNewRedlock() {
	ctx := context.Background()
	var clients []redis.UniversalClient
	for _, addr := range []string{"10.0.0.1:6379", "10.0.1.1:6379", "10.0.2.1:6379"} {
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer client.Close()
		clients = append(clients, client)
	}
	d, err := redislock.NewRedlock(clients, nil, nil)
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

// A counter is raised once for each order, although the job may be begun again.
func ExampleOnce_Do() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	d, err := redislock.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	once, err := redislock.NewOnce(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(ctx, "orders/42", func(ctx context.Context) error {
		lease, _ := leasehold.FromContext(ctx)
		_, err := once.Do(ctx, "order-42/reserve", lease, "DECR", "stock")
		if errors.Is(err, fence.ErrDone) {
			return nil // by this order's job, before it was begun again
		}
		return err // of fence.ErrStale: a later holder was here, nothing was written
	})
	if err != nil {
		fmt.Println(err)
	}
}
