package redis

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/e2e/servers"
)

func TestRedisIsLinearizable(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	linear.Check(t, func(t testing.TB) driver.Driver {
		d, err := openRedisAddress("single," + r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

func TestRedlockIsLinearizable(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	linear.Check(t, func(t testing.TB) driver.Driver {
		return openRedlockWithin(t, nodes, -1, 300*time.Millisecond) // for its short TTLs
	})
}
