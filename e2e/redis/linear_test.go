package redis

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/e2e/servers"
)

func TestRedisIsLinearizable(t *testing.T) {
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
	nodes := startNodes(t, 3)
	linear.Check(t, func(t testing.TB) driver.Driver { return openRedlock(t, nodes, -1) })
}
