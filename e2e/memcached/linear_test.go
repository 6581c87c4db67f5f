package memcached

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestMemcachedIsLinearizable(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	linear.Check(t, func(t testing.TB) driver.Driver { return openDriver(t, nil, m.Addr()) })
}
