package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/memory"
)

// Five engines that know nothing of each other: two may be down. On Redis servers
// redislock.NewRedlock does this, and sets what the servers need for it.
func Example() {
	ctx := context.Background()
	var nodes []driver.Driver
	for range 5 {
		nodes = append(nodes, memory.New())
	}
	d, err := quorum.New(nodes, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close() // and with it the nodes
	locks, err := leasehold.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	nodes[0].Close()
	nodes[1].Close()
	lease, err := locks.Acquire(ctx, "orders/42")
	fmt.Println("two are down:", err)
	if err := lease.Release(ctx); errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another may have held it meanwhile: roll back")
	}
	// Output: two are down: <nil>
}
