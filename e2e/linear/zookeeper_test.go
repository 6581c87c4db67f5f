package linear

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestZooKeeperIsLinearizable(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	Check(t, func(t testing.TB) driver.Driver {
		d, err := zklock.New([]string{z.Addr()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}
