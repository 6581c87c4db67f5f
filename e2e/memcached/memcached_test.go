// Package memcached tests memcachelock on real servers.
package memcached

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite. Tests mostly wait, so
// more of them run at once than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	locktest.Main(m, openAt)
}

// openAt opens the servers at addresses that commas separate.
func openAt(addresses string) (driver.Driver, error) {
	return memcachelock.New(strings.Split(addresses, ","), nil)
}

// overtime is how much longer than its TTL memcached keeps an item; see docs/engines/memcached.md.
const overtime = 2 * time.Second

func TestMemcachedConformance(t *testing.T) { apart.Run(t, conformance) }

func conformance(t *testing.T) {
	m := servers.StartMemcached(t)
	locktest.Run(t, locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := openAt(m.Addr())
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Address:      m.Addr(),
		Pause:        func(testing.TB) (resume func()) { return m.Pause() },
		FlushState:   func(t testing.TB) { m.Must(t, "flush_all") },
		NoLossNotice: true,
		Late:         overtime,
	})
}

// version is what the server compares when it swaps.
func version(t testing.TB, m *servers.Memcached, key string) uint64 {
	t.Helper()
	item, err := memcache.New(m.Addr()).Get(key)
	if err != nil {
		t.Fatal(err)
	}
	return item.CasID
}
