package migrate

import (
	"context"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// onZooKeeper opens our lock below the parent of Curator's paths. Close both at the program's end.
func onZooKeeper(ensemble []string) (driver.Driver, *leasehold.Locker, error) {
	d, err := zklock.New(ensemble, &zklock.Options{Prefix: "/shop"}) // "/shop/order-42" is the name "order-42"
	if err != nil {
		return nil, nil, err
	}
	locks, err := leasehold.New(d, nil)
	return d, locks, err
}

func withZooKeeper(ctx context.Context, locks *leasehold.Locker, ship func(ctx context.Context) error) error {
	return locks.Do(ctx, "order-42", ship)
}

// Curator's InterProcessMutex, kazoo's Lock and ours queue together.
func TestCurator(t *testing.T) {
	t.Parallel()
	java, classes := servers.NeedCurator(t)
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	locks := opened(t)(onZooKeeper([]string{z.Addr()}))
	together(t, map[string]program{
		"before": command(t, java, "-cp", classes, "testdata/Before.java", z.Addr()),
		"after": inGo(func(ctx context.Context, ship func(context.Context) error) error {
			return withZooKeeper(ctx, locks, ship)
		}),
	})
}
